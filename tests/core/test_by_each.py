"""A record under several keys, or none: once under each, once in the log, and counted where it is under none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.codec import encode_value
from millstream.core.graph import compile_topology
from millstream.core.lanes import Lanes
from millstream.core.parts import NO_KEY, Columns
from millstream.core.route import Dealer
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject


class Seen(ms.Computation[list[str]]):
    seen: ms.Output[str]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state.append(record.value.word)
        self.seen.produce(f"{record.id} {record.value.word}", timestamp=record.timestamp)


class SeenInOrder(Seen):
    order = ms.Order.EVENT_TIME


def letters(event: Event) -> list[str]:
    return list(event.word)


def test_a_record_comes_once_under_each_of_its_keys() -> None:
    it = Alone(seen := Seen(), read=lambda stream: stream.by_each(letters))
    it.send(Event(at=1, word="aba"), Event(at=2, word=""), Event(at=3, word="b"))
    assert (it.state("a"), it.state("b"), it.state("k")) == (["aba"], ["aba", "b"], [])
    assert [record.value for record in it.driver.read(it.events)] == [Event(at=1, word="aba"), Event(at=2), Event(at=3, word="b")]
    tally = it.tally
    assert (tally.received, tally.applied, tally.unkeyed, tally.late) == (4, 3, 1, 0)
    assert sorted((record.key, record.value) for record in it.driver.read(seen.seen)) == [
        ("a", "events/0/0 aba"),
        ("b", "events/0/0 aba"),
        ("b", "events/0/2 b"),
    ]
    assert it.driver.keys("it") == 2


WORDS = st.lists(st.builds(Event, st.sampled_from("kl"), st.integers(0, 9), st.text("abc", max_size=4)), max_size=8)


@pytest.mark.parametrize("made", [Seen, SeenInOrder])
@settings(max_examples=60, deadline=None)
@given(WORDS, st.integers(1, 4), st.booleans())
def test_whatever_the_epochs_each_key_has_what_is_its_own(made: type[Seen], some: list[Event], size: int, crash: bool) -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("it", made()).reads(events.by_each(letters))
    topology.compute("plain", Seen()).reads(events)
    driver = Driver(topology, now=ms.Timestamp(0), ship=False)
    for begin in range(0, len(some), size):
        driver.send(events, *some[begin : begin + size])  # type: ignore[arg-type]
        if crash:
            driver.crash()
    driver.finish()
    wanted = {letter: Counter(event.word for event in some if letter in event.word) for letter in "abc"}
    assert {letter: Counter(driver.state("it", letter)) for letter in "abc"} == wanted
    found = driver.tally("it")
    assert found.unkeyed == sum(not event.word for event in some)
    assert found.received == found.applied + found.unkeyed == sum(len(set(event.word)) or 1 for event in some)
    assert driver.tally("plain").received == len(some)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.integers(1, 4))
def test_each_goes_to_the_lane_of_each_of_its_keys(some: list[Event], count: int) -> None:
    topology = ms.Topology("test")
    topology.compute("it", Seen()).reads(inject(topology).by_each(letters))
    graph, lanes = compile_topology(topology), Lanes(8, count)
    given_ = Columns([e.key for e in some], [encode_value(e) for e in some], [ms.Timestamp(e.at) for e in some], list(range(len(some))))
    dealt = [each for each in Dealer(graph, lanes).deal("events", "events", 0, given_, lane=0) if each.reader]
    found = [
        (each.lane, key, minor, value, at, each.columns.errors.get(place))
        for each in dealt
        for place, (key, minor, value, at) in enumerate(
            zip(each.columns.keys, each.columns.minors, each.columns.values, each.columns.timestamps, strict=True)
        )
    ]
    wanted = [
        (lanes.of_all([key])[0], key, minor, given_.values[minor], given_.timestamps[minor], None if event.word else NO_KEY)
        for minor, event in enumerate(some)
        for key in sorted(set(event.word)) or [event.key]
    ]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert all(list(each.columns.minors) == sorted(each.columns.minors) for each in dealt)


def test_the_last_of_by_and_by_each_decides_and_map_comes_in_its_place() -> None:
    def read(stream: ms.Stream[Event]) -> ms.Stream[Event]:
        return stream.by(lambda event: "x").map(lambda event: Event(word=event.word.upper())).by_each(letters)

    it = Alone(Seen(), read=read)
    it.send(Event(word="ab"))
    assert (it.state("A"), it.state("B"), it.state("x")) == (["AB"], ["AB"], [])
    it = Alone(Seen(), read=lambda stream: stream.by_each(letters).by(lambda event: "x"))
    it.send(Event(word="ab"), Event(word=""))
    assert (it.state("x"), it.state("a"), it.tally.unkeyed) == (["ab", ""], [], 0)


def test_under_no_key_it_is_neither_late_nor_diverted_nor_dead() -> None:
    it = Alone(Seen(), read=lambda stream: stream.by_each(letters), errors=ms.Errors.DEAD_LETTER, late=ms.Late.DROP)
    it.advance(5)
    it.send(Event(at=1, word=""), Event(at=1, word="a"), Event(at=7, word="b"))
    tally = it.tally
    assert (tally.received, tally.applied, tally.unkeyed, tally.dropped, tally.late, tally.dead) == (3, 1, 1, 1, 1, 0)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (lambda event: event.word, r"by_each\(...\) returned 'ab'; return several keys, such as a list, or use by"),
        (lambda event: [3], r"by_each\(...\) returned 3; a key is text: return str"),
        (lambda event: None, "'NoneType' object is not iterable"),
        (lambda event: ["a", 1 / 0], "ZeroDivisionError"),
    ],
)
def test_what_is_wrong_about_keys_is_an_error_of_the_record(keys: Any, why: str) -> None:
    with pytest.raises(ms.RecordError, match=why):
        Alone(Seen(), read=lambda stream: stream.by_each(keys)).send(Event(word="ab"))
    it = Alone(Seen(), read=lambda stream: stream.by_each(keys), errors=ms.Errors.DEAD_LETTER)
    it.send(Event(word="ab"))
    assert (it.tally.dead, it.tally.unkeyed) == (1, 0)


@pytest.mark.parametrize(
    ("keys", "why"), [("word", r"by_each\('word'\): give a function"), (lambda: ["a"], "by_each: the keys is .* cannot be called with")]
)
def test_what_is_no_function_of_the_value_is_refused(keys: Any, why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        inject(ms.Topology("test")).by_each(keys)


def test_it_travels() -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("it", Seen()).reads(events.by_each(lambda event: [event.word, "all"]))
    driver = Driver(topology, now=ms.Timestamp(0))
    driver.send(events, Event(word="x"), Event(word="y"))  # type: ignore[arg-type]
    assert (driver.state("it", "x"), driver.state("it", "all")) == (["x"], ["x", "y"])
