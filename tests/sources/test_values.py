"""Values of a Python iterable: what is fed and when, what is refused, and what a silent iterable cannot hold up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.lanes import Lanes
from millstream.core.ledger import SourceProgress
from millstream.core.parts import NO_LANE, Columns, Dealt, Frame
from millstream.core.route import Dealer
from millstream.mill.actions import Fed
from millstream.mill.messages import Range
from millstream.sources import values as values_module
from millstream.sources.dealing import Intake
from millstream.sources.pieces import context_of
from millstream.sources.thread import MAX_PER_SLICE, MIN_PER_SLICE, SourceThread, slice_size
from millstream.sources.values import MAX_AHEAD, Taker, ValuesReader
from tests.waiting import wait_until

TIMEOUT = 60.0  # seconds; a bound, never an expectation
T = 1_800_000_000_000_000
NOW = ms.Timestamp(T)


@dataclass
class Click:
    user: str
    at: int
    page: str = "/"


class Count(ms.Computation[int]):
    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        pass


@dataclass
class FakeWriter:
    """Frames in memory."""

    frames: list[list[Dealt]] = field(default_factory=list)
    closed: bool = False

    def append(self, dealt: list[Dealt], *, lane: int) -> Frame:
        assert lane == NO_LANE
        assert dealt
        self.frames.append(dealt)
        return Frame("segment", lane, [each.placed(0, 0, 0) for each in dealt])

    def close(self) -> None:
        self.closed = True

    def columns(self, stream: str = "clicks", reader: str = "") -> list[Columns]:
        return [each.columns for frame in self.frames for each in frame if (each.stream, each.reader) == (stream, reader)]

    @property
    def numbers(self) -> list[int]:
        return sorted(minor for columns in self.columns() for minor in columns.minors)


class Harness:
    """An injector of clicks around an iterable, with what it fed."""

    def __init__(
        self, values: Iterable[Any] | Callable[[int], Iterator[Any]], *, position: int = 0, lanes: int = 1, by: bool = False, **options: Any
    ) -> None:
        topology = ms.Topology("clicks")
        options = {
            "key": lambda c: c.user,
            "timestamp": lambda c: ms.Timestamp(c.at),
            "low_watermark": ms.BoundedDisorder(ms.SECOND),
            **options,
        }
        stream = topology.inject("clicks", ms.values(values, Click), **options)
        topology.compute("count", Count()).reads(stream.by(lambda c: c.page) if by else stream)
        graph = compile_topology(topology)
        injection = graph.injections["clicks"]
        self.writer, self.fed, self.room = FakeWriter(), queue.Queue[Fed](), threading.Event()
        self.all: list[Fed] = []
        self.room.set()
        intake = Intake(injection, Dealer(graph, Lanes(16, lanes)))
        context = context_of(injection, SourceProgress(positions={"": position} if position else {}))
        self.thread = SourceThread(injection, context, intake, self.writer, self, clock=lambda: NOW)

    # The door, for the thread.

    def feed(self, fed: Fed) -> None:
        self.all.append(fed)
        self.fed.put(fed)

    def offer(self, ranges: list[Range]) -> None:
        raise AssertionError("lanes read no values")

    def unread(self, injector: str, partitions: list[str] | None) -> None:
        assert partitions in (None, [], [""]), "the last while there is no room for it"

    def has_room(self, timeout: float) -> bool:
        return self.room.wait(timeout)

    @property
    def taker(self) -> Taker:
        wait_until(lambda: self.thread._reader is not None)
        assert isinstance(self.thread._reader, ValuesReader)
        return self.thread._reader._taker

    def run(self) -> Harness:
        self.thread.start()
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()
        return self


def position_of(fed: Fed) -> int:
    return int(fed.positions[""])


def clicks(*numbers: int) -> list[Click]:
    return [Click(f"u{n % 3}", T + n) for n in numbers]


def test_all_values_are_fed_in_order_and_then_the_end() -> None:
    done = Harness(clicks(*range(20_000))).run()
    assert done.thread.error is None
    assert done.writer.numbers == list(range(20_000))
    assert [position_of(fed) for fed in done.all[:-1]] == sorted({position_of(fed) for fed in done.all[:-1]}), "each brings some"
    assert sum(fed.injected for fed in done.all) == position_of(done.all[-1]) == 20_000
    assert max(fed.marks[""] for fed in done.all[:-1]) == ms.Timestamp(T + 19_999) - ms.SECOND
    assert [fed.finished for fed in done.all] == [None] * (len(done.all) - 1) + [True]
    assert (done.all[0].open_segments, done.all[-1].open_segments) == (["segment"], [])
    assert done.writer.closed


def test_sparse_values_go_at_once() -> None:
    """The next value comes only when the one before it was fed: whoever waited for more would wait for ever."""
    harness: Harness

    def values(taken: int) -> Iterator[Click]:
        for n in range(100):
            yield from clicks(n)
            assert position_of(harness.fed.get(timeout=TIMEOUT)) == n + 1

    harness = Harness(values)
    assert harness.run().thread.error is None
    assert len(harness.all) == 101


def test_records_are_dealt_to_the_lanes_of_their_readers() -> None:
    done = Harness([Click(f"u{n}", T, f"/{n % 2}") for n in range(40)], lanes=2, by=True).run()
    dealt = [each for frame in done.writer.frames for each in frame]
    assert {(each.origin, each.major) for each in dealt} == {("clicks", 0)}
    assert done.writer.numbers == list(range(40))
    readers = {each.reader for each in dealt} - {""}
    assert len(readers) == 1
    assert {key for columns in done.writer.columns(reader=readers.pop()) for key in columns.keys} == {"/0", "/1"}


def test_a_restart_asks_for_what_no_commit_has() -> None:
    asked: list[int] = []

    def values(taken: int) -> Iterator[Click]:
        asked.append(taken)
        return iter(clicks(*range(taken, 10)))

    done = Harness(values, position=4).run()
    assert asked == [4]
    assert done.writer.numbers == list(range(4, 10))
    listed = Harness(clicks(*range(10)), position=4).run()
    assert listed.writer.numbers == list(range(4, 10))
    assert [key for columns in listed.writer.columns() for key in columns.keys] == [f"u{n % 3}" for n in range(4, 10)]
    assert position_of(listed.all[-1]) == 10


def test_an_iterator_that_was_used_is_refused() -> None:
    once = iter(clicks(1, 2))
    assert Harness(once).run().thread.error is None
    error = Harness(once).run().thread.error
    assert isinstance(error, ms.RecordError)
    assert str(error).startswith(
        "injector 'clicks': its values: TopologyError: this iterator was used by an earlier run; "
        "give a list, or a function of the number of values taken"
    )


@pytest.mark.parametrize("what", [ValueError("no more"), SystemExit(3)])
def test_an_error_of_the_iterable_comes_after_what_it_gave_with_its_traceback(what: BaseException) -> None:
    def breaking(taken: int) -> Iterator[Click]:
        yield from clicks(1, 2)
        raise what

    done = Harness(breaking).run()
    assert done.writer.numbers == [0, 1]
    assert not any(fed.finished for fed in done.all)
    text = str(done.thread.error)
    assert done.thread.error is not None
    assert done.thread.error.__cause__ is what
    assert text.startswith(f"injector 'clicks': its values: {type(what).__name__}: {what}\n\nTraceback")
    assert "in breaking" in text
    assert "millstream/sources" not in text


def test_a_value_that_is_changed_later_is_taken_as_it_was() -> None:
    def values(taken: int) -> Iterator[Click]:
        one = Click("", T)
        for n in range(500):
            one.user = f"u{n}"
            yield one

    done = Harness(values).run()
    assert [key for columns in done.writer.columns() for key in columns.keys] == [f"u{n}" for n in range(500)]


# What cannot be a record.

BAD: list[tuple[Any, str]] = [
    ({"user": "anna"}, "it cannot be decoded: Object missing required field `at`"),
    (Click("anna", 7), "out of range for a record"),
    (Click("bad", T), "its key is 7; a key is text"),
]


def key(click: Click) -> Any:
    return 7 if click.user == "bad" else click.user


def timestamp(click: Click) -> ms.Timestamp:
    """A small number is long ago."""
    return ms.Timestamp(click.at if click.at > 10 else -(10**17))


@pytest.mark.parametrize(("bad", "why"), BAD)
def test_a_bad_value_stops_the_run_and_is_named(bad: Any, why: str) -> None:
    done = Harness([*clicks(1), bad], key=key, timestamp=timestamp).run()
    assert isinstance(done.thread.error, ms.RecordError)
    assert done.thread.error.where.startswith("injector 'clicks', value {")
    assert why in done.thread.error.cause
    assert done.thread.error.cause.endswith("or set such values aside with inject(..., errors=ms.Errors.DEAD_LETTER)")


def test_bad_values_are_set_aside_and_counted() -> None:
    values = [*clicks(0), *(bad for bad, _ in BAD), *clicks(4)]
    done = Harness(values, key=key, timestamp=timestamp, errors=ms.Errors.DEAD_LETTER).run()
    assert done.thread.error is None
    assert (sum(fed.injected for fed in done.all), sum(fed.dead for fed in done.all)) == (2, 3)
    assert done.writer.numbers == [0, 4]
    letters = done.writer.columns("dead letters")
    assert [minor for columns in letters for minor in columns.minors] == [1, 2, 3]
    assert b'"id":"clicks/0/1"' in letters[0].values[0]
    assert {each.origin for frame in done.writer.frames for each in frame} == {"clicks"}


def test_a_far_future_is_always_set_aside_and_moves_nothing() -> None:
    done = Harness([*clicks(0), Click("anna", T + 10**12)]).run()
    assert done.thread.error is None
    assert sum(fed.dead for fed in done.all) == 1
    assert max(fed.marks[""] for fed in done.all if fed.marks) == NOW - ms.SECOND


# Silence, and too much.


def test_a_silent_iterable_does_not_hold_up_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "TAKER_TIMEOUT", 0.01)
    silent, begun = threading.Event(), threading.Event()

    def values(taken: int) -> Iterator[Click]:
        yield from clicks(0)
        begun.set()
        silent.wait(TIMEOUT)

    harness = Harness(values)
    harness.thread.start()
    assert position_of(harness.fed.get(timeout=TIMEOUT)) == 1
    assert begun.wait(TIMEOUT)
    harness.thread.stop()
    harness.thread.join(TIMEOUT)
    assert not harness.thread.is_alive()
    assert harness.thread.error is None
    assert len(harness.all) == 1, "it has not finished"
    assert harness.thread.left_running == "millstream takes values of clicks"
    silent.set()


def test_what_it_was_given_before_it_finishes_goes_in() -> None:
    silent, given = threading.Event(), threading.Event()

    def values(taken: int) -> Iterator[Click]:
        yield from clicks(*range(1000))
        given.set()
        silent.wait(TIMEOUT)
        yield from clicks(1000)

    harness = Harness(values)
    harness.room.clear()
    harness.thread.start()
    assert given.wait(TIMEOUT)
    harness.thread.finish()
    harness.room.set()
    harness.thread.join(TIMEOUT)
    assert not harness.thread.is_alive()
    silent.set()
    assert position_of(harness.all[-1]) == sum(fed.injected for fed in harness.all) == 1000
    assert not any(fed.finished for fed in harness.all), "more may come, for the next run"


def test_it_is_bounded_ahead_and_a_full_backlog_does_not_hold_up_a_stop() -> None:
    taken: list[int] = []

    def values(_: int) -> Iterator[Click]:
        for n in range(10 * MAX_AHEAD):
            taken.append(n)
            yield from clicks(n)

    harness = Harness(values)
    harness.room.clear()
    harness.thread.start()
    taker = harness.taker
    wait_until(lambda: taker._full)
    assert MAX_AHEAD <= len(taken) <= MAX_AHEAD + MIN_PER_SLICE, "a slice waits for room"
    assert harness.all == []
    harness.room.set()
    assert harness.fed.get(timeout=TIMEOUT).injected <= MIN_PER_SLICE
    harness.room.clear()
    harness.thread.stop()
    harness.thread.join(TIMEOUT)
    assert not harness.thread.is_alive()
    taker.join(TIMEOUT)
    assert not taker.is_alive()
    in_frames = sum(fed.injected for fed in harness.all)  # more slices than one may have gone before there was no room
    assert len(taken) <= in_frames + MAX_AHEAD + MAX_PER_SLICE + 1, (
        "a slice that waited, and the one beyond was asked for when it was told to stop"
    )


def test_slices_grow_with_what_fits_into_their_time() -> None:
    assert slice_size(50, 1, 0.1) == 50, "a slice that was not full says nothing"
    assert slice_size(50, 50, 0.0001) == 200
    assert slice_size(2000, 2000, 0.004) == 2500
    assert slice_size(2000, 2000, 0.010) == 1000
    assert slice_size(50, 50, 9.0) == MIN_PER_SLICE
    assert slice_size(5000, 5000, 0.0) == MAX_PER_SLICE


def test_values_that_come_with_the_end_are_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has come when it looks; right after that the only value comes, and the end."""
    go_on = threading.Event()

    def values(taken: int) -> Iterator[Click]:
        assert go_on.wait(TIMEOUT)
        yield from clicks(0)

    harness, take = Harness(values), Taker.take

    def look_too_early(taker: Taker, at_most: int) -> list[bytes]:
        found = take(taker, at_most)
        go_on.set()
        taker.join(TIMEOUT)
        return found

    monkeypatch.setattr(Taker, "take", look_too_early)
    assert harness.run().writer.numbers == [0]
    assert [fed.finished for fed in harness.all] == [None, True]
