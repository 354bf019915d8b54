"""Records that wait for their time, all of one key: process time of a record that comes, waits and goes, by how many wait.

Without Spark: epochs of a lane, each of which brings as many records as its low watermark lets go, so that so many always wait.
They come in order, or each at any place among those that wait. All figures are ratios to as few as an epoch brings,
which none is to exceed.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator

import millstream as ms
from bench.goals import at_most
from bench.rows import START, Dictionary, Event
from millstream.core.arrivals import Packet, gather
from millstream.core.epoch import Header
from millstream.core.graph import compile_topology
from millstream.core.low_watermark import LowWatermark
from millstream.core.mill import Mill
from millstream.core.parts import Columns
from millstream.mill.held import Held

WAITING = [100, 10_000, 100_000]
RECORDS = 100  # of an epoch
EPOCHS = 60
ROUNDS = 5


class InOrder(ms.Computation[int]):
    order = ms.Order.EVENT_TIME
    out: ms.Output[int]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1
        self.out.produce(self.state, timestamp=record.timestamp)


class Lane:
    """One bucket, one key, and so many records that wait."""

    def __init__(self, waiting: int, *, shuffled: bool) -> None:
        topology = ms.Topology("bench")
        stream = topology.inject(
            "in",
            ms.values([], Event),
            key=lambda event: event.key,
            timestamp=lambda event: ms.Timestamp(event.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        topology.compute("it", InOrder()).reads(stream)
        self._mill, self.held = Mill(compile_topology(topology), lambda key: 0), Held(Dictionary(), memory=None)
        self._number, self._low_watermark = 0, START
        self._times = self._coming(waiting, shuffled)
        for _ in range(waiting // RECORDS):
            self.epoch(self.packet(), 0)

    def _coming(self, waiting: int, shuffled: bool) -> Iterator[int]:
        """Each time once: all those of one stretch, then those of the next, which is as long as what waits."""
        start, chance = START, random.Random(1)
        while True:
            stretch = list(range(start, start + waiting))
            if shuffled:
                chance.shuffle(stretch)
            yield from stretch
            start += waiting

    def packet(self) -> Packet:
        self._number += 1
        stamps = sorted(next(self._times) for _ in range(RECORDS))
        values = [b'{"key":"k","at":%d,"n":%d}' % (at, n) for n, at in enumerate(stamps)]
        columns = Columns(["k"] * RECORDS, values, [ms.Timestamp(at) for at in stamps], list(range(RECORDS)))
        return Packet((0,), "in", "in", self._number, columns)

    def epoch(self, packet: Packet, let_go: int) -> None:
        """Brings these, and lets go of so many."""
        before, self._low_watermark = self._low_watermark, self._low_watermark + let_go
        now = ms.Timestamp(self._low_watermark)
        header = Header(self._number, now, {"it": LowWatermark(now, now)}, {"it": ms.Timestamp(before)})
        outcome = self._mill.run(header, gather([packet], {"in"}), {"it": [0]}, self.held)
        outcome.changes.encode()
        (report,) = (summary.reports["it"] for summary in outcome.summaries)
        self.waiting, self.applied = report.waiting, outcome.summaries[0].tallies["it"].applied


def measure(waiting: int, *, shuffled: bool) -> float:
    """Seconds of process time for a record."""
    lane = Lane(waiting, shuffled=shuffled)
    gc.collect()
    gc.freeze()
    spent = 0.0
    for _ in range(EPOCHS):
        packet = lane.packet()
        began = time.process_time()
        lane.epoch(packet, RECORDS)
        spent += time.process_time() - began
        assert (lane.waiting, lane.applied) == (waiting, RECORDS)
    gc.unfreeze()
    return spent / (EPOCHS * RECORDS)


def main() -> None:
    for shuffled in (False, True):
        found: dict[int, list[float]] = {waiting: [] for waiting in WAITING}
        for _ in range(ROUNDS):
            for waiting in WAITING:
                found[waiting].append(measure(waiting, shuffled=shuffled))
        least = {waiting: min(times) for waiting, times in found.items()}
        how, few = "at any place" if shuffled else "in order", least[WAITING[0]]
        print(f"records of one key that wait, coming {how}: {few * 1e6:.1f} µs each with {WAITING[0]}", flush=True)
        for waiting in WAITING[1:]:
            at_most(f"with {waiting:,}, for a record", least[waiting] / few, 1.0)


if __name__ == "__main__":
    main()
