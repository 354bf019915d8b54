"""What it costs to reach a row: round trips to the state store are what an epoch pays for."""

from __future__ import annotations

import pytest

from millstream.core.pages import Bucket, hash_key, page_of
from tests.core.shelf import Shelf, row, timer


@pytest.fixture(scope="module")
def crowded() -> dict[str, bytes]:
    """A bucket of 10,000 rows, each with a timer."""
    shelf = Shelf()
    bucket = Bucket(shelf)
    for number in range(10_000):
        bucket.pages("it").put(str(number), None, row(b"s", timer("t", 1_000 + number)))
    bucket.flush()
    return shelf.kept


def full(crowded: dict[str, bytes]) -> Shelf:
    shelf = Shelf()
    shelf.kept.update(crowded)
    return shelf


@pytest.mark.parametrize("key", ["0", "5000", "9999"])
def test_to_change_one_row_of_ten_thousand_takes_three_reads_and_three_writes(crowded: dict[str, bytes], key: str) -> None:
    shelf = full(crowded)
    bucket = Bucket(shelf)
    pages = bucket.pages("it")
    pages.put(key, pages.get(key), row(b"t"))
    bucket.flush()
    assert shelf.trips() == (3, 3, 0)  # the directories, a page and its chunk


def test_to_change_the_only_row_costs_no_less() -> None:
    shelf = Shelf()
    for expected in ((3, 3, 0), (3, 3, 0)):
        bucket = Bucket(shelf)
        pages = bucket.pages("it")
        pages.put("k", pages.get("k"), row(b"t"))
        bucket.flush()
        assert shelf.trips() == expected


def test_what_is_flushed_is_not_written_again(crowded: dict[str, bytes]) -> None:
    shelf = full(crowded)
    bucket = Bucket(shelf)
    pages = bucket.pages("it")
    pages.put("0", pages.get("0"), row(b"t"))
    bucket.flush()
    shelf.trips()
    bucket.flush()
    assert shelf.trips() == (0, 0, 0)


def test_to_look_at_one_row_of_ten_thousand_takes_two_reads_and_no_write(crowded: dict[str, bytes]) -> None:
    shelf = full(crowded)
    bucket = Bucket(shelf)
    assert bucket.pages("it").get("77") is not None
    bucket.flush()
    assert shelf.trips() == (2, 0, 0)


def test_rows_of_one_page_share_its_round_trips(crowded: dict[str, bytes]) -> None:
    shelf = full(crowded)
    bucket = Bucket(shelf)
    pages = bucket.pages("it")
    pages.get("77")
    together = list(pages._page(page_of(hash_key("77"), 313)))
    assert len(together) > 10
    for key in together:
        pages.put(key, pages.get(key), row(b"t"))
    bucket.flush()
    assert shelf.trips() == (3, 3, 0)


def test_a_new_row_splits_at_most_one_page(crowded: dict[str, bytes]) -> None:
    shelf = full(crowded)
    worst = 0
    for number in range(40):
        bucket = Bucket(shelf)
        pages = bucket.pages("it")
        pages.put(f"new {number}", None, row(b"t"))
        bucket.flush()
        worst = max(worst, sum(shelf.trips()))
    assert 6 < worst <= 6 + 8


def test_to_find_no_due_timer_among_ten_thousand_takes_one_read(crowded: dict[str, bytes]) -> None:
    shelf = full(crowded)
    assert Bucket(shelf).pages("it").due(999, 999) == []
    assert shelf.trips() == (1, 0, 0)


def test_to_find_one_due_timer_among_ten_thousand_takes_three_reads(crowded: dict[str, bytes]) -> None:
    shelf = full(crowded)
    assert Bucket(shelf).pages("it").due(1_000, 999) == ["0"]
    assert shelf.trips() == (3, 0, 0)
