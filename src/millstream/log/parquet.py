"""Parquet files that survive a power loss and notice a turned bit."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

MICROSECONDS = pa.timestamp("us", tz="UTC")


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
