"""Parquet files that hold records: written by tasks, invisible until a commit names them."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.errors import LogError
from millstream.timestamp import Timestamp, to_datetime

MICROSECONDS = pa.timestamp("us", tz="UTC")

# What lies in a file; the stream is a partition column and stands in the commit.
RECORDS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("value", pa.string(), nullable=False),
        pa.field("timestamp", MICROSECONDS, nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
    ]
)

ROWS_A_FILE = 65_536  # the step in which an epoch can be bounded, and what a reader holds in memory at once


class StagedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that a commit may name, and what the commit says of it."""

    path: str  # below its table
    stream: str
    rows: int
    size: int
    oldest: Timestamp
    newest: Timestamp

    def statistics(self) -> str:
        """As Delta spells them."""
        return msgspec.json.encode(
            {
                "numRecords": self.rows,
                "minValues": {"timestamp": _iso(self.oldest)},
                "maxValues": {"timestamp": _iso(self.newest)},
                "nullCount": {"timestamp": 0},
            }
        ).decode()


def stage(table: Path, stream: str, records: pa.Table, *, epoch: int) -> list[StagedFile]:
    """Write records of one stream into new files of a table. Their names carry the epoch, so that orphans can be swept."""
    folder = table / f"{epoch // 1000:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    staged = []
    for start in range(0, records.num_rows, ROWS_A_FILE):
        part = records.slice(start, ROWS_A_FILE)
        path = folder / f"{epoch:012d}-{uuid.uuid4().hex}.parquet"
        size = write_parquet(path, part)
        bounds = pc.min_max(part["timestamp"].cast(pa.int64())).as_py()
        staged.append(StagedFile(str(path.relative_to(table)), stream, part.num_rows, size, bounds["min"], bounds["max"]))
    return staged


def write_parquet(path: Path, content: pa.Table) -> int:
    """Durably; returns its size."""
    with path.open("wb") as file:
        pq.write_table(
            content,
            file,
            compression="zstd",
            compression_level=1,
            use_dictionary=["key"] if "key" in content.column_names else False,
            write_page_checksum=True,  # a bit that has turned is noticed, not counted
        )
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def read_records(path: Path) -> pa.Table:
    """The records of a file; one that is not whole is refused by name."""
    try:
        return pq.read_table(path, memory_map=True, partitioning=None, page_checksum_verification=True)
    except FileNotFoundError as error:
        raise LogError(f"{path} is missing, and the log names it; restore it from a copy") from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not Arrow's
            raise
        raise LogError(f"{path} is damaged: {error}; restore it from a copy") from error


def _iso(timestamp: Timestamp) -> str | None:
    try:
        return to_datetime(timestamp).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return None
