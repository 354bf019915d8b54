"""Timestamps by arrival and by devices' clocks, held against plain Python; and what cannot be given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.clocks import on_our_clock
from millstream.core.extract import Extractor, RefusedValue
from millstream.injector import InjectedStream
from millstream.testing import Driver

NOON = ms.to_timestamp(datetime(2024, 5, 17, 12, tzinfo=UTC))
DECADE = 3_650 * ms.DAY


@dataclass(frozen=True)
class Reading:
    sensor: str = "a"
    measured: Any = NOON
    sent: Any = NOON
    received: Any = None


THREE = ms.OnOurClock[Reading](occurred=lambda r: r.measured, sent=lambda r: r.sent)


def extractor(timestamp: Any, source: ms.Source[Any] | None = None, **options: Any) -> Extractor:
    usual: dict[str, Any] = {"key": lambda r: r.sensor, "low_watermark": ms.BoundedDisorder(2 * ms.SECOND), **options}
    stream = ms.Topology("test").inject("readings", source or ms.values([], Reading), timestamp=timestamp, **usual)
    assert isinstance(stream, InjectedStream)
    return Extractor(stream.injection)


def dated(timestamp: Any, reading: Reading, *, columns: dict[str, Any] | None = None, **options: Any) -> ms.Timestamp:
    return extractor(timestamp, **options).extract(reading, columns or {}, now=NOON).timestamp


# Three clocks.


@settings(max_examples=300, deadline=None)
@given(
    skew=st.integers(-int(DECADE), int(DECADE)),
    waited=st.integers(0, int(ms.DAY)),
    underway=st.integers(0, int(ms.HOUR)),
)
def test_it_is_right_for_any_skew_and_late_by_the_time_on_the_way(skew: int, waited: int, underway: int) -> None:
    """What really happened, on our clock, and what a device says of it whose clock is wrong by `skew`."""
    occurred = int(NOON) - underway - waited
    said = Reading(measured=ms.Timestamp(occurred + skew), sent=ms.Timestamp(occurred + waited + skew))
    assert int(dated(THREE, said)) == occurred + underway


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), st.integers(0, 2**60))
def test_it_is_never_after_it_was_received_and_moves_with_each_clock(occurred: int, sent: int, received: int) -> None:
    found = int(on_our_clock(ms.Timestamp(occurred), sent=ms.Timestamp(sent), received=ms.Timestamp(received)))
    assert found == (received if sent < occurred else received - (sent - occurred))
    assert int(on_our_clock(ms.Timestamp(occurred + 7), sent=ms.Timestamp(sent + 7), received=ms.Timestamp(received))) == found
    assert int(on_our_clock(ms.Timestamp(occurred), sent=ms.Timestamp(sent), received=ms.Timestamp(received + 7))) == found + 7


def test_received_may_be_told_and_each_may_be_a_datetime() -> None:
    clock = ms.OnOurClock[Reading](occurred=lambda r: r.measured, sent=lambda r: r.sent, received=lambda r: r.received)
    old = datetime(1970, 1, 1, 0, 2, tzinfo=UTC)
    said = Reading(measured=old, sent=old + timedelta(minutes=1), received=ms.to_datetime(NOON - ms.HOUR))
    assert dated(clock, said) == NOON - ms.HOUR - ms.MINUTE


def test_columns_may_say_it() -> None:
    clock = ms.OnOurClock[Reading](occurred="measured", sent="sent", received="timestamp")
    columns = {"occurred": 5, "sent": 5_000_005, "received": int(NOON)}
    assert dated(clock, Reading(), columns=columns, source=ms.kafka("t", Reading, servers="s:1")) == NOON - 5 * ms.SECOND
    with pytest.raises(ms.TopologyError, match="its source has no column 'measured'; give a function of the value"):
        extractor(clock)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Reading(measured="noon"), "its occurred is 'noon'; return a datetime with a time zone or a ms.Timestamp"),
        (Reading(sent=None), "its sent is None; return a datetime"),
        (Reading(sent=2**63), "its sent is 9223372036854775808, beyond the ends of time"),
        (Reading(measured=datetime(2024, 1, 1)), "its occurred: 2024-01-01 00:00:00 has no time zone"),
        (Reading(measured=ms.START_OF_TIME, sent=NOON), "out of range for a record"),
    ],
)
def test_what_is_no_time_is_refused(said: Reading, why: str) -> None:
    with pytest.raises(RefusedValue) as refused:
        dated(THREE, said)
    assert why in str(refused.value)


def test_a_received_in_other_units_is_refused_and_a_device_may_begin_in_1970() -> None:
    clock = ms.OnOurClock[Reading](occurred=lambda r: r.measured, sent=lambda r: r.sent, received=lambda r: r.received)
    with pytest.raises(RefusedValue, match="its received is 1715947200; is it in seconds or milliseconds"):
        dated(clock, Reading(received=1_715_947_200))
    since_boot = 200 * 10**6
    assert dated(THREE, Reading(measured=since_boot, sent=since_boot + 10**6)) == NOON - ms.SECOND


# Arrival.


@given(st.lists(st.integers(0, 100), max_size=9))
@settings(max_examples=30, deadline=None)
def test_a_chunk_says_what_each_says(numbers: list[int]) -> None:
    of = extractor(ms.Arrival(), low_watermark=ms.Timeless())
    values = [Reading(str(number)) for number in numbers]
    chunk = of.extract_all(values, now=NOON, arrived=NOON - ms.SECOND)
    each = [of.extract(value, {}, now=NOON, arrived=NOON - ms.SECOND) for value in values]
    assert chunk is not None
    assert (chunk.keys, chunk.timestamps, chunk.marks) == ([e.key for e in each], [e.timestamp for e in each], {})
    assert {e.timestamp for e in each} <= {NOON - ms.SECOND}
    assert {e.complete for e in each} <= {None}


def test_arrival_makes_a_promise_as_any_timestamp_does() -> None:
    found = extractor(ms.Arrival()).extract(Reading(), {}, now=NOON)
    assert (found.timestamp, found.complete) == (NOON, NOON - 2 * ms.SECOND)


class Dates(ms.Computation[int]):
    dated: ms.Output[str]

    def process_record(self, record: ms.Record[Reading]) -> None:
        self.state += 1
        self.dated.produce(record.value.sensor, timestamp=record.timestamp)


def placed(**options: Any) -> tuple[ms.Topology, Any, Dates]:
    topology, dates = ms.Topology("test"), Dates()
    usual: dict[str, Any] = {"key": lambda r: r.sensor, "timestamp": ms.Arrival(), "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    stream = topology.inject("readings", ms.values([], Reading), **{**usual, **options})
    topology.compute("dates", dates).reads(stream)
    return topology, stream, dates


@pytest.mark.parametrize("feeds", [False, True])
def test_an_epoch_that_crashes_does_not_change_when_a_record_came(feeds: bool) -> None:
    topology, stream, dates = placed()
    driver = Driver(topology, now=NOON)
    driver.crash()
    if feeds:
        driver.feed(stream, [Reading()])
    else:
        driver.send(stream, Reading())
    driver.advance(now=NOON + ms.MINUTE)
    assert [record.timestamp for record in driver.read(dates.dated)] == [NOON]
    assert [record.timestamp for record in driver.read(stream)] == [NOON]


def test_a_driver_shows_what_is_timeless_and_what_is_idle() -> None:
    topology, stream, _ = placed(low_watermark=ms.Timeless())
    idle = topology.inject(
        "quiet",
        ms.values([], int),
        key=str,
        timestamp=lambda n: ms.Timestamp(n),
        low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=ms.SECOND),
    )
    driver = Driver(topology, now=NOON)
    driver.send(stream, Reading())
    driver.advance(low_watermark=NOON)
    driver.advance(now=NOON + ms.MINUTE)
    driver.epoch(always=True)
    assert "stream 'readings': 1 records, timeless" in driver.describe()
    assert "stream 'quiet': 0 records, low watermark 2024-05-17T12:00:00Z, idle" in driver.describe()
    assert driver.low_watermark(idle) == NOON
    with pytest.raises(ms.TopologyError, match=r"'readings' is injected with ms\.Timeless"):
        driver.advance(low_watermark=NOON, of=stream)


# What cannot be given.


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ms.OnOurClock(occurred=3, sent=lambda r: r.sent), "OnOurClock(occurred=3): give a function of the value, or the name"),
        (lambda: ms.OnOurClock(occurred=lambda r: r.at, sent=""), "OnOurClock(sent=''): give a function of the value, or the name"),
        (lambda: ms.OnOurClock(occurred=lambda r: r.at, sent=None), "OnOurClock(sent=None): give a function of the value, or the name"),
        (lambda: ms.OnOurClock(occurred=lambda: 0, sent=lambda r: r.at), "OnOurClock: occurred is"),
        (lambda: placed(timestamp=ms.Arrival), "timestamp"),
        (lambda: placed(timestamp=ms.OnOurClock), "timestamp"),
        (lambda: placed(timestamp=None), "injector 'readings': timestamp is None; give a function of the value"),
        (lambda: placed(low_watermark=ms.Timeless), "low_watermark is ms.BoundedDisorder(...), ms.Explicit(...) or ms.Timeless()"),
        (lambda: placed(key=ms.Arrival()), "injector 'readings': key is Arrival(); give a function of the value"),
        (lambda: placed(partition=lambda r: r.sensor, low_watermark=ms.Timeless()), "with ms.Timeless() nothing has; leave it out"),
    ],
)
def test_what_cannot_be_right_is_refused_where_it_is_given(make: Any, why: str) -> None:
    with pytest.raises(ms.TopologyError) as refused:
        make()
    assert why in str(refused.value)
