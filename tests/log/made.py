"""Records and tables for the tests of the log."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable

from millstream.core.parts import Columns
from millstream.journal.disk import Disk, LocalDisk
from millstream.log.history import At, History
from millstream.log.rows import Rows
from millstream.timestamp import Timestamp

NOW = Timestamp(1_700_000_000_000_000)


class Clock:
    """Time as a test says."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> Timestamp:
        return self.now


def columns(values: Sequence[int], *, at: int = 0) -> Columns:
    return Columns(
        [f"k{value % 7}" for value in values], [b"%d" % value for value in values], [Timestamp(at + v) for v in values], range(len(values))
    )


def rows(*epochs: int, per_epoch: int = 2, stream: str = "s") -> Rows:
    """So many records of each epoch; values are the epochs."""
    made = Rows()
    for epoch in epochs:
        made.add(epoch, stream, epoch, columns([epoch] * per_epoch))
    return made


class Table:
    """A table that grows by an entry an epoch."""

    def __init__(self, disk: Disk, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        numbers = itertools.count()
        self.history = History(disk, now=self.clock, unique=lambda: f"{next(numbers):08d}")
        self.history.create()
        self.at = self.history.position()

    def grow(self, *epochs: int, stream: str = "s", per_epoch: int = 2) -> None:
        for epoch in epochs:
            at = self.history.commit([self.history.stage(stream, rows(epoch, per_epoch=per_epoch, stream=stream))], after=self.at, to=epoch)
            assert at is not None
            self.at = at


def local(path: Path, clock: Clock | None = None) -> Table:
    return Table(LocalDisk(path), clock)


def values(path: Path) -> list[int]:
    """What any tool finds in the table."""
    return sorted(int(value) for value in DeltaTable(str(path)).to_pyarrow_table()["value"].to_pylist())


__all__ = ["NOW", "At", "Clock", "Table", "columns", "local", "rows", "values"]
