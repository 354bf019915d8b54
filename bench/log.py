"""Planning and publishing cost the same however many epochs a log has.

Epochs are committed as the planner commits them, with the maintenance that a run does beside it. At the end the old log
and a young one take turns, with the maintenance of a run for both, so that both are measured under the same load.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import msgspec
import pyarrow as pa

from millstream.core.backlog import Position
from millstream.log.folder import Folder, write_json
from millstream.log.maintenance import Keeper
from millstream.log.staged import RECORDS, stage
from millstream.log.table import Table, newest_version, read_commit

YOUNG = 100  # epochs of the log that the old one is compared with
SAMPLE = 200  # epochs of each that are measured
MAINTAINED = 10  # epochs between two looks at a table: a commit reads all that came after the last checkpoint
NOTE = msgspec.json.encode({"plan": "x" * 2000})
ONE = pa.table(
    {"key": ["k"], "value": ["1"], "timestamp": pa.array([0], pa.timestamp("us", "UTC")), "epoch": [0], "sequence": [0]}, schema=RECORDS
)


class Log:
    """A table of the mill, and the keeper that looks after it."""

    def __init__(self, at: Path) -> None:
        self._folder = Folder(at)
        self._table = Table(self._folder.table("mill"), "mill", 1)
        self._table.path.mkdir(parents=True)
        self._table.create()
        self._table.raise_fence()
        self._keeper = Keeper(self._folder, "mill", retention=None, fence=1)
        self._epoch = 0

    def commit(self) -> float:
        """One epoch: what publishing it and looking for the next one takes. Every so many, the table is looked after."""
        files = stage(self._table.path, "s", ONE, epoch=self._epoch)
        version = newest_version(self._table.path)
        began = time.perf_counter()
        self._table.commit(files, NOTE, writer="mill", epoch=self._epoch)
        read_commit(self._table.path, "mill", version + 1)
        took = time.perf_counter() - began
        self._epoch += 1
        if self._epoch % MAINTAINED == 0:
            write_json(self._folder.consumer("mill"), {"mill": Position(version + 2)}, durable=False)
            self._keeper.look_after()
        return took

    def files(self) -> int:
        return len(list((self._table.path / "_delta_log").iterdir()))


def main(epochs: int) -> None:
    print(f"planning and publishing, up to {epochs:,} epochs", flush=True)
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as base:
        old, young = Log(Path(base) / "old"), Log(Path(base) / "young")
        with mock.patch("os.fsync"):  # to grow faster; what is measured below waits for the disk as a run does
            for epoch in range(epochs):
                old.commit()
                if epoch % 10_000 == 9_999:
                    print(f"  {epoch + 1:,} epochs, {old.files()} files in _delta_log", flush=True)
        for _ in range(YOUNG):
            old.commit()
            young.commit()
        costs = [(old.commit(), young.commit()) for _ in range(SAMPLE)]
        ratio = statistics.median(a for a, _ in costs) / statistics.median(b for _, b in costs)
        print(f"an epoch after {epochs:,} others costs {ratio:.2f} times what it costs after {YOUNG}")
