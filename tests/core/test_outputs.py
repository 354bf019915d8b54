"""What is produced, and who reads it under which key and as which value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject


@dataclass(frozen=True)
class Left:
    event: Event


@dataclass(frozen=True)
class Right:
    event: Event


class Collect(ms.Computation[list[str]]):
    """Writes down all that it gets."""

    def process_record(self, record: ms.Record[Any]) -> None:
        self.state.append(f"{record.timestamp}: {record.value}")


class Echo(ms.Computation[None]):
    words: ms.Output[str]
    lengths: ms.Output[int]

    def process_record(self, record: ms.Record[Event]) -> None:
        word = record.value.word
        self.words.produce(word, timestamp=record.timestamp)
        self.lengths.produce(len(word), timestamp=record.timestamp + 1 * ms.MICROSECOND, key=word[:1])


# Producing.


def test_a_record_has_the_key_being_processed_unless_told_another() -> None:
    echo = Echo()
    it = Alone(echo)
    it.send(Event("a", 3, "xyz"), Event("b", 4, "y"))
    by_key = sorted(it.driver.read(echo.words), key=lambda record: record.key)
    assert by_key == [ms.Record("a", "xyz", ms.Timestamp(3)), ms.Record("b", "y", ms.Timestamp(4))]
    by_key = sorted(it.driver.read(echo.lengths), key=lambda record: record.key)
    assert by_key == [ms.Record("x", 3, ms.Timestamp(4)), ms.Record("y", 1, ms.Timestamp(5))]
    assert it.tally.produced == 4


def test_a_value_changed_after_it_was_produced_is_sent_as_it_was() -> None:
    class Growing(ms.Computation[list[str]]):
        out: ms.Output[list[str]]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.state.append(record.value.word)
            self.out.produce(self.state, timestamp=record.timestamp)
            self.state.append("!")

    growing = Growing()
    it = Alone(growing)
    it.send(Event(word="a"), Event(at=1, word="b"))
    assert [record.value for record in it.driver.read(growing.out)] == [["a"], ["a", "!", "b"]]


@pytest.mark.parametrize(
    ("timestamp", "key", "message"),
    [
        (1.5, None, r"out.produce: timestamp is 1.5; give a ms.Timestamp"),
        (None, None, r"out.produce: timestamp is None; give a ms.Timestamp"),
        (True, None, r"out.produce: timestamp is True; give a ms.Timestamp"),
        (ms.END_OF_TIME, None, r"out.produce: timestamp is \+∞, out of range for a record; when the input has ended, .*use timer.at"),
        (ms.START_OF_TIME, None, r"out.produce: timestamp is -∞, out of range for a record"),
        (253_402_300_800_000_000, None, r"out.produce: timestamp is 253402300800000000 µs, out of range for a record"),
        (1, 5, r"out.produce: key is 5; a key is text: use str\(...\)"),
    ],
)
def test_a_record_without_a_timestamp_or_a_text_key_is_refused(timestamp: Any, key: Any, message: str) -> None:
    class Wrong(ms.Computation[None]):
        out: ms.Output[int]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.out.produce(1, timestamp=timestamp, key=key)

    with pytest.raises(ms.RecordError, match=message):
        Alone(Wrong()).send(Event())


def test_a_value_that_cannot_be_encoded_is_an_error_of_the_record() -> None:
    class Wrong(ms.Computation[None]):
        out: ms.Output[Any]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.out.produce(object(), timestamp=record.timestamp)

    with pytest.raises(ms.RecordError, match=r"record events/0/0 .*TypeError: Encoding objects of type object is unsupported"):
        Alone(Wrong()).send(Event())


def test_an_output_may_keep_another_name_than_its_attribute() -> None:
    class Renamed(ms.Computation[None]):
        counts: ms.Output[int] = ms.output(name="count")

        def process_record(self, record: ms.Record[Event]) -> None:
            self.counts.produce(1, timestamp=record.timestamp)

    renamed = Renamed()
    it = Alone(renamed)
    it.send(Event())
    assert [record.value for record in it.driver.read(renamed.counts)] == [1]
    assert set(it.driver._graph.streams) == {"events", "it.count", "dead letters"}


# Reading.


def read(*readers: Any) -> tuple[Driver, ms.Stream[Event]]:
    """A topology in which "0", "1", … collect what the functions make of the events."""
    topology = ms.Topology("test")
    events = inject(topology)
    for number, reader in enumerate(readers):
        found = reader(events)
        topology.compute(str(number), Collect()).reads(*(found if isinstance(found, list) else [found]))
    return Driver(topology), events


def test_records_come_in_the_order_of_their_timestamps_then_of_their_ids() -> None:
    driver, events = read(lambda events: events.map(lambda event: event.word))
    driver.send(events, Event(at=5, word="c"), Event(at=1, word="a"), Event(at=5, word="d"), Event(at=3, word="b"))
    assert driver.state("0", "k") == ["1: a", "3: b", "5: c", "5: d"]


def test_fan_out_gives_every_reader_every_record() -> None:
    driver, events = read(*[lambda events: events.map(lambda event: event.word)] * 3)
    driver.send(events, Event(word="x"), Event(at=1, word="y"))
    assert [driver.state(name, "k") for name in "012"] == [["0: x", "1: y"]] * 3


def test_fan_in_gives_a_reader_the_records_of_all_its_streams_in_order() -> None:
    driver, events = read(lambda events: [events.map(Left), events.map(Right)])
    driver.send(events, Event(word="x", at=2), Event(word="y", at=1))
    x, y = Event(word="x", at=2), Event(word="y", at=1)
    assert driver.state("0", "k") == [f"1: {Left(y)}", f"1: {Right(y)}", f"2: {Left(x)}", f"2: {Right(x)}"]


def test_by_gives_each_reader_its_own_keys() -> None:
    driver, events = read(
        lambda events: events.by(lambda event: event.word).map(lambda event: event.key),
        lambda events: events.map(lambda event: event.word),
        lambda events: events.map(lambda event: event.word * 2).by(lambda word: word[-2:]),
        lambda events: events.by(lambda event: "never").by(lambda event: event.word + "?").map(lambda event: event.word),
    )
    driver.send(events, Event("a", 0, "x"), Event("b", 1, "x"), Event("a", 2, "y"))
    assert (driver.state("0", "x"), driver.state("0", "y")) == (["0: a", "1: b"], ["2: a"])
    assert (driver.state("1", "a"), driver.state("1", "b")) == (["0: x", "2: y"], ["1: x"])
    assert (driver.state("2", "xx"), driver.state("2", "yy")) == (["0: xx", "1: xx"], ["2: yy"])
    assert (driver.state("3", "x?"), driver.state("3", "never")) == (["0: x", "1: x"], [])


def test_productions_of_one_epoch_are_read_in_the_next() -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    echo = Echo()
    topology.compute("echo", echo).reads(events)
    topology.compute("words", Collect()).reads(echo.words, echo.lengths.by(lambda length: "k"))
    driver = Driver(topology)
    before = driver._ledger.number
    driver.send(events, Event(word="xyz"))
    assert driver.state("words", "k") == ["0: xyz", "1: 3"]
    assert driver._ledger.number == before + 2


@pytest.mark.parametrize("key", ["", "ключ", "鍵", "🗝", "e\u0301", "\x00", "dead letters"])
def test_keys_of_any_text_pass_from_computation_to_computation(key: str) -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    echo = Echo()
    topology.compute("echo", echo).reads(events)
    topology.compute("words", Collect()).reads(echo.words)
    driver = Driver(topology)
    driver.send(events, Event(key, 0, key), Event("plain", 0, "x"))
    assert driver.state("words", key) == [f"0: {key}"]
    assert driver.state("words", "plain") == ["0: x"]
    assert driver.keys("words") == 2


@pytest.mark.parametrize("name", ["", "a.b"])
def test_a_name_that_would_be_taken_for_another_stream_is_refused(name: str) -> None:
    with pytest.raises(ms.TopologyError, match=r"^output\(name='.*'\): give a name without a dot"):
        ms.output(name=name)
