"""Which spans a record falls into."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

import millstream as ms
from millstream.window import Days, Hopping, Session, Tumbling
from tests.operators.shop import at

CLOCKS = {  # places, and days on which their clocks change, at midnight and elsewhere
    "Europe/Berlin": [date(2024, 3, 31), date(2024, 10, 27)],
    "America/New_York": [date(2024, 3, 10), date(2024, 11, 3)],
    "America/Sao_Paulo": [date(2018, 11, 4), date(2018, 2, 17)],  # midnight is skipped; the hour before it comes twice
    "America/Havana": [date(2024, 3, 10), date(2024, 11, 3)],  # midnight is skipped; midnight comes twice
    "Australia/Lord_Howe": [date(2024, 4, 7), date(2024, 10, 6)],  # half an hour
    "Pacific/Apia": [date(2011, 12, 29), date(2011, 12, 31)],  # a day that was not
    "UTC": [date(2024, 1, 1)],
}


@pytest.mark.parametrize("name", CLOCKS)
def test_days_follow_one_another_and_hold_what_the_calendar_says(name: str) -> None:
    zone, chance = ZoneInfo(name), random.Random(name)
    days = Days(zone)
    for change in CLOCKS[name]:
        noon = datetime(change.year, change.month, change.day, 12, tzinfo=UTC)
        for _ in range(300):
            moment = noon + timedelta(microseconds=chance.randrange(-3 * 86_400_000_000, 3 * 86_400_000_000))
            (span,) = days.spans(ms.to_timestamp(moment))
            assert span.start <= ms.to_timestamp(moment) < span.end
            begins, ends = (ms.to_datetime(ms.Timestamp(int(edge))).astimezone(zone) for edge in (span.start, span.end - ms.MICROSECOND))
            assert begins.date() == ends.date() == moment.astimezone(zone).date()
            assert days.spans(span.end)[0].start == span.end


def test_a_day_is_as_long_as_it_was() -> None:
    hours = {}
    for day in (date(2024, 3, 31), date(2024, 6, 1), date(2024, 10, 27)):
        (span,) = Days(ZoneInfo("Europe/Berlin")).spans(ms.to_timestamp(datetime(day.year, day.month, day.day, 12, tzinfo=UTC)))
        hours[day] = (span.end - span.start) // ms.HOUR
    assert list(hours.values()) == [23, 24, 25]


def test_spans_are_counted_from_1970() -> None:
    assert [int(span.start) for span in Tumbling(7 * ms.DAY).spans(at(0))] == [int(at(0)) - int(at(0)) % int(7 * ms.DAY)]
    assert Tumbling(ms.MINUTE).spans(ms.Timestamp(-1))[0].start == ms.Timestamp(-60_000_000)
    assert [(span.start, span.end) for span in Tumbling(ms.HOUR, offset=90 * ms.MINUTE).spans(at(0))] == [(at(-1800), at(1800))]


def test_a_record_falls_into_as_many_hopping_windows_as_fit() -> None:
    spans = Hopping(5 * ms.MINUTE, every=ms.MINUTE).spans(at(90))
    assert [(span.start, span.end) for span in spans] == [(at(start), at(start + 300)) for start in (-180, -120, -60, 0, 60)]


def test_a_session_begins_with_its_record() -> None:
    assert [(span.start, span.end) for span in Session(ms.MINUTE).spans(at(5))] == [(at(5), at(65))]


@pytest.mark.parametrize("zone", ["Europe/Berlin", UTC])
def test_days_want_a_zone_by_its_name(zone: object) -> None:
    with pytest.raises(ms.TopologyError, match="give a zone"):
        Days(zone)  # type: ignore[arg-type]
