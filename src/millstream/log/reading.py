"""What a stream has had, for everyone who is not the run: the log, and then the journal's tail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, overload

import pyarrow as pa

from millstream import arguments
from millstream.core.codec import value_decoder
from millstream.core.parts import Columns, Part
from millstream.errors import LogError, TopologyError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.errors import Missing
from millstream.journal.opening import open_ledger
from millstream.journal.segments import SegmentReader
from millstream.log.folder import Folder
from millstream.log.history import position_of
from millstream.log.reading_history import UnfitValue, lines, python_records, records
from millstream.record import Record
from millstream.stream import called

V = TypeVar("V")
MAX_TRIES = 5  # a run may log and let go of what is just read


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
    for commit in commits.span(logged + 1, ledger.number):
        left_out = ledger.leaves_out(stream, commit.number)
        for segment, part in commit.plain_parts(stream):
            if left_out and segment not in ledger.segments:
                continue
            try:
                columns = reader.part(segment, part)
            except Missing:
                if not left_out:
                    raise
            else:
                yield commit.number, columns, part
