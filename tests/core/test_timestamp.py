"""Instants and spans."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.timestamp import describe

MOMENTS = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7)), timezone(timedelta(minutes=345))]))


def test_spans_are_microseconds() -> None:
    assert (ms.MICROSECOND, ms.MILLISECOND, ms.SECOND, ms.MINUTE) == (1, 1_000, 1_000_000, 60_000_000)
    assert (ms.HOUR, ms.DAY) == (3_600_000_000, 86_400_000_000)
    assert ms.to_duration(timedelta(days=1, milliseconds=1)) == ms.DAY + ms.MILLISECOND


def test_the_ends_of_time_fit_into_64_bits() -> None:
    assert (ms.START_OF_TIME, ms.END_OF_TIME) == (-(2**63), 2**63 - 1)


@pytest.mark.parametrize(("timestamp", "expected"), [(0, 0), (9, 0), (10, 10), (19, 10), (-1, -10), (-10, -10)])
def test_floor_is_the_start_of_its_span_before_1970_too(timestamp: int, expected: int) -> None:
    assert ms.floor(ms.Timestamp(timestamp), 10 * ms.MICROSECOND) == expected


@settings(max_examples=60, deadline=None)
@given(MOMENTS.filter(lambda moment: 2 < moment.year < 9998))
def test_a_moment_comes_back_as_it_was(moment: datetime) -> None:
    found = ms.to_datetime(ms.to_timestamp(moment))
    assert found == moment
    assert found.utcoffset() == timedelta(0)


def test_a_moment_without_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^2024-01-01 00:00:00 has no time zone; write it with one, such as tzinfo=datetime.UTC$"):
        ms.to_timestamp(datetime(2024, 1, 1))


def test_what_no_calendar_holds_is_an_overflow() -> None:
    with pytest.raises(OverflowError):
        ms.to_datetime(ms.END_OF_TIME)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (ms.START_OF_TIME, "-∞"),
        (ms.END_OF_TIME, "+∞"),
        (0, "1970-01-01T00:00:00Z"),
        (1_500_000, "1970-01-01T00:00:01.500000Z"),
        (10**18, "1000000000000000000 µs"),
    ],
)
def test_a_timestamp_is_told_as_people_write_it(timestamp: int, expected: str) -> None:
    assert describe(ms.Timestamp(timestamp)) == expected
