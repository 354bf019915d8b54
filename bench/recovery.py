"""From kill -9 of a whole run to its first new result, by how many changed rows the journal has that no checkpoint has.

These are counted in what the kill has left: a checkpoint that came before it, by time or by rows, leaves fewer to redo.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import millstream as ms
from millstream.core.ledger import Checkpoint
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.opening import open_ledger
from millstream.log.folder import Folder
from millstream.mill.beginning import rows_to_redo

ROWS = (1_000, 100_000, 1_000_000)


class Count(ms.Computation[int]):
    out: ms.Output[int]

    def process_record(self, record: ms.Record[int]) -> None:
        self.state += 1
        self.out.produce(record.value, timestamp=record.timestamp)


def work(base: Path, rows: int) -> None:
    """Changes so many rows, then goes on slowly; says in a file when a record after those was delivered."""
    from millstream.spark import milling

    milling.FIRST_CHECKPOINT = 3600.0  # a young lane makes one within seconds, and then little would be left to redo

    def values(taken: int) -> Iterator[int]:
        yield from range(taken, rows)
        n = max(taken, rows)
        while True:
            yield n
            n += 1
            time.sleep(0.02)

    def take(step: int, records: list[ms.Record[int]]) -> None:
        newest = max(record.value for record in records)
        if newest >= rows:
            progress = base / "progress.tmp"
            progress.write_text(f"{newest} {time.time()}")
            progress.replace(base / "progress")

    noon = 1_790_000_000_000_000
    topology = ms.Topology("recovery")
    stream = topology.inject(
        "in",
        ms.values(values, int),
        key=lambda n: f"k{n}",
        timestamp=lambda n: ms.Timestamp(noon + n),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    count = Count()
    topology.compute("count", count).reads(stream)
    topology.deliver("out", count.out, ms.function(take))
    ms.start(topology, at=base / "mill", options=ms.Options(checkpoint_every=60 * ms.MINUTE)).wait()


def _start(base: Path, rows: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bench.recovery", str(base), str(rows)], start_new_session=True)


def _wait(base: Path, after: float) -> float:
    """When a record was delivered that was made after this moment."""
    while True:
        if (base / "progress").exists():
            _, when = (base / "progress").read_text().split()
            if float(when) > after:
                return float(when)
        time.sleep(0.01)


def _to_redo(mill: Path) -> int:
    """Changed rows that a start gives to the lanes: after the newest checkpoint of each that a commit has the proof of."""
    folder = Folder(mill)
    pinned = folder.read_pinned()
    assert pinned is not None
    commits = Commits(LocalDisk(folder.journal))
    ledger = open_ledger(commits)
    rows = 0
    for lane, redo in rows_to_redo(commits, ledger, lanes=pinned.lanes).items():
        proved = ledger.checkpoints.get(lane, Checkpoint()).at.epoch
        rows += sum(each.rows.rows for each in redo if each.epoch > proved)
    return rows


def main() -> None:
    for rows in ROWS:
        with tempfile.TemporaryDirectory(prefix="millstream-bench-", ignore_cleanup_errors=True) as folder:
            base = Path(folder)
            begun = time.time()
            process = _start(base, rows)
            started = _wait(base, begun) - begun
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed = time.time()
            to_redo = _to_redo(base / "mill")  # some hundredths of a second, which count
            process = _start(base, rows)
            took = _wait(base, killed) - killed
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(
                f"{to_redo:,} rows to redo, of {rows:,} changed: {took:.1f} s from kill -9 to a new result "
                f"(the first start took {started:.1f} s, with making them)",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("rows", type=int)
    arguments = parser.parse_args()
    work(arguments.base, arguments.rows)
