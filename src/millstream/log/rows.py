"""Records on their way into a file: columns of Python lists that become Arrow's at once, not part by part."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from millstream.core.parts import Columns
from millstream.log.parquet import MICROSECONDS
from millstream.timestamp import Timestamp

ROWS_PER_FILE = 65_536  # and what a reader holds in memory at once

# What lies in a file of the log; the stream is a partition column and stands in the entry.
RECORDS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("value", pa.string(), nullable=False),
        pa.field("timestamp", MICROSECONDS, nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("major", pa.int64(), nullable=False),
        pa.field("minor", pa.int64(), nullable=False),
    ]
)


ORDER = [(name, "ascending") for name in ("epoch", "timestamp", "origin", "major", "minor")]  # of the log


class RecordsOrigin(msgspec.Struct, frozen=True, array_like=True):
    """What so many records one after the other have in common: the commit that named them, and the head of their ids."""

    epoch: int
    origin: str
    major: int
    count: int


class Rows:
    """Records of one stream, in the order of their epochs. One conversion for a file of many small parts: by part it took
    some 80 µs each, whatever is in it."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.values: list[bytes] = []
        self.timestamps: list[Timestamp] = []
        self.minors: list[int] = []
        self.sources: list[RecordsOrigin] = []

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, epoch: int, origin: str, major: int, columns: Columns) -> None:
        if not columns.keys:
            return
        self.keys += columns.keys
        self.values += columns.values
        self.timestamps += columns.timestamps
        self.minors += columns.minors
        self.sources.append(RecordsOrigin(epoch, origin, major, len(columns.keys)))

    def slice(self, start: int, stop: int) -> Rows:
        """Some of them."""
        part = Rows()
        part.keys, part.values = self.keys[start:stop], self.values[start:stop]
        part.timestamps, part.minors = self.timestamps[start:stop], self.minors[start:stop]
        at = 0
        for source in self.sources:
            count = min(at + source.count, stop) - max(at, start)
            if count > 0:
                part.sources.append(RecordsOrigin(source.epoch, source.origin, source.major, count))
            at += source.count
        return part

    def pieces(self) -> list[Rows]:
        """As many as fit a file each."""
        if len(self) <= ROWS_PER_FILE:
            return [self]
        return [self.slice(start, start + ROWS_PER_FILE) for start in range(0, len(self), ROWS_PER_FILE)]

    @property
    def epochs(self) -> tuple[int, int]:
        """The first and the last."""
        return min(s.epoch for s in self.sources), max(s.epoch for s in self.sources)

    def ids(self) -> list[str]:
        """As people see them: origin/major/minor."""
        heads = [f"{s.origin}/{s.major}/" for s in self.sources for _ in range(s.count)]
        return [f"{head}{minor}" for head, minor in zip(heads, self.minors, strict=True)]

    def key_array(self) -> pa.Array:
        return pa.array(self.keys, pa.string())

    def value_array(self) -> pa.Array:
        return pa.array(self.values, pa.binary()).cast(pa.string())  # cheaper than as text at once, and checks it too

    def timestamp_array(self) -> pa.Array:
        return pa.array(self.timestamps, pa.int64()).view(MICROSECONDS)

    def table(self) -> pa.Table:
        """As they stand in a file of the log."""
        counts = np.array([s.count for s in self.sources], dtype=np.int64)
        of_source = np.repeat(np.arange(len(self.sources), dtype=np.int64), counts)
        return pa.table(
            [
                self.key_array(),
                self.value_array(),
                self.timestamp_array(),
                _repeated([s.epoch for s in self.sources], of_source),
                pa.array([s.origin for s in self.sources], pa.string()).take(pa.array(of_source)),
                _repeated([s.major for s in self.sources], of_source),
                pa.array(self.minors, pa.int64()),
            ],
            schema=RECORDS,
        )


def _repeated(values: Sequence[int], of_source: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(np.array(values, dtype=np.int64)[of_source])
