"""What a stream has had, for everyone who is not the run: the log, and then the journal's tail."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeVar, overload

import msgspec
import pyarrow as pa

from millstream import arguments
from millstream.core.codec import value_decoder
from millstream.core.ledger import Ledger
from millstream.core.parts import Columns, Part
from millstream.errors import LogError, TopologyError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.errors import Missing
from millstream.journal.opening import open_ledger
from millstream.journal.segments import SegmentReader
from millstream.log.folder import Folder
from millstream.log.history import MissingFile, position_of, read_file
from millstream.log.reading_history import ORDER, UnfitValue, lines, python_records, records
from millstream.log.rows import RECORDS, Rows
from millstream.log.snapshot import LiveFile, LogSnapshot, newest_version
from millstream.record import Record
from millstream.stream import called

V = TypeVar("V")
MAX_TRIES = 5  # a run may log and let go of what is just read
MAX_FILES = 400  # of the log, and epochs of the journal, for one answer of a `StreamReader`
MAX_BYTES = 64 << 20  # of these, as they lie on the disk


@overload
def read(at: str | Path, stream: str, *, last: int | None = None) -> list[Record[Any]]: ...
@overload
def read(at: str | Path, stream: str, *, last: int | None = None, value: type[V] | UnionType) -> list[Record[V]]: ...


def read(at: str | Path, stream: str, *, last: int | None = None, value: type[Any] | UnionType | None = None) -> list[Record[Any]]:
    """The records of a stream in the folder of a run, oldest epoch first, or the `last` of them; also while it runs.

    Whoever has seen a record delivered finds it here. Values come as JSON has them, or as `value` where a type is given.

        ms.read("run", "per-second.counts", last=10)
    """
    decode = value_decoder(None if value is None else arguments.value_type("read", value))
    try:
        return list(python_records(_table(at, stream, last), decode))
    except UnfitValue as error:
        raise TopologyError(
            f"read(value={called(value)}): record {error.id} of stream {stream!r} is of another type: {error.why}; "
            f"give the type that the stream carries, or leave value= out"
        ) from error


def newest_records(at: str | Path, stream: str, count: int) -> Iterator[bytes]:
    """The newest records of a stream as lines of JSON, newest last. Only as many files are read as are needed."""
    return lines(_table(at, stream, count))


def _table(at: str | Path, stream: str, last: int | None) -> pa.Table:
    folder = Folder(arguments.path("read", at))
    if not isinstance(stream, str):
        raise TopologyError(f"read(stream={stream!r}): give the name of a stream, such as 'per-second.counts'; the status lists them")
    if last is not None:
        arguments.number("read", "last", last, least=1)
    if folder.read_pinned() is None:
        raise LogError(f"{folder.path} holds no run of Millstream; name the folder that was given to run as --at")
    for left in reversed(range(MAX_TRIES)):
        try:
            with folder.naming():
                return records(LocalDisk(folder.log), stream, last=last, tail=_tail(folder, stream))
        except Missing:
            if not left:
                raise
    raise AssertionError("the last try has raised")


def _tail(folder: Folder, stream: str) -> Iterator[tuple[int, Columns, Part]]:
    """What the log does not have yet; of what it leaves out, what the journal has not let go."""
    disk = LocalDisk(folder.journal)
    commits, reader = Commits(disk), SegmentReader(disk, sleep=time.sleep)
    ledger = open_ledger(commits)
    logged = position_of(LocalDisk(folder.log)).upto if ledger.logged else 0  # the writer of a first run may just be making the table
    for number, segment, part in _parts(commits, ledger, stream, logged):
        columns = _columns(reader, ledger, number, segment, part)
        if columns is not None:
            yield number, columns, part


def _parts(commits: Commits, ledger: Ledger, stream: str, after: int) -> Iterator[tuple[int, str, Part]]:
    """Where the records of a stream lie in the journal, by epoch; what was left out of the log and is free is not among them."""
    for commit in commits.span(after + 1, ledger.number):
        left_out = ledger.leaves_out(stream, commit.number)
        for segment, part in commit.plain_parts(stream):
            if not left_out or segment in ledger.segments:
                yield commit.number, segment, part


def _columns(reader: SegmentReader, ledger: Ledger, number: int, segment: str, part: Part) -> Columns | None:
    """None for what the log leaves out and the journal has just let go."""
    try:
        return reader.part(segment, part)
    except Missing:
        if not ledger.leaves_out(part.stream, number):
            raise
        return None


class FoundRecords(msgspec.Struct, frozen=True):
    """The newest records that were wanted, newest last. `searched` are all that were looked at, wanted or not; `since` is the first
    epoch that was searched whole, None if nothing lies before that."""

    records: pa.Table
    searched: int
    since: int | None


class _Chunk(NamedTuple):
    """Records that are read at once: of epochs up to `last`, from so many bytes."""

    last: int
    size: int
    read: Callable[[], pa.Table]


class StreamReader:
    """Reads the streams of one folder again and again: costs what it looks at, and what came to the log since it last did, not what
    there is. Several threads may ask."""

    def __init__(self, folder: Folder) -> None:
        disk = LocalDisk(folder.journal)
        self._folder, self._log = folder, LocalDisk(folder.log)
        self._commits, self._segments = Commits(disk), SegmentReader(disk, sleep=time.sleep)
        self._snapshot: LogSnapshot | None = None
        self._advancing = threading.Lock()

    def newest(self, ledger: Ledger, stream: str, count: int, keep: Callable[[pa.Table], pa.Table] | None = None) -> FoundRecords:
        """The newest records up to where the ledger is, of those that `keep` leaves of a table."""
        for left in reversed(range(MAX_TRIES)):
            try:
                with self._folder.naming():
                    return _search(self._chunks(ledger, stream), count, keep)
            except (Missing, MissingFile):  # it was logged and let go, or merged: the log has it elsewhere now
                if not left:
                    raise
        raise AssertionError("the last try has raised")

    def _chunks(self, ledger: Ledger, stream: str) -> Iterator[_Chunk]:
        """From the newest back: the journal's epochs that the log does not have, then the files of the log."""
        upto, files = self._logged(ledger, stream)
        parts = list(_parts(self._commits, ledger, stream, upto))
        for number, group in groupby(reversed(parts), key=lambda each: each[0]):
            of_epoch = [(segment, part) for _, segment, part in group]
            yield _Chunk(number, sum(part.length for _, part in of_epoch), partial(self._epoch, ledger, number, of_epoch))
        for file in files:
            yield _Chunk(file.last, file.size, partial(read_file, self._log, file.path))

    def _epoch(self, ledger: Ledger, number: int, parts: list[tuple[str, Part]]) -> pa.Table:
        rows = Rows()
        for segment, part in parts:
            columns = _columns(self._segments, ledger, number, segment, part)
            if columns is not None:
                rows.add(number, part.origin, part.major, columns)
        return rows.table() if len(rows) else RECORDS.empty_table()

    def _logged(self, ledger: Ledger, stream: str) -> tuple[int, list[LiveFile]]:
        """The epoch that the log ends with, and its newest files of a stream, newest first."""
        with self._advancing:
            newest = newest_version(self._log)
            if newest < 0:
                if ledger.logged:
                    raise LogError("the log has no entry; restore it from a copy")
                return 0, []
            snapshot = self._snapshot if self._snapshot is not None and self._snapshot.version <= newest else None
            if snapshot is not None:
                snapshot.advance()
            if snapshot is None or snapshot.version < newest:  # entries were cleaned away since
                snapshot = LogSnapshot(self._log)
            self._snapshot = snapshot
            ours = (file for file in snapshot.files.values() if file.stream == stream)
            return snapshot.upto, heapq.nlargest(MAX_FILES + 1, ours, key=lambda file: file.last)


def _search(chunks: Iterator[_Chunk], count: int, keep: Callable[[pa.Table], pa.Table] | None) -> FoundRecords:
    """From the newest chunk back, until none that is left can hold a record that counts, or enough was looked at."""
    found = RECORDS.empty_table()
    searched = size = 0
    for nth, chunk in enumerate(chunks):
        has_all = found.num_rows >= count and chunk.last < found["epoch"][0].as_py()
        if has_all or nth >= MAX_FILES or (nth and size + chunk.size > MAX_BYTES):
            return FoundRecords(found, searched, chunk.last + 1)
        table = chunk.read()
        searched, size = searched + table.num_rows, size + chunk.size
        both = pa.concat_tables([found, table if keep is None else keep(table)]).sort_by(ORDER)
        found = both.slice(max(0, both.num_rows - count))
    return FoundRecords(found, searched, None)
