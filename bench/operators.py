"""What a ready-made operator costs beside the same by hand: on the same core, in one process, in turns. Ratios, not seconds.

A window may cost a fifth more than the same by hand. For the rest there is no bound: what it costs is to be known.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

import millstream as ms
from bench.goals import at_most
from millstream import aggregate
from millstream.core.graph import compile_topology
from millstream.core.ledger import SourceChange
from millstream.core.low_watermark import Mark
from millstream.testing.run import MemoryRun, Stored
from millstream.window import Every, Hopping, Session, Tumbling, Window, WindowTable

NOON = 1_790_000_000_000_000
KEYS = 200
ROUNDS = 7
BY_HAND = "by hand"  # in the name of a case: the bound is for these
MOST = 1.2


class ByHand(ms.Computation[dict[ms.Timestamp, int]]):
    """A count for each window, as the guide writes it."""

    counts: ms.Output[int]

    def __init__(self, size: ms.Duration) -> None:
        self.size = size

    def process_record(self, record: ms.Record[int]) -> None:
        start = ms.floor(record.timestamp, self.size)
        self.state[start] = self.state.get(start, 0) + 1
        self.set_timer(f"{start}", at=start + self.size)

    def process_timer(self, timer: ms.Timer) -> None:
        count = self.state.pop(timer.at - self.size)
        self.counts.produce(count, timestamp=timer.at)


class HoppingByHand(ms.Computation[dict[ms.Timestamp, int]]):
    """Each window for itself."""

    counts: ms.Output[int]

    def __init__(self, size: ms.Duration, every: ms.Duration) -> None:
        self.size, self.every = size, every

    def process_record(self, record: ms.Record[int]) -> None:
        last = ms.floor(record.timestamp, self.every)
        for back in range(self.size // self.every):
            start = last - back * self.every
            self.state[start] = self.state.get(start, 0) + 1
            self.set_timer(f"{start}", at=start + self.size)

    def process_timer(self, timer: ms.Timer) -> None:
        count = self.state.pop(timer.at - self.size)
        self.counts.produce(count, timestamp=timer.at)


def seconds(make: Callable[[], Any], *, per_key: int, epochs: int) -> float:
    """How long epochs of a second of event time take, with so many records of each key in each."""
    topology = ms.Topology("bench")
    stream = topology.inject(
        "in", ms.values([], int), key=str, timestamp=lambda n: ms.Timestamp(n), low_watermark=ms.BoundedDisorder(ms.SECOND)
    )
    topology.compute("it", make()).reads(stream)
    run = MemoryRun(compile_topology(topology), clock=ms.Timestamp(NOON))
    number, spent = 0, 0.0
    for epoch in range(epochs):
        start = NOON + epoch * 1_000_000
        records = []
        for n in range(per_key * KEYS):
            when = ms.Timestamp(start + n * 1_000_000 // (per_key * KEYS))
            records.append(Stored(("in", 0, number), f"k{n % KEYS}", msgspec.json.encode(n), when))
            number += 1
        begun = time.process_time()
        run.feed("in", records)
        marks = {"": Mark(ms.Timestamp(start), ms.Timestamp(NOON))}
        run.change("in", SourceChange(injected=len(records), positions={"": number}, marks=marks), clock=ms.Timestamp(start))
        while run.epoch(ms.Timestamp(start)):
            pass
        spent += time.process_time() - begun
    return spent


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], int, int]] = {
    "tumbling count / by hand, 10 records a window": (
        lambda: Window(int, Tumbling(ms.SECOND), aggregate.count()),
        lambda: ByHand(ms.SECOND),
        10,
        20,
    ),
    "tumbling count / by hand, 60 epochs a window": (
        lambda: Window(int, Tumbling(ms.MINUTE), aggregate.count()),
        lambda: ByHand(ms.MINUTE),
        1,
        120,
    ),
    "hopping by panes, 10 hops / each window by hand": (
        lambda: Window(int, Hopping(10 * ms.SECOND, every=ms.SECOND), aggregate.count()),
        lambda: HoppingByHand(10 * ms.SECOND, ms.SECOND),
        10,
        20,
    ),
    "corrections / told once": (
        lambda: WindowTable(int, Tumbling(ms.SECOND), aggregate.count(), correct=10 * ms.SECOND),
        lambda: Window(int, Tumbling(ms.SECOND), aggregate.count()),
        10,
        20,
    ),
    "early values, 10 a window / without": (
        lambda: WindowTable(
            int, Tumbling(10 * ms.SECOND), aggregate.count(), correct=0 * ms.SECOND, early=Every(ms.SECOND, clock=ms.Clock.LOW_WATERMARK)
        ),
        lambda: WindowTable(int, Tumbling(10 * ms.SECOND), aggregate.count(), correct=0 * ms.SECOND),
        10,
        30,
    ),
    "sessions / tumbling": (
        lambda: Window(int, Session(2 * ms.SECOND), aggregate.count()),
        lambda: Window(int, Tumbling(ms.SECOND), aggregate.count()),
        10,
        20,
    ),
    "an exact sum of floats / a count": (
        lambda: Window(int, Tumbling(ms.SECOND), aggregate.sum(lambda n: n / 7)),
        lambda: Window(int, Tumbling(ms.SECOND), aggregate.count()),
        10,
        20,
    ),
}


def main() -> None:
    print(f"{'operators, on one core':<52} {'ratio':>6} {'of':>14}")
    for name, (one, other, per_key, epochs) in CASES.items():
        ratios, base = [], []
        for _ in range(ROUNDS):
            ours, theirs = (seconds(make, per_key=per_key, epochs=epochs) for make in (one, other))
            ratios.append(ours / theirs)
            base.append(theirs / (per_key * KEYS * epochs) * 1e6)
        ratio = statistics.median(ratios)
        print(f"{name:<52} {ratio:>6.2f} {statistics.median(base):>8.1f} µs each", flush=True)
        if BY_HAND in name:
            at_most("a window against the same by hand", ratio, MOST)


if __name__ == "__main__":
    main()
