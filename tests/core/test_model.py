"""The whole of it: any records, in any order and any split into epochs, against a fold over a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Event, inject, tally

KEYS = ["a", "b", "ключ", ""]
LAST = 6_000_000  # records lie within six seconds


@dataclass(frozen=True)
class Counted:
    key: str
    second: int
    count: int


@dataclass
class Second:
    count: int
    first: ms.Timestamp


class PerSecond(ms.Computation[dict[ms.Timestamp, Second]]):
    """Counts the records of a key, second by second; says it at the time of the first of them, and holds that."""

    counts: ms.Output[Counted]
    late: ms.Output[Event]

    def process_record(self, record: ms.Record[Event]) -> None:
        if record.value.word == "bad":
            raise ValueError
        start = ms.floor(record.timestamp, ms.SECOND)
        second = self.state.setdefault(start, Second(0, record.timestamp))
        second.count += 1
        second.first = min(second.first, record.timestamp)
        self.set_timer(f"{start}", at=start + ms.SECOND, hold=second.first)

    def process_timer(self, timer: ms.Timer) -> None:
        start = timer.at - ms.SECOND
        second = self.state.pop(start)
        self.counts.produce(Counted(self.key, start, second.count), timestamp=second.first)


class Total(ms.Computation[int]):
    """Adds up the counts of a second over all keys; says it once, when no more can come."""

    totals: ms.Output[int]

    def process_record(self, record: ms.Record[Counted]) -> None:
        self.state += record.value.count
        self.set_timer("whole", at=ms.Timestamp(record.value.second) + ms.SECOND)

    def process_timer(self, timer: ms.Timer) -> None:
        self.totals.produce(self.state, timestamp=timer.at)
        del self.state


class Crashing(Driver):
    """Crashes just before it commits an epoch, where it is told to."""

    crashes: Iterator[bool] = iter(())

    def epoch(self, *, always: bool = False) -> bool:
        if next(self.crashes, False):
            self.crash()
        return super().epoch(always=always)


class World:
    def __init__(self, late: Any = ms.Late.PROCESS, *, divert: bool = False, crashes: Iterable[bool] = ()) -> None:
        topology = ms.Topology("world")
        self.events, self.per_second, self.total = inject(topology), PerSecond(), Total()
        policy = ms.Divert(self.per_second.late) if divert else late
        topology.compute("per-second", self.per_second, errors=ms.Errors.DEAD_LETTER).reads(self.events, late=policy)
        topology.compute("total", self.total).reads(self.per_second.counts.by(lambda counted: f"{counted.second}"))
        self.driver = Crashing(topology)
        self.driver.crashes = iter(crashes)

    def counts(self) -> Counter[tuple[str, int, int]]:
        return Counter((found.value.key, found.value.second, found.value.count) for found in self.driver.read(self.per_second.counts))

    def totals(self) -> Counter[tuple[str, int]]:
        return Counter((found.key, found.value) for found in self.driver.read(self.total.totals))


def second_of(event: Event) -> int:
    return event.at // 1_000_000 * 1_000_000


def folded(events: list[Event]) -> tuple[Counter[tuple[str, int, int]], Counter[tuple[str, int]]]:
    """What the topology must say of these events, and each of it once."""
    by_key = Counter((event.key, second_of(event)) for event in events)
    in_all = Counter(second_of(event) for event in events)
    return Counter((*place, count) for place, count in by_key.items()), Counter((f"{second}", count) for second, count in in_all.items())


EVENTS = st.builds(
    Event, st.sampled_from(KEYS), st.integers(0, LAST) | st.sampled_from([0, 999_999, 1_000_000, 2_000_000]), st.just("good")
)


@st.composite
def epochs(draw: st.DrawFn) -> list[tuple[list[Event], int]]:
    """Chunks of records in any order, each followed by a promise that the rest keeps."""
    chunks = draw(st.lists(st.lists(EVENTS, max_size=6), max_size=6))
    promised = []
    for number in range(len(chunks)):
        rest = [event.at for chunk in chunks[number + 1 :] for event in chunk]
        promised.append(draw(st.integers(0, min(rest, default=LAST))))
    return list(zip(chunks, promised, strict=True))


@settings(max_examples=120, deadline=None)
@given(epochs())
def test_order_and_epochs_change_nothing_while_the_promise_is_kept(epochs: list[tuple[list[Event], int]]) -> None:
    world = World(late=ms.Late.DROP)
    for chunk, promise in epochs:
        world.driver.send(world.events, *chunk)
        world.driver.advance(low_watermark=ms.Timestamp(promise))
    world.driver.finish()
    assert (world.counts(), world.totals()) == folded([event for chunk, _ in epochs for event in chunk])
    # What a computation holds is never late for those who read it.
    assert tally(world.driver, "per-second").late == tally(world.driver, "total").late == 0
    assert world.driver.keys("per-second") == world.driver.keys("total") == 0
    assert world.driver.low_watermark("total") == ms.END_OF_TIME


@settings(max_examples=80, deadline=None)
@given(epochs())
def test_what_is_complete_is_said_at_once_and_nothing_else(epochs: list[tuple[list[Event], int]]) -> None:
    world = World(late=ms.Late.DROP)
    sent: list[Event] = []
    best = 0
    for chunk, promise in epochs:
        world.driver.send(world.events, *chunk)
        world.driver.advance(low_watermark=ms.Timestamp(promise))
        sent += chunk
        best = max(best, promise)
        complete = [event for event in sent if second_of(event) + 1_000_000 <= best]
        assert (world.counts(), world.totals()) == folded(complete)


@settings(max_examples=80, deadline=None)
@given(epochs(), st.lists(st.booleans(), min_size=1, max_size=30))
def test_crashes_change_nothing(epochs: list[tuple[list[Event], int]], crashes: list[bool]) -> None:
    whole, broken = World(), World(crashes=crashes)
    for world in (whole, broken):
        for chunk, promise in epochs:
            world.driver.send(world.events, *chunk)
            world.driver.advance(low_watermark=ms.Timestamp(promise))
        world.driver.finish()
    assert broken.driver.read(broken.per_second.counts) == whole.driver.read(whole.per_second.counts)
    assert broken.driver.read(broken.total.totals) == whole.driver.read(whole.total.totals)
    assert broken.driver._ledger == whole.driver._ledger


SPOILT = st.builds(Event, st.sampled_from(KEYS), st.integers(0, LAST), st.sampled_from(["good", "good", "good", "bad"]))


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.lists(SPOILT, max_size=6), st.integers(0, LAST)), max_size=6), st.sampled_from([ms.Late.DROP, "divert"]))
def test_every_record_is_applied_dropped_diverted_or_dead(epochs: list[tuple[list[Event], int]], late: Any) -> None:
    world = World(late, divert=late == "divert")
    applied: list[Event] = []
    lost: list[Event] = []
    dead = best = 0
    for chunk, promise in epochs:
        world.driver.send(world.events, *chunk)
        world.driver.advance(low_watermark=ms.Timestamp(promise))
        for event in chunk:
            if event.at < best:
                lost.append(event)
            elif event.word == "bad":
                dead += 1
            else:
                applied.append(event)
        best = max(best, promise)
    world.driver.finish()
    found = tally(world.driver, "per-second")
    assert found.received == sum(len(chunk) for chunk, _ in epochs) == found.applied + found.dropped + found.diverted + found.dead
    assert (found.applied, found.dropped + found.diverted, found.dead) == (len(applied), len(lost), dead)
    assert (found.dropped == 0) if late == "divert" else (found.diverted == 0)
    assert len(world.driver.dead_letters()) == dead
    assert Counter(found.value for found in world.driver.read(world.per_second.late)) == Counter(lost if late == "divert" else [])
    assert (world.counts(), world.totals()) == folded(applied)
    assert tally(world.driver, "total").late == 0
