"""What a test gives to a driver is of the stream's type, one value at a time; what is not is an error that users can catch."""

from __future__ import annotations

import re
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Event, inject


class Count(ms.Computation[int]):
    counts: ms.Output[int]
    anything: ms.Output[Any]

    def process_record(self, record: ms.Record[Event]) -> None: ...


class Both(ms.Computation[int]):
    pairs: ms.Output[list[int]]

    def process_record(self, record: ms.Record[int]) -> None: ...


@pytest.fixture
def count() -> Count:
    return Count()


@pytest.fixture
def both() -> Both:
    return Both()


@pytest.fixture
def events_and_driver(count: Count, both: Both) -> tuple[Any, Driver]:
    topology = ms.Topology("values")
    events = inject(topology)
    topology.compute("count", count).reads(events)
    topology.compute("both", both).reads(count.counts)
    return events, Driver(topology, ship=False)


def test_a_value_of_another_type_cannot_be_put(events_and_driver: tuple[Any, Driver], count: Count, both: Both) -> None:
    events, driver = events_and_driver
    for stream, value, message in (
        (
            count.counts,
            "x",
            "put: 'x' is not what stream 'count.counts' carries, int: Expected `int`, got `str`; give one value of that type",
        ),
        (count.counts, [1], "put: [1] is not what stream 'count.counts' carries, int: Expected `int`, got `array`"),
        (both.pairs, 1, "put: 1 is not what stream 'both.pairs' carries, list[int]: Expected `array`, got `int`"),
        (events, 5, "put: 5 is not what stream 'events' carries, Event: Expected `object`, got `int`"),
    ):
        with pytest.raises(ms.TopologyError, match=f"^{re.escape(message)}"):
            driver.put(stream, value, key="k", timestamp=ms.Timestamp(5))
        assert driver.read(stream) == []


def test_what_a_stream_carries_can_be_put(events_and_driver: tuple[Any, Driver], count: Count, both: Both) -> None:
    events, driver = events_and_driver
    for stream, value in ((count.counts, 5), (count.anything, {"a": [1]}), (both.pairs, [1, 2]), (events, Event())):
        driver.put(stream, value, key="k", timestamp=ms.Timestamp(5))
        assert [record.value for record in driver.read(stream)] == [value]


def test_values_are_sent_one_by_one(events_and_driver: tuple[Any, Driver]) -> None:
    events, driver = events_and_driver
    one_by_one = r"values are given one by one, as in send\(stream, \*values\)"
    with pytest.raises(ms.RecordError, match=rf"injector 'events', \[Event.*its key cannot be extracted: AttributeError: .*; {one_by_one}"):
        driver.send(events, [Event()])
    with pytest.raises(ms.RecordError, match=r"^injector 'events', 5: its key cannot be extracted: AttributeError: [^;]*$"):
        driver.send(events, 5)
    assert driver.read(events) == []
