"""Records older than the low watermark of their reader."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import millstream as ms
from tests.core.alone import Alone, Event


class Words(ms.Computation[list[str]]):
    late: ms.Output[Event]
    seen: ms.Output[str]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state.append(record.value.word + (" late" if record.late else ""))
        self.seen.produce(record.value.word, timestamp=record.timestamp)


@dataclass(frozen=True)
class Word:
    text: str


class Mapped(ms.Computation[int]):
    late: ms.Output[Word]

    def process_record(self, record: ms.Record[Word]) -> None:
        self.state += 1


EVENTS = [Event(at=9, word="older"), Event(at=10, word="equal"), Event(at=11, word="newer")]


def test_a_record_is_late_when_it_lies_strictly_below_the_low_watermark() -> None:
    it = Alone(Words())
    it.advance(10)
    it.send(*EVENTS)
    assert it.state() == ["older late", "equal", "newer"]
    tally = it.tally
    assert (tally.received, tally.applied, tally.late, tally.dropped, tally.diverted, tally.dead) == (3, 3, 1, 0, 0, 0)


def test_a_record_is_not_late_against_the_low_watermark_of_its_own_epoch() -> None:
    it = Alone(Words())
    with it.driver.together():
        it.advance(10)
        it.send(*EVENTS)
    assert it.driver.low_watermark("it") == 10
    assert it.state() == ["older", "equal", "newer"]


def test_drop_drops_and_counts() -> None:
    computation = Words()
    it = Alone(computation, late=ms.Late.DROP)
    it.advance(10)
    it.send(*EVENTS)
    assert it.state() == ["equal", "newer"]
    tally = it.tally
    assert (tally.received, tally.applied, tally.late, tally.dropped, tally.diverted) == (3, 2, 1, 1, 0)
    assert [record.value for record in it.driver.read(computation.seen)] == ["equal", "newer"]


def test_divert_sends_the_record_as_it_came_to_the_output() -> None:
    computation = Words()
    it = Alone(computation, late=ms.Divert(computation.late))
    it.advance(10)
    it.send(*EVENTS)
    assert it.state() == ["equal", "newer"]
    tally = it.tally
    assert (tally.received, tally.applied, tally.late, tally.dropped, tally.diverted) == (3, 2, 1, 0, 1)
    assert it.driver.read(computation.late) == [ms.Record("k", EVENTS[0], ms.Timestamp(9))]
    assert tally.produced == 3


def test_a_diverted_record_has_the_key_that_its_reader_gave_it() -> None:
    computation = Words()
    it = Alone(computation, late=ms.Divert(computation.late), read=lambda events: events.by(lambda event: event.word))
    it.advance(10)
    it.send(*EVENTS)
    assert [record.key for record in it.driver.read(computation.late)] == ["older"]


def test_a_diverted_record_has_the_value_that_its_reader_would_have_seen() -> None:
    computation = Mapped()
    read = Alone(computation, late=ms.Divert(computation.late), read=lambda events: events.map(lambda event: Word(event.word)))
    read.advance(10)
    read.send(*EVENTS)
    assert [record.value for record in read.driver.read(computation.late)] == [Word("older")]
    assert read.state() == 2


@pytest.mark.parametrize("late", [ms.Late.PROCESS, ms.Late.DROP])
def test_a_late_record_does_not_take_the_low_watermark_back(late: ms.Late) -> None:
    it = Alone(Words(), late=late)
    it.advance(10)
    it.send(Event(at=1))
    assert it.driver.low_watermark("it") == 10
