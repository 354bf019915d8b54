"""Reading a stream without Spark: the log first, and then the journal's tail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.parts import Columns, Part
from millstream.errors import LogError
from millstream.journal.disk import Disk
from millstream.log.history import MissingFile, read_file
from millstream.log.rows import RECORDS, Rows
from millstream.log.snapshot import LiveFile, LogSnapshot, newest_version
from millstream.record import Record
from millstream.timestamp import Timestamp

ORDER = [(name, "ascending") for name in ("epoch", "timestamp", "major", "minor")]
_NOTHING = RECORDS.empty_table()

JournalTail = Iterable[tuple[int, Columns, Part]]  # plain parts of one stream with the epoch that named each


class Line(msgspec.Struct):
    """A record as a line of JSON."""

    key: str
    value: msgspec.Raw
    timestamp: Any
    id: str


class LogPiece(msgspec.Struct, frozen=True):
    """Records of one epoch whose ids begin alike, in the order of their numbers: what a part of the journal is."""

    origin: str
    major: int
    columns: Columns


def records(disk: Disk, stream: str, *, last: int | None = None, tail: JournalTail = ()) -> pa.Table:
    """The records of a stream in order, or the newest of them; of the log only as many files are read as are needed.

    The root of `disk` is the table. `tail` is read first: what it has and the log too by then, is taken from the log. So it
    must begin at or before the end of the log when it was begun; nothing is then left out between the two.
    """
    pending = list(tail)
    snapshot = _snapshot(disk)
    rows = Rows()
    for epoch, columns, part in pending:
        if snapshot is None or epoch > snapshot.upto:
            rows.add(epoch, part.origin, part.major, columns)
    files = [] if snapshot is None else snapshot.of_stream(stream)
    if not files and not len(rows):
        there = [] if snapshot is None else sorted({file.stream for file in snapshot.files.values()})
        raise LogError(f"the log has no record of a stream {stream!r}; streams with records: {', '.join(there) or 'none yet'}")
    newest = rows.table() if len(rows) else _NOTHING
    if last is None:
        return pa.concat_tables([*(read_file(disk, file.path) for file in files), newest]).sort_by(ORDER)
    return _newest(disk, files, newest, last)


def _newest(disk: Disk, files: list[LiveFile], found: pa.Table, count: int) -> pa.Table:
    """Files are read from the newest epoch back, until none that is left can hold a record that counts."""
    found = _last(found, count)
    for file in sorted(files, key=lambda file: file.last, reverse=True):
        if found.num_rows >= count and (count == 0 or file.last < found["epoch"][0].as_py()):
            break
        found = _last(pa.concat_tables([found, read_file(disk, file.path)]), count)
    return found


def _last(table: pa.Table, count: int) -> pa.Table:
    return table.sort_by(ORDER).slice(max(0, table.num_rows - count))


def lines(table: pa.Table) -> Iterator[bytes]:
    """Records as lines of JSON."""
    encode = msgspec.json.Encoder().encode
    for batch in table.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            id_ = f"{row['origin']}/{row['major']}/{row['minor']}"
            yield encode(Line(row["key"], msgspec.Raw(row["value"].encode()), row["timestamp"], id_))


class UnfitValue(LogError):
    """A value that is not of the type it is to be read as."""

    def __init__(self, id_: str, why: str) -> None:
        super().__init__(f"record {id_}: {why}")
        self.id, self.why = id_, why


def python_records(table: pa.Table, decode: Callable[[bytes | str], Any] = msgspec.json.decode) -> Iterator[Record[Any]]:
    """Records as a computation sees them."""
    for batch in table.to_batches(max_chunksize=10_000):
        columns = batch["key"].to_pylist(), batch["value"].to_pylist(), batch["timestamp"].cast(pa.int64()).to_pylist()
        ids = batch["origin"].to_pylist(), batch["major"].to_pylist(), batch["minor"].to_pylist()
        for key, value, timestamp, origin, major, minor in zip(*columns, *ids, strict=True):
            try:
                decoded = decode(value)
            except msgspec.ValidationError as error:
                raise UnfitValue(f"{origin}/{major}/{minor}", str(error)) from error
            yield Record(key, decoded, Timestamp(timestamp), False, f"{origin}/{major}/", minor)


def history(disk: Disk, stream: str, after: int, upto: int) -> Iterator[tuple[int, list[LogPiece]]]:
    """The epochs (after, upto] of a stream that have records, in order, each whole: for whoever is further behind than the
    journal. In memory is one epoch, and what lies beside it in its files.

    Files that are merged meanwhile are found again: each epoch is in the table exactly once, whatever files hold it.
    """
    while True:
        try:
            for epoch, table in _epochs(disk, stream, after, upto):
                yield epoch, pieces(table)
                after = epoch
            return
        except MissingFile:
            if not _has_moved(disk, stream, after, upto):
                raise


def _epochs(disk: Disk, stream: str, after: int, upto: int) -> Iterator[tuple[int, pa.Table]]:
    """Goes through the files by their first epoch. An epoch is whole when no file that is left begins at or before it."""
    held: list[pa.Table] = []
    snapshot = _snapshot(disk)
    files = [] if snapshot is None else _between(snapshot, stream, after, upto)
    for n, file in enumerate(files):
        records = read_file(disk, file.path)
        held.append(records.filter((pc.field("epoch") > after) & (pc.field("epoch") <= upto)))
        complete = files[n + 1].first if n + 1 < len(files) else upto + 1
        if complete > file.first:
            whole = pa.concat_tables(held).sort_by("epoch")
            ready = whole.filter(pc.field("epoch") < complete)
            held = [whole.slice(ready.num_rows)]
            yield from _split(ready)


def _split(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """A table that is sorted by epoch, epoch by epoch."""
    start = 0
    for epoch, same in groupby(table["epoch"].to_pylist()):
        count = sum(1 for _ in same)
        yield epoch, table.slice(start, count)
        start += count


def pieces(table: pa.Table) -> list[LogPiece]:
    """The records of an epoch as columns, in the order of their ids."""
    found = []
    table = table.sort_by([(name, "ascending") for name in ("origin", "major", "minor")])
    start = 0
    heads = zip(table["origin"].to_pylist(), table["major"].to_pylist(), strict=True)
    for (origin, major), same in groupby(heads):
        part = table.slice(start, sum(1 for _ in same))
        start += part.num_rows
        columns = Columns(
            part["key"].to_pylist(),
            part["value"].cast(pa.binary()).to_pylist(),
            part["timestamp"].cast(pa.int64()).to_pylist(),
            part["minor"].to_pylist(),
        )
        found.append(LogPiece(origin, major, columns))
    return found


def _between(snapshot: LogSnapshot, stream: str, after: int, upto: int) -> list[LiveFile]:
    return [file for file in snapshot.of_stream(stream) if file.last > after and file.first <= upto]


def _has_moved(disk: Disk, stream: str, after: int, upto: int) -> bool:
    """Whether the table names other files now, and all of those are there; else one is lost."""
    snapshot = _snapshot(disk)
    return snapshot is not None and all(disk.exists(file.path) for file in _between(snapshot, stream, after, upto))


def _snapshot(disk: Disk) -> LogSnapshot | None:
    return LogSnapshot(disk) if newest_version(disk) >= 0 else None
