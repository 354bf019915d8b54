"""Where a key lives: its bucket and its page. Stored state depends on it, so it may never change."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.pages import bucket_of, hash_key, page_of

HASHES = st.integers(0, 2**32 - 1)
ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]))  # lone surrogates too


def test_a_hash_is_the_crc_of_the_text() -> None:
    assert hash_key("123456789") == 0xCBF43926  # the check value of CRC-32
    assert hash_key("") == 0
    assert hash_key("鍵") == 0x6C549338


def test_a_bucket_stays_the_same_in_every_version() -> None:
    assert [bucket_of(key, 16) for key in ("", "a", "b", "spark", "鍵", "user 1", "user 2")] == [0, 2, 5, 2, 9, 5, 13]
    assert [bucket_of(str(number), 7) for number in range(10)] == [4, 0, 0, 3, 4, 4, 1, 3, 3, 3]


@settings(max_examples=100, deadline=None)
@given(ANY_TEXT, st.integers(1, 100))
def test_every_text_has_a_bucket(key: str, buckets: int) -> None:
    assert 0 <= bucket_of(key, buckets) < buckets
    assert 0 <= hash_key(key) < 2**32


@settings(max_examples=200, deadline=None)
@given(HASHES, st.integers(1, 5_000))
def test_a_page_more_moves_a_row_to_it_or_not_at_all(hashed: int, pages: int) -> None:
    before, after = page_of(hashed, pages), page_of(hashed, pages + 1)
    assert 0 <= before < pages
    if after != before:
        assert after == pages
        assert before == pages - 2 ** (pages.bit_length() - 1)


@settings(max_examples=100, deadline=None)
@given(HASHES, st.integers(0, 12))
def test_at_a_power_of_two_a_page_is_the_low_bits(hashed: int, level: int) -> None:
    assert page_of(hashed, 2**level) == hashed % 2**level


def test_a_split_moves_about_half_of_its_page() -> None:
    hashes = [hash_key(f"user {number}") for number in range(20_000)]
    for pages in (1, 2, 3, 7, 12, 16):
        old = pages - 2 ** (pages.bit_length() - 1)
        before = Counter(page_of(hashed, pages) for hashed in hashes)[old]
        moved = Counter(page_of(hashed, pages + 1) for hashed in hashes)[pages]
        assert 0.4 < moved / before < 0.6


def test_keys_spread_evenly_over_buckets_and_over_the_pages_of_a_bucket() -> None:
    keys = [f"user {number}" for number in range(40_000)]
    buckets = Counter(bucket_of(key, 16) for key in keys)
    assert len(buckets) == 16
    assert max(buckets.values()) < 1.2 * min(buckets.values())
    pages = Counter(page_of(hash_key(key), 64) for key in keys if bucket_of(key, 16) == 3)
    assert len(pages) == 64
    assert max(pages.values()) < 2 * 40_000 / 16 / 64
