"""Parquet files that survive a power loss and notice a turned bit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

MICROSECONDS = pa.timestamp("us", tz="UTC")


def write_parquet(path: Path, content: pa.Table, *, repeated: Sequence[str] = ("key",)) -> int:
    """Durably; returns its size. What stands in the `repeated` columns is written once: that is dear where no value comes twice."""
    with path.open("wb") as file:
        pq.write_table(
            content,
            file,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in repeated if name in content.column_names] or False,
            write_page_checksum=True,  # a bit that has turned is noticed, not counted
        )
        file.flush()
        os.fsync(file.fileno())
        return file.tell()
