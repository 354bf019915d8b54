"""Planning and publishing cost the same however many epochs a log has: medians over the last epochs, as a ratio.

Epochs are committed as the planner commits them, with the maintenance that a run does beside it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import pyarrow as pa

from millstream.core.backlog import Position
from millstream.log.folder import Folder, write_json
from millstream.log.maintenance import Keeper
from millstream.log.staged import RECORDS, stage
from millstream.log.table import Table, read_commit

SAMPLE = 100


def grow(epochs: int, checkpoints: tuple[int, ...]) -> None:
    """Commit `epochs` epochs; print the cost of one commit and one look at the log around each of `checkpoints`."""
    records = pa.table(
        {"key": ["k"], "value": ["1"], "timestamp": pa.array([0], pa.timestamp("us", "UTC")), "epoch": [0], "sequence": [0]}, schema=RECORDS
    )
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as base:
        folder = Folder(base)
        table = Table(folder.table("mill"), "mill", 1)
        table.path.mkdir(parents=True)
        table.create()
        table.raise_fence()
        keeper = Keeper(folder, "mill", retention=None)
        note = msgspec.json.encode({"plan": "x" * 2000})
        costs: dict[int, float] = {}
        sample: list[float] = []
        for epoch in range(epochs):
            files = stage(table.path, "s", records, epoch=epoch)
            began = time.perf_counter()
            table.commit(files, note, writer="mill", epoch=epoch)
            read_commit(table.path, "mill", epoch + 2)
            sample.append(time.perf_counter() - began)
            if epoch % 10 == 9:
                write_json(folder.consumer("mill"), {"mill": Position(epoch)}, durable=False)
                keeper.look_after()
            if epoch + 1 in checkpoints:
                costs[epoch + 1] = statistics.median(sample[-SAMPLE:])
                live = len(list((table.path / "_delta_log").iterdir()))
                ratio = costs[epoch + 1] / costs[checkpoints[0]]
                print(
                    f"  after {epoch + 1:,} epochs: {ratio:.2f} of the cost after {checkpoints[0]}, {live} files in _delta_log", flush=True
                )
    last = costs[checkpoints[-1]] / costs[checkpoints[0]]
    print(f"an epoch after {checkpoints[-1]:,} costs {last:.2f} times as much as after {checkpoints[0]}")


def main(epochs: int) -> None:
    print(f"planning and publishing, up to {epochs:,} epochs", flush=True)
    grow(epochs, tuple(n for n in (100, 1_000, 10_000, 100_000) if n <= epochs))


__all__ = ["Path", "grow", "main"]
