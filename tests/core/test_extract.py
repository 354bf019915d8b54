"""What an injector makes of a value: key, timestamp, partition and promise, or a refusal that says why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.extract import Extracted, Extractor, FarFuture, RefusedValue, as_timestamp, check_timestamp
from millstream.injector import InjectedStream

NOON = ms.to_timestamp(datetime(2024, 5, 17, 12, tzinfo=UTC))


@dataclass
class Click:
    user: Any = "ann"
    at: Any = NOON
    site: Any = "here"
    complete: Any = NOON


def extractor(source: ms.Source[Click] | None = None, **options: Any) -> Extractor:
    usual: dict[str, Any] = {
        "key": lambda click: click.user,
        "timestamp": lambda click: click.at,
        "low_watermark": ms.BoundedDisorder(2 * ms.SECOND),
        **options,
    }
    stream = ms.Topology("test").inject("clicks", source or ms.values([], Click), **usual)
    assert isinstance(stream, InjectedStream)
    return Extractor(stream.injection)


def extract(click: Click, columns: dict[str, Any] | None = None, **options: Any) -> Extracted:
    return extractor(**options).extract(click, columns or {}, now=NOON)


def test_key_timestamp_and_promise_are_found() -> None:
    assert extract(Click()) == Extracted("ann", NOON, "", NOON - 2 * ms.SECOND)


def test_the_partition_is_found() -> None:
    assert extract(Click(), partition=lambda click: click.site).partition == "here"


def test_columns_are_taken_as_they_are() -> None:
    columns = {"key": "column", "timestamp": NOON - ms.SECOND, "partition": "p", "low watermark": NOON - ms.MINUTE}
    source = ms.files("clicks/*.parquet", Click)
    found = extract(Click(), columns, source=source, key="k", timestamp="t", partition="p", low_watermark=ms.Explicit("complete"))
    assert found == Extracted("column", NOON - ms.SECOND, "p", NOON - ms.MINUTE)


@pytest.mark.parametrize("complete", [NOON - ms.HOUR, ms.to_datetime(NOON - ms.HOUR)])
def test_an_explicit_low_watermark_is_what_the_source_says(complete: object) -> None:
    found = extract(Click(complete=complete), low_watermark=ms.Explicit(lambda click: click.complete))
    assert found.complete == NOON - ms.HOUR
    assert found.timestamp == NOON


@pytest.mark.parametrize("complete", [ms.END_OF_TIME + ms.MICROSECOND, ms.START_OF_TIME - ms.MICROSECOND])
def test_a_promise_beyond_the_ends_of_time_is_refused(complete: ms.Timestamp) -> None:
    """No commit could hold it."""
    with pytest.raises(RefusedValue, match=r"^its low watermark is -?9223372036854775\d+, beyond the ends of time"):
        extract(Click(complete=complete), low_watermark=ms.Explicit(lambda click: click.complete))


def test_an_explicit_low_watermark_far_in_the_future_is_not_believed_but_the_end_of_time_is() -> None:
    options = {"low_watermark": ms.Explicit(lambda click: click.complete)}
    assert extract(Click(complete=NOON + ms.DAY), **options).complete == NOON + ms.DAY
    assert extract(Click(complete=ms.END_OF_TIME), **options).complete == ms.END_OF_TIME
    with pytest.raises(FarFuture, match=r"^its low watermark 2024-05-18T12:00:00.000001Z is far after the clock; allow it with inject"):
        extract(Click(complete=NOON + ms.DAY + 1), **options)


@pytest.mark.parametrize("key", [None, 5, b"ann", ["ann"]])
def test_a_key_that_is_no_text_is_refused(key: object) -> None:
    with pytest.raises(RefusedValue) as caught:
        extract(Click(user=key))
    assert str(caught.value) == f"its key is {key!r}; a key is text: return str(...)"


@pytest.mark.parametrize("partition", [None, 5])
def test_a_partition_that_is_no_text_is_refused(partition: object) -> None:
    with pytest.raises(RefusedValue) as caught:
        extract(Click(site=partition), partition=lambda click: click.site)
    assert str(caught.value) == f"its partition is {partition!r}; a partition is text: return str(...)"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"key": lambda click: click.missing}, "key"),
        ({"timestamp": lambda click: click.missing}, "timestamp"),
        ({"partition": lambda click: click.missing}, "partition"),
        ({"low_watermark": ms.Explicit(lambda click: click.missing)}, "low watermark"),
    ],
)
def test_an_extractor_that_raises_is_a_refusal_that_says_which(options: dict[str, Any], what: str) -> None:
    with pytest.raises(RefusedValue) as caught:
        extract(Click(), **options)
    assert str(caught.value) == f"its {what} cannot be extracted: AttributeError: 'Click' object has no attribute 'missing'"
    assert isinstance(caught.value.__cause__, AttributeError)


@pytest.mark.parametrize("found", [None, 1.5, "2024-05-17", True])
def test_a_timestamp_of_another_kind_is_refused(found: object) -> None:
    with pytest.raises(RefusedValue) as caught:
        extract(Click(at=found))
    assert str(caught.value) == f"its timestamp is {found!r}; return a datetime with a time zone or a ms.Timestamp"
    with pytest.raises(RefusedValue, match=r"^its low watermark is "):
        extract(Click(complete=found), low_watermark=ms.Explicit(lambda click: click.complete))


def test_a_datetime_without_time_zone_is_refused() -> None:
    with pytest.raises(
        RefusedValue, match=r"^its timestamp: 2024-05-17 12:00:00 has no time zone; write it with one, such as tzinfo=datetime.UTC$"
    ):
        extract(Click(at=datetime(2024, 5, 17, 12)))


def test_a_datetime_of_any_time_zone_is_a_timestamp() -> None:
    assert extract(Click(at=datetime(2024, 5, 17, 14, tzinfo=timezone(timedelta(hours=2))))).timestamp == NOON
    assert as_timestamp("timestamp", datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)) == 1


def test_a_timestamp_far_in_the_future_is_not_believed() -> None:
    assert extract(Click(at=NOON + ms.DAY)).timestamp == NOON + ms.DAY
    with pytest.raises(FarFuture) as caught:
        extract(Click(at=NOON + ms.DAY + 1))
    assert str(caught.value) == (
        "its timestamp 2024-05-18T12:00:00.000001Z is more than 86,400 s after the clock; allow it with inject(..., ahead=...)"
    )
    assert extract(Click(at=NOON + ms.DAY + 1), ahead=2 * ms.DAY).timestamp == NOON + ms.DAY + 1
    with pytest.raises(FarFuture, match=r"more than 60 s after the clock"):
        extract(Click(at=NOON + ms.HOUR), ahead=ms.MINUTE)


def test_a_timestamp_beyond_all_calendars_is_not_believed() -> None:
    with pytest.raises(FarFuture, match=r"^its timestamp \+∞ is more than"):
        check_timestamp(ms.END_OF_TIME, ahead=ms.DAY, now=NOON)
    with pytest.raises(FarFuture, match=rf"^its timestamp {10**18} µs is more than"):
        check_timestamp(ms.Timestamp(10**18), ahead=ms.DAY, now=NOON)


def test_a_timestamp_before_1800_is_refused() -> None:
    edge = ms.to_timestamp(datetime(1800, 1, 1, tzinfo=UTC))
    check_timestamp(edge, ahead=ms.DAY, now=NOON)
    with pytest.raises(RefusedValue, match=r"^its timestamp is 1799-12-31T23:59:59.999999Z, out of range for a record; "):
        check_timestamp(edge - 1 * ms.MICROSECOND, ahead=ms.DAY, now=NOON)
    with pytest.raises(RefusedValue, match=r"^its timestamp is -∞, out of range for a record; "):
        check_timestamp(ms.START_OF_TIME, ahead=ms.DAY, now=NOON)


@pytest.mark.parametrize("found", [NOON // 1_000_000, NOON // 1_000])
def test_seconds_and_milliseconds_are_not_taken_for_microseconds(found: int) -> None:
    with pytest.raises(RefusedValue) as caught:
        extract(Click(at=found))
    assert str(caught.value) == f"its timestamp is {found}; is it in seconds or milliseconds? A ms.Timestamp counts microseconds since 1970"
    with pytest.raises(RefusedValue, match=r"^its low watermark is \d+; is it in seconds or milliseconds\?"):
        extract(Click(complete=found), low_watermark=ms.Explicit(lambda click: click.complete))


def test_a_timestamp_in_the_past_is_no_reason_to_refuse() -> None:
    assert extract(Click(at=ms.Timestamp(0))).timestamp == 0


def test_values_are_decoded_by_their_type() -> None:
    assert extractor().decode(b'{"user":"bob","at":5}') == Click("bob", 5)
    with pytest.raises(Exception, match=r"Expected `object`, got `int`"):
        extractor().decode(b"5")


# Many at once.

KEYS = st.sampled_from(["ann", "bob", "", None, 5])
MOMENTS = st.sampled_from([NOON, NOON + ms.DAY, NOON + ms.DAY + 1, ms.to_datetime(NOON), True, None, NOON // 1_000, 0, -(10**17)])
CLICKS = st.lists(st.builds(Click, KEYS, MOMENTS, st.sampled_from(["here", "there", None]), MOMENTS), max_size=4)
PLAIN = st.lists(st.builds(Click, st.sampled_from(["ann", "bob"]), st.integers(NOON - 10, NOON + 10)), max_size=4)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with partitions": {"partition": lambda click: click.site},
    "explicit": {"low_watermark": ms.Explicit(lambda click: click.complete)},
    "raises": {"key": lambda click: click.user.upper()},
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=200, deadline=None)
@given(clicks=CLICKS | PLAIN)
def test_a_chunk_gives_what_its_values_give_one_by_one_or_nothing(way: str, clicks: list[Click]) -> None:
    it = extractor(**WAYS[way])
    chunk = it.extract_all(clicks, now=NOON)
    if chunk is None:
        return
    each = [it.extract(click, {}, now=NOON) for click in clicks]  # none is refused
    assert chunk.keys == [found.key for found in each]
    assert chunk.timestamps == [found.timestamp for found in each]
    assert chunk.marks == {p: max(f.complete for f in each if f.partition == p) for p in {f.partition for f in each}}


def test_a_chunk_of_plain_values_is_beyond_doubt() -> None:
    clicks = [Click("ann", NOON), Click("bob", ms.to_datetime(NOON))]
    assert extractor().extract_all(clicks[:1], now=NOON) is not None
    assert extractor().extract_all(clicks[1:], now=NOON) is not None
    assert extractor().extract_all(clicks, now=NOON) is None  # of several types: asked one by one
    assert extractor(ms.files("clicks/*.parquet", Click), key="k", timestamp="t").extract_all(clicks, now=NOON) is None
