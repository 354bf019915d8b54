"""Reading a stream from its folder, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from millstream.errors import LogError
from millstream.log.folder import Folder, Pinned, read_json
from millstream.log.maintenance import epoch_of, live_files
from millstream.log.staged import read_records
from millstream.log.table import open_table


class Line(msgspec.Struct):
    """A record as a line of JSON."""

    key: str
    value: msgspec.Raw
    timestamp: Any
    id: str


def newest_records(at: str | Path, stream: str, count: int) -> Iterator[bytes]:
    """The newest records of a stream as lines of JSON, newest last. Only as many files are read as are needed."""
    folder = Folder(at)
    if read_json(folder.pinned, Pinned) is None:
        raise LogError(f"{folder.path} holds no run of Millstream; name the folder that was given to run as --at")
    tables = sorted(path.parent for path in (folder.path / "log").glob("*/_delta_log"))
    files = [(path, file) for path in tables for file in live_files(open_table(path), path.name)]
    of_stream = [(path, file) for path, file in files if file.stream == stream]
    if not of_stream:
        there = ", ".join(sorted({file.stream for _, file in files})) or "none yet"
        raise LogError(f"no record of a stream {stream!r} is in {folder.path}; streams with records: {there}")
    order = [("epoch", "ascending"), ("timestamp", "ascending"), ("sequence", "ascending")]
    found: list[pa.Table] = []
    rows, oldest = 0, None
    for path, file in sorted(of_stream, key=lambda item: epoch_of(item[1].path), reverse=True):
        if oldest is not None and epoch_of(file.path) < oldest:
            break  # a file is named by the newest epoch that it holds
        records = read_records(path / file.path)
        found.append(records.append_column("table", pa.array([path.name] * records.num_rows, pa.string())))
        rows += records.num_rows
        if rows >= (count if oldest is None else 2 * count):
            found = [pa.concat_tables(found).sort_by(order).slice(rows - count)]
            rows, oldest = count, found[0]["epoch"][0].as_py()
    newest = pa.concat_tables(found).sort_by(order).slice(max(0, rows - count))
    encode = msgspec.json.Encoder().encode
    for row in newest.to_pylist():
        id_ = f"{row['table']}/{row['epoch']}/{row['sequence']}"
        yield encode(Line(row["key"], msgspec.Raw(row["value"].encode()), row["timestamp"], id_))
