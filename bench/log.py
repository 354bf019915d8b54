"""Planning and publishing cost the same however many epochs a log has.

The mill's own planner publishes and plans, epoch by epoch, each due by a timer on the wall clock, with the maintenance
that a run does beside it. At the end an old log and a young one take turns, so that both are measured under the same load.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import pyarrow as pa

import millstream as ms
from millstream.core.backlog import Limits
from millstream.core.epoch import Report, Summary, Tally
from millstream.core.graph import MILL, compile_topology
from millstream.core.plan import before_all
from millstream.core.row import Minima
from millstream.log.folder import Folder, write_json
from millstream.log.maintenance import Keeper
from millstream.log.staged import RECORDS, stage
from millstream.spark.owner import take_over
from millstream.spark.planner import Manifest, Planner, manifest_path

YOUNG = 100  # epochs of the log that the old one is compared with
SAMPLE = 200  # epochs of each that are measured
MAINTAINED = 10  # epochs between two looks at the table
STEP = 5_000  # epochs after which it says what one takes, with the maintenance
NOW = ms.Timestamp(0)
ONE = pa.table(
    {"key": ["k"], "value": ["1"], "timestamp": pa.array([0], pa.timestamp("us", "UTC")), "epoch": [0], "sequence": [0]}, schema=RECORDS
)


class Clock(ms.Computation[None]):
    """It is never run: what it would do is written by hand."""

    ticks: ms.Output[int]

    def process_record(self, record: ms.Record[str]) -> None: ...


class Log:
    """The folder of a run, without Spark: what its tasks would leave is written here."""

    def __init__(self, at: Path) -> None:
        topology = ms.Topology("bench")
        told = topology.inject("told", ms.values([], str), key=str, timestamp=lambda _: NOW, low_watermark=ms.BoundedDisorder(ms.SECOND))
        topology.compute("clock", Clock()).reads(told)
        graph = compile_topology(topology)
        self._folder = Folder(at)
        self._folder.open()
        self._fence = take_over(self._folder, graph)
        limits = Limits(1_000_000, 1 << 30)
        self._planner = Planner(self._folder, graph, fence=self._fence, buckets=1, limits=limits, clock=lambda: NOW)
        self._keeper = Keeper(self._folder, MILL, readers=[MILL], retention=None, fence=self._fence)
        self._plan = self._planner.next_plan(before_all(graph), wait=0)

    def epoch(self) -> float:
        """What publishing one and planning the next one takes."""
        assert self._plan is not None
        number = self._plan.epoch
        files = stage(self._folder.table(MILL), "clock.ticks", ONE, epoch=number)
        summary = Summary(0, {"clock": Report(Minima(wall=NOW), 1, 1)}, {"clock": Tally(fired=1)})
        write_json(manifest_path(self._folder, number, self._fence), Manifest(number, self._fence, files, [summary]))
        began = time.perf_counter()
        self._plan = self._planner.next_plan(self._plan, wait=0)
        took = time.perf_counter() - began
        if number % MAINTAINED == 0:
            self._keeper.look_after()
        return took

    def files(self) -> int:
        return len(list((self._folder.table(MILL) / "_delta_log").iterdir()))


def main(epochs: int) -> None:
    print(f"planning and publishing, up to {epochs:,} epochs", flush=True)
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as base:
        old, young = Log(Path(base) / "old"), Log(Path(base) / "young")
        with mock.patch("os.fsync"):  # to grow faster; what is measured below waits for the disk as a run does
            began = time.process_time()
            for epoch in range(1, epochs + 1):
                old.epoch()
                if epoch % STEP == 0:
                    each = (time.process_time() - began) / STEP * 1000
                    print(f"  {epoch:,} epochs, {old.files()} files in _delta_log, {each:.1f} ms of CPU for each of the last", flush=True)
                    began = time.process_time()
        for _ in range(YOUNG):
            old.epoch()
            young.epoch()
        costs = [(old.epoch(), young.epoch()) for _ in range(SAMPLE)]
        ratio = statistics.median(a for a, _ in costs) / statistics.median(b for _, b in costs)
        print(f"an epoch after {epochs:,} others costs {ratio:.2f} times what it costs after {YOUNG}")
