"""What joins and tables cost beside the same by hand: on the same core, in one process, in turns. Ratios, not seconds.

No bound is set for them: an operator keeps what its twin by hand leaves out, such as what is late, and misses.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.ledger import SourceChange
from millstream.core.low_watermark import Mark
from millstream.join import AsOf, Join, Lookup, Misses
from millstream.join.sides import Left, Pair, Right
from millstream.table import Newest
from millstream.testing.run import MemoryRun, Stored

NOON = 1_790_000_000_000_000
KEYS = 200
ROUNDS = 7
REACH = 2 * ms.SECOND


@dataclass
class Both:
    left: list[tuple[ms.Timestamp, int]] = field(default_factory=list)
    right: list[tuple[ms.Timestamp, int]] = field(default_factory=list)


class JoinByHand(ms.Computation[Both]):
    """Pairs within the interval and nothing else, as one would write them."""

    pairs: ms.Output[Pair[int, int]]

    def process_record(self, record: ms.Record[Left[int] | Right[int]]) -> None:
        at, value = record.timestamp, record.value.value
        if isinstance(record.value, Left):
            for other, right in self.state.right:
                if at <= other <= at + REACH:
                    self.pairs.produce(Pair(value, right), timestamp=other)
            self.state.left.append((at, value))
        else:
            for other, left in self.state.left:
                if other <= at <= other + REACH:
                    self.pairs.produce(Pair(left, value), timestamp=at)
            self.state.right.append((at, value))
        second = ms.floor(at, ms.SECOND)
        self.set_timer(f"{second}", at=second + ms.SECOND + REACH)

    def process_timer(self, timer: ms.Timer) -> None:
        self.state.left = [one for one in self.state.left if one[0] + REACH >= self.low_watermark]
        self.state.right = [one for one in self.state.right if one[0] >= self.low_watermark]


class LookupByHand(ms.Computation[int | None]):
    pairs: ms.Output[Pair[int, int]]

    def process_record(self, record: ms.Record[Left[int] | Right[ms.Change[int]]]) -> None:
        match record.value:
            case Right(value=change):
                self.state = change.after
            case Left(value=value):
                if self.state is not None:
                    self.pairs.produce(Pair(value, self.state), timestamp=record.timestamp)


class AsOfByHand(LookupByHand):
    """In the order of event time, the row as it stands is the one that was valid then."""

    order = ms.Order.EVENT_TIME


class LastByHand(ms.Computation[tuple[ms.Timestamp, int]]):
    """The newest of each key, told when it is another."""

    changes: ms.Output[ms.Change[int]]

    def initial_state(self) -> tuple[ms.Timestamp, int]:
        return ms.START_OF_TIME, 0

    def process_record(self, record: ms.Record[int]) -> None:
        since, last = self.state
        if record.timestamp >= since:
            self.changes.produce(ms.Change(last, record.value), timestamp=record.timestamp)
            self.state = (record.timestamp, record.value)


def interval(join: Any) -> Callable[..., None]:
    def place(topology: ms.Topology, left: Any, right: Any) -> None:
        topology.compute("it", join).reads(left.map(Left), right.map(Right))

    return place


def looked_up(join: Any) -> Callable[..., None]:
    def place(topology: ms.Topology, left: Any, right: Any) -> None:
        topology.compute("it", join).reads(left.map(Left), right.map(_inserted).map(Right))

    return place


def newest(table: Any) -> Callable[..., None]:
    def place(topology: ms.Topology, left: Any, right: Any) -> None:
        topology.compute("it", table).reads(left, right)

    return place


def _inserted(value: int) -> ms.Change[int]:
    return ms.Change(None, value)


def seconds(place: Callable[..., None], *, per_key: int, epochs: int) -> float:
    """How long epochs of a second of event time take, with so many records of each key on either side in each."""
    topology = ms.Topology("bench")
    left, right = (
        topology.inject(name, ms.values([], int), key=str, timestamp=lambda n: ms.Timestamp(n), low_watermark=ms.BoundedDisorder(ms.SECOND))
        for name in ("left", "right")
    )
    place(topology, left, right)
    run = MemoryRun(compile_topology(topology), clock=ms.Timestamp(NOON))
    number, spent = 0, 0.0
    for epoch in range(epochs):
        start = NOON + epoch * 1_000_000
        records = []
        for n in range(per_key * KEYS):
            when = ms.Timestamp(start + n * 1_000_000 // (per_key * KEYS))
            records.append((f"k{n % KEYS}", msgspec.json.encode(n), when))
        begun = time.perf_counter()
        for name in ("left", "right"):
            run.feed(name, [Stored((name, 0, number + n), *record) for n, record in enumerate(records)])
            marks = {"": Mark(ms.Timestamp(start), ms.Timestamp(NOON))}
            run.change(
                name, SourceChange(injected=len(records), positions={"": number + len(records)}, marks=marks), clock=ms.Timestamp(start)
            )
        number += len(records)
        while run.epoch(ms.Timestamp(start)):
            pass
        spent += time.perf_counter() - begun
    return spent


def joined(misses: Misses = Misses.NONE) -> Any:
    return Join(int, int, before=0 * ms.SECOND, after=REACH, misses=misses)


CASES: dict[str, tuple[Callable[[], Callable[..., None]], Callable[[], Callable[..., None]], int, int]] = {
    "interval join / by hand, 1 a key and second": (lambda: interval(joined()), lambda: interval(JoinByHand()), 1, 60),
    "interval join / by hand, 10 a key and second": (lambda: interval(joined()), lambda: interval(JoinByHand()), 10, 10),
    "with misses / without": (lambda: interval(joined(Misses.BOTH)), lambda: interval(joined()), 1, 60),
    "lookup / by hand": (lambda: looked_up(Lookup(int, int)), lambda: looked_up(LookupByHand()), 5, 20),
    "as of / by hand, in event time": (lambda: looked_up(AsOf(int, int)), lambda: looked_up(AsOfByHand()), 5, 20),
    "as of / lookup": (lambda: looked_up(AsOf(int, int)), lambda: looked_up(Lookup(int, int)), 5, 20),
    "newest / by hand": (lambda: newest(Newest(int)), lambda: newest(LastByHand()), 5, 20),
}


def main() -> None:
    print(f"{'joins and tables, on one core':<52} {'ratio':>6} {'of':>14}")
    for name, (one, other, per_key, epochs) in CASES.items():
        ratios, base = [], []
        for _ in range(ROUNDS):
            ours, theirs = (seconds(make(), per_key=per_key, epochs=epochs) for make in (one, other))
            ratios.append(ours / theirs)
            base.append(theirs / (2 * per_key * KEYS * epochs) * 1e6)
        print(f"{name:<52} {statistics.median(ratios):>6.2f} {statistics.median(base):>8.1f} µs each", flush=True)


if __name__ == "__main__":
    main()
