"""The log: one Delta table of all kept streams, for everyone who is not the run. Written by one process, read by all.

An entry covers whole epochs (from, to] of all streams, and says `to`; a reader finds them all or none. Whoever would add to
it must have read `from` in the version right before the one that it makes: so nobody adds what another has added (rule 16).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema

from millstream.errors import LogError
from millstream.journal.disk import Disk
from millstream.journal.errors import explained
from millstream.log.entries import ENTRIES, Add, Entry, RemoveFile, encode_entry, encode_first, entry_path
from millstream.log.rows import RECORDS, Rows
from millstream.log.snapshot import LogSnapshot, newest_version, read_entry
from millstream.timestamp import Timestamp, to_datetime

SCHEMA = pa.schema([pa.field("stream", pa.string(), nullable=False), *RECORDS])
# How long the table says of a file that it has left. Every checkpoint repeats it, so Delta's own week would make the log dearer
# with every entry; nobody asks for it: upkeep knows what it removed.
CONFIGURATION = {"delta.deletedFileRetentionDuration": "interval 1 minutes"}


class At(NamedTuple):
    """Where the table stands: its newest version, and the last epoch that it has."""

    version: int
    upto: int


class StagedFile(msgspec.Struct, frozen=True):
    """A file that is on the disk and that an entry may name: until then it is not part of the table."""

    path: str  # below the table
    stream: str
    rows: int
    size: int
    first: int  # epoch
    last: int
    oldest: Timestamp
    newest: Timestamp

    def added(self, *, modified: int, data_change: bool) -> Add:
        """`modified` is in milliseconds."""
        return Add(self.path, {"stream": self.stream}, self.size, modified, data_change, self.statistics())

    def statistics(self) -> str:
        """As Delta spells them."""
        return msgspec.json.encode(
            {
                "numRecords": self.rows,
                "minValues": {"timestamp": _iso(self.oldest), "epoch": self.first},
                "maxValues": {"timestamp": _iso(self.newest), "epoch": self.last},
                "nullCount": {"timestamp": 0, "epoch": 0},
            }
        ).decode()


class HistoryTable(Protocol):
    """What a writer needs of the log."""

    def position(self) -> At:
        """Where the table stands, on the disk."""

    def stage(self, stream: str, rows: Rows) -> StagedFile:
        """Write a file. Nobody sees it before the commit."""

    def commit(self, staged: Sequence[StagedFile], *, after: At, to: int) -> At | None:
        """Add files with all records of epochs (after.upto, to], durable when this returns; where the table then stands.

        None if the table no longer ends with `after.upto`: another has written these epochs, and nothing was changed.
        """

    def discard(self, staged: Sequence[StagedFile]) -> None:
        """Files that no entry will name."""


class History:
    """The table on a disk whose root is its folder."""

    def __init__(self, disk: Disk, *, now: Callable[[], Timestamp], unique: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self.disk, self._now, self._unique = disk, now, unique
        self._folders: set[str] = set()  # that are there, and durable
        self._unsynced: set[str] = set()  # folders with a file whose name may still go in a power loss
        self.staged: set[str] = set()  # files of this process that no entry names yet

    def create(self) -> None:
        """Make the table, if it is not there."""
        with explained(ENTRIES):
            self.disk.make_folder(ENTRIES)
        if newest_version(self.disk) < 0:
            schema = Schema.from_arrow(SCHEMA).to_json()
            first = encode_first(schema, partitions=["stream"], configuration=CONFIGURATION, id=self._unique(), now=self._milliseconds())
            with explained(entry_path(0)):
                self.disk.create_whole(entry_path(0), first)
                self.disk.sync_folder(ENTRIES)

    def position(self) -> At:
        return position_of(self.disk)

    def stage(self, stream: str, rows: Rows) -> StagedFile:
        return self._stage(stream, rows.table(), rows.epochs)

    def stage_records(self, stream: str, records: pa.Table) -> StagedFile:
        """The same, of records that are in the table already."""
        epochs = pc.min_max(records["epoch"]).as_py()
        return self._stage(stream, records, (epochs["min"], epochs["max"]))

    def _stage(self, stream: str, records: pa.Table, epochs: tuple[int, int]) -> StagedFile:
        day = datetime.fromtimestamp(self._milliseconds() / 1000, UTC).date().isoformat()
        first, last = epochs
        path = f"{day}/{last:012d}-{self._unique()}.parquet"
        content = parquet(records)
        with explained(path):
            if day not in self._folders:
                self.disk.make_folder(day)
                self._folders.add(day)
            self.staged.add(path)
            self._unsynced.add(day)
            file = self.disk.create(path)
            try:
                file.append([memoryview(content)])  # type: ignore[list-item]
                file.sync()
            finally:
                file.close()
        bounds = pc.min_max(records["timestamp"].cast(pa.int64())).as_py()
        return StagedFile(path, stream, records.num_rows, content.size, first, last, bounds["min"], bounds["max"])

    def commit(self, staged: Sequence[StagedFile], *, after: At, to: int) -> At | None:
        now, id = self._milliseconds(), self._unique()
        added = [file.added(modified=now, data_change=True) for file in staged]
        content = encode_entry(to, id=id, now=now, operation="WRITE", added=added)
        self._sync_folders()
        version = after.version
        while True:
            entry = read_entry(self.disk, version)  # of those that are not the writer's, upkeep's says `from` and a tool's nothing
            if entry is not None and entry.upto not in (None, after.upto):
                self.discard(staged)
                return None
            if self._create(version + 1, content):
                break
            version += 1
        self.staged.difference_update(file.path for file in staged)
        return At(version + 1, to)

    def replace(
        self,
        snapshot: LogSnapshot,
        added: Sequence[Add],
        removed: Sequence[str],
        *,
        operation: str,
        data_change: bool,
        compacted: Mapping[str, int] | None = None,
    ) -> bool:
        """Exchange files of the table for others; False if a file to be removed is not there any more. For upkeep."""
        now, id = self._milliseconds(), self._unique()
        self._sync_folders()
        while True:
            if any(path not in snapshot.files for path in removed):
                return False
            files = [snapshot.files[path] for path in removed]
            gone = [RemoveFile(file.path, now, data_change, {"stream": file.stream}, file.size) for file in files]
            # The same epoch as before: a commit of the writer goes on after it, and two upkeeps cannot pass each other.
            content = encode_entry(snapshot.upto, id=id, now=now, operation=operation, added=added, removed=gone, compacted=compacted)
            if self._create(snapshot.version + 1, content):
                snapshot.apply(Entry(snapshot.version + 1, snapshot.upto, [*added], [*removed], {**(compacted or {})}))
                self.staged.difference_update(add.path for add in added)
                return True
            snapshot.advance()

    def discard(self, staged: Sequence[StagedFile]) -> None:
        for file in staged:
            with explained(file.path):
                self.disk.remove(file.path)
            self.staged.discard(file.path)

    def _create(self, version: int, content: bytes) -> bool:
        """Make an entry, durable; False if its number is taken.

        Where the outcome is not known it is read back. Old entries are cleaned away, oldest first, so that of somebody who
        slept for long the number may be free again: then the entry before it is gone too, and what was made is nothing.
        """
        path = entry_path(version)
        with explained(path):
            try:
                made = self.disk.create_whole(path, content)
            except OSError:
                if self._content(path) != content:
                    raise
                made = True
            if not made and self._content(path) != content:  # NFS says "taken" of an own link whose answer was lost
                return False
            if self._content(entry_path(version - 1)) is None:
                self.disk.remove(path)
                raise LogError(f"{path} is long cleaned away: another run has written the log meanwhile; this one must stop")
            self.disk.sync_folder(ENTRIES)
        return True

    def _content(self, path: str) -> bytes | None:
        try:
            return self.disk.read(path)
        except FileNotFoundError:
            return None

    def _sync_folders(self) -> None:
        for folder in sorted(self._unsynced):
            with explained(folder):
                self.disk.sync_folder(folder)
        self._unsynced.clear()

    def _milliseconds(self) -> int:
        return int(self._now()) // 1000


def position_of(disk: Disk) -> At:
    """Of the table on this disk; what is read is durable then."""
    newest = newest_version(disk)
    if newest < 0:
        raise LogError("the log has no entry; restore it from a copy")
    with explained(entry_path(newest)):  # after kill -9 it may be there and not yet on the disk
        disk.sync_file(entry_path(newest))
        disk.sync_folder(ENTRIES)
    version = newest
    while (entry := read_entry(disk, version)) is not None:
        if entry.upto is not None:
            return At(newest, entry.upto)
        version -= 1  # another tool's
    return At(newest, LogSnapshot(disk).upto)


def parquet(records: pa.Table) -> pa.Buffer:
    """A file of the log. What repeats itself stands in a dictionary; what counts up, as differences: two thirds of the size of
    plain numbers, and quicker, for there is less to compress."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        records,
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=["key", "epoch", "origin", "major"],
        column_encoding={"timestamp": "DELTA_BINARY_PACKED", "minor": "DELTA_BINARY_PACKED"},
        write_page_checksum=True,  # a bit that has turned is noticed, not counted
    )
    return sink.getvalue()


def read_file(disk: Disk, path: str, *, columns: Sequence[str] | None = None) -> pa.Table:
    """The records of a file, or some columns of them; one that is not whole is refused by name."""
    with explained(path):
        try:
            content = disk.read(path)
        except FileNotFoundError as error:
            raise MissingFile(f"{path} is missing, and the log names it; restore it from a copy") from error
    try:
        return pq.read_table(pa.BufferReader(content), columns=columns, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise LogError(f"{path} is damaged: {error}; restore it from a copy") from error


class MissingFile(LogError):
    """A file has left the table since the snapshot was read, or is lost."""


def _iso(timestamp: Timestamp) -> str | None:
    try:
        return to_datetime(timestamp).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return None
