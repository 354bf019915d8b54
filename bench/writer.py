"""What the writer takes for a record, from a part in the journal to a synced file that the log's table names; and whether
that is the same however many entries the table has.

As a ratio to pyarrow alone, which writes the same columns, already its own, to one Parquet file and syncs it; both in turns,
so that they are measured under the same load.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.core.parts import Columns, Dealt
from millstream.journal.disk import LocalDisk
from millstream.journal.segments import SegmentReader, SegmentWriter
from millstream.log.history import History
from millstream.log.rows import Rows
from millstream.log.snapshot import LogSnapshot
from millstream.log.upkeep import Upkeep
from millstream.targets.lacking import Epoch
from millstream.timestamp import Timestamp
from millstream.writer.log_output import LOG, LogOutput
from millstream.writer.machine import WriteParts
from millstream.writer.performing import Done, perform

YOUNG, OLD, SAMPLE = 200, 3_000, 200  # entries of a log; how many of each are measured
RECORDS = 1_000_000  # of one commit
ROUNDS = 5


def main() -> None:
    for per_part in (65_536, 1_000, 20):
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), per_part)
    with tempfile.TemporaryDirectory() as folder:
        _compare_ages(Path(folder))


def _compare_ages(folder: Path) -> None:
    """A log with many entries, and a young one, in turns: entries of two streams with a record each, with the upkeep beside."""
    young, old = Aged(folder / "young"), Aged(folder / "old")
    for _ in range(YOUNG):
        young.commit()
    for _ in range(OLD):
        old.commit()
    took = {young: list[float](), old: list[float]()}
    opening = {young: list[float](), old: list[float]()}
    for n in range(SAMPLE):
        for table in (young, old):
            took[table].append(_timed(table.commit))
            if n % 10 == 0:
                opening[table].append(_timed(table.open))
    mean = {table: statistics.fmean(found) * 1e3 for table, found in took.items()}
    opened = {table: statistics.median(found) * 1e3 for table, found in opening.items()}
    print(
        f"log of {OLD:,} entries: a commit with its files and the upkeep {mean[old]:.1f} ms, {mean[old] / mean[young]:.2f} times that of "
        f"one of {YOUNG}; opening {opened[old]:.1f} ms, {opened[old] / opened[young]:.2f} times; "
        f"{len(old.upkeep.snapshot.files)} live files, {len(young.upkeep.snapshot.files)} in the young one"
    )


class Aged:
    """A log that grows by an entry at a time."""

    def __init__(self, path: Path) -> None:
        self._disk = LocalDisk(path)
        self._history = History(self._disk, now=_now)
        self._history.create()
        self._at = self._history.position()
        self.upkeep = Upkeep(self._history, path, retention=None)

    def commit(self) -> None:
        epoch = self._at.upto + 1
        staged = []
        for stream in ("in", "out"):
            rows = Rows()
            rows.add(epoch, stream, epoch, Columns(["k"], [b"1"], [Timestamp(epoch)], [0]))
            staged.append(self._history.stage(stream, rows))
        at = self._history.commit(staged, after=self._at, to=epoch)
        assert at is not None
        self._at = at
        self.upkeep.run(_now())

    def open(self) -> None:
        History(self._disk, now=_now).position()
        LogSnapshot(self._disk)


def _now() -> Timestamp:
    return Timestamp(time.time_ns() // 1000)


def _compare(folder: Path, per_part: int) -> None:
    disk = LocalDisk(folder / "journal")
    segments = SegmentWriter(disk, "lane0", lambda: os.urandom(6).hex())
    rng = random.Random(1)
    epochs, rows = [], Rows()
    for number in range(1, RECORDS // per_part + 1):
        columns = _columns(rng, number, per_part)
        (part,) = (frame := segments.write([Dealt(0, "s", "", "s", number, columns)], lane=0)).parts
        epochs.append(Epoch(number, [(frame.segment, part)]))
        rows.add(number, "s", number, columns)
    segments.sync()
    plain = rows.table()
    history = History(LocalDisk(folder / "log"), now=_now)
    history.create()
    output, reader = LogOutput(history), SegmentReader(disk, sleep=time.sleep)
    ours, theirs = [], []
    for turn in range(ROUNDS):
        theirs.append(_timed(lambda: _plain(folder / "plain.parquet", plain)))
        position = output.position()
        # The table must go on from epoch to epoch: the same parts come again under later numbers.
        later = [Epoch(epoch.number + turn * len(epochs), epoch.places) for epoch in epochs]
        write = WriteParts(LOG, position, later, later[-1].number)
        ours.append(_timed(lambda write=write: _check(perform(write, output, reader, history.disk))))  # type: ignore[misc]
    took, alone, count = statistics.median(ours), statistics.median(theirs), len(rows)
    print(
        f"writer, {per_part:,} records a part: {took / count * 1e6:.2f} µs a record to a synced file of the log, "
        f"{count / took / 1e6:.2f}M records/s; {took / alone:.1f} times pyarrow alone ({alone / count * 1e6:.2f} µs)"
    )


def _columns(rng: random.Random, number: int, count: int) -> Columns:
    users = [rng.randrange(1_000) for _ in range(count)]
    values = [b'{"user":"user%d","page":"/page/%d","duration":%d,"ok":true}' % (user, n % 77, n) for n, user in enumerate(users)]
    return Columns(
        [f"user{user}" for user in users],
        values,
        [Timestamp(1_700_000_000_000_000 + number * count + n) for n in range(count)],
        range(count),
    )


def _plain(path: Path, table: pa.Table) -> None:
    with path.open("wb") as file:
        pq.write_table(table, file, compression="zstd", compression_level=1, row_group_size=65_536, use_dictionary=["key"])
        file.flush()
        os.fsync(file.fileno())


def _check(outcome: object) -> None:
    assert isinstance(outcome, Done)


def _timed(do: object) -> float:
    begin = time.perf_counter()
    do()  # type: ignore[operator]
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
