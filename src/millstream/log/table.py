"""One Delta table of the log: fenced commits, and a tail that costs the same however long the log is."""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from millstream.core.backlog import LogFile, Position
from millstream.errors import Fenced, LogError
from millstream.log.folder import sync_folder
from millstream.log.staged import RECORDS, StagedFile
from millstream.timestamp import START_OF_TIME, Timestamp, to_timestamp

SCHEMA = pa.schema([pa.field("stream", pa.string(), nullable=False), *RECORDS])
FENCE = "fence"
NOTE = "millstream"  # in what a commit says of itself
CHECKSUM = "checksum"
FRESH_AFTER = 64  # uses of a handle: it may look at versions as old as itself, and those are cleaned away some day

# Checkpoints and cleaning stay outside the commit path; see maintenance.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
# How long a table says of a file that it has left. Every checkpoint repeats it, so Delta's own week makes a log dearer with
# every epoch: after 87,000 of them one took eight times as much. Nobody asks for it: the keeper knows what it removed.
REMEMBERED: dict[str, str | None] = {"delta.deletedFileRetentionDuration": "interval 1 minutes"}


class Commit(msgspec.Struct, frozen=True):
    """What one version of a table brought."""

    version: int
    files: list[LogFile]
    note: bytes | None

    @property
    def end(self) -> Position:
        return Position(self.version + 1)


class _Add(msgspec.Struct):
    path: str
    size: int
    stats: str | None = None
    modificationTime: int = 0  # noqa: N815  (Delta's own spelling)
    dataChange: bool = True  # noqa: N815
    partitionValues: Mapping[str, str | None] = {}  # noqa: N815

    @property
    def stream(self) -> str:
        return self.partitionValues.get("stream") or ""

    def said(self) -> tuple[Any, ...]:
        """What a checksum covers of it."""
        return ("add", self.path, self.size, self.stream, self.modificationTime, self.stats, self.dataChange)


class _Remove(msgspec.Struct):
    path: str


class _Action(msgspec.Struct):
    add: _Add | None = None
    remove: _Remove | None = None
    commitInfo: dict[str, Any] | None = None  # noqa: N815
    txn: dict[str, Any] | None = None


class _Stats(msgspec.Struct):
    numRecords: int  # noqa: N815
    minValues: dict[str, Any] = {}  # noqa: N815


_decode_action = msgspec.json.Decoder(_Action).decode
_decode_stats = msgspec.json.Decoder(_Stats).decode


def commit_file(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def read_commit(path: Path, table: str, version: int) -> Commit | None:
    """A version read from its own file (0.1 ms at any size of the table); None if it is not there yet."""
    file = commit_file(path, version)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    files: list[LogFile] = []
    said: list[tuple[Any, ...]] = []
    info: dict[str, Any] | None = None
    try:
        for line in content.splitlines():
            action = _decode_action(line)
            if action.commitInfo is not None:
                info = action.commitInfo
            elif action.txn is not None:
                said.append(("txn", action.txn["appId"], action.txn["version"]))
            elif action.remove is not None:
                said.append(("remove", action.remove.path))
            elif action.add is not None:
                add = action.add
                said.append(add.said())
                if add.dataChange:
                    stats, position = _decode_stats(add.stats or "{}"), Position(version, len(files))
                    files.append(LogFile(table, position, add.path, add.stream, stats.numRecords, add.size, _oldest(stats)))
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise LogError(_damaged(file, str(error))) from error
    if info is None:
        raise LogError(_damaged(file, "its beginning is missing"))
    note = info.get(NOTE)
    if info.get(CHECKSUM, wanted := _checksum(note, said)) != wanted:  # there is none in what another tool has written
        raise LogError(_damaged(file, "its checksum does not fit"))
    return Commit(version, files, None if note is None else str(note).encode())


def described(
    actions: Iterable[AddAction | RemoveAction], *, note: bytes | None = None, writers: Mapping[str, int] = {}
) -> CommitProperties:
    """What goes with the actions of a commit: the note, how far each writer is, and a checksum of all of it. Delta has none."""
    said: list[tuple[Any, ...]] = [("txn", writer, version) for writer, version in writers.items()]
    for action in actions:
        if isinstance(action, AddAction):
            added = _Add(action.path, action.size, action.stats, action.modification_time, action.data_change, action.partition_values)
            said.append(added.said())
        else:
            said.append(("remove", action.path))
    told = {} if note is None else {NOTE: note.decode()}
    told[CHECKSUM] = _checksum(told.get(NOTE), said)
    return CommitProperties(custom_metadata=told, app_transactions=[Transaction(*writer) for writer in writers.items()])


def _checksum(note: object, said: list[tuple[Any, ...]]) -> str:
    return f"{zlib.crc32(msgspec.json.encode([note, *sorted(said, key=lambda action: action[:2])])):08x}"


def _damaged(file: Path, why: str) -> str:
    return f"{file} is damaged: {why}; restore it from a copy: nothing was read past it"


def _oldest(stats: _Stats) -> Timestamp:
    told = stats.minValues.get("timestamp")
    return START_OF_TIME if told is None else to_timestamp(datetime.fromisoformat(told))


def tail(path: Path, table: str, position: Position, until: Position | None = None) -> Iterator[Commit]:
    """The commits from `position` on, without the files of the first that lie before it, up to `until`."""
    version = position.version
    while until is None or Position(version, 0) < until:
        commit = read_commit(path, table, version)
        if commit is None:
            if until is not None:
                raise LogError(
                    f"{path} has no version {version} any more, where this reader goes on; restore _delta_log from a copy, or, for a "
                    f"delivery, give it another name: it then begins with what the log holds"
                )
            return
        files = [f for f in commit.files if f.position >= position and (until is None or f.position < until)]
        yield Commit(version, files, commit.note)
        version += 1


def newest_version(path: Path) -> int:
    """The newest version of a table; -1 if there is no table."""
    hint = -1
    try:
        names = os.listdir(path / "_delta_log")
    except FileNotFoundError:
        return -1
    for name in names:
        if name.endswith(".json") and name[:20].isdigit():
            hint = max(hint, int(name[:20]))
    return hint


def newest_note(path: Path, table: str) -> tuple[int, bytes] | None:
    """The newest note of a table with its version: maintenance leaves none."""
    for version in range(newest_version(path), -1, -1):
        commit = read_commit(path, table, version)
        if commit is None:
            return None
        if commit.note is not None:
            return version, commit.note
    return None


def open_table(path: Path, *, version: int | None = None) -> DeltaTable:
    """A table as it stands, or as it was. One that cannot be read is refused with the name of the file that is to blame."""
    try:
        return DeltaTable(str(path), version=version)
    except TableNotFoundError as error:
        raise LogError(f"{path} is not a table of the log any more; restore it from a copy") from error
    except (DeltaError, OSError) as error:
        raise LogError(_blame(path, error)) from error


_SYSTEM = re.compile(r"(\w[\w ]*) \(os error \d+\)")


def _blame(path: Path, error: Exception) -> str:
    """What is wrong is what the system said; else a file is, and Delta's words do not name it: look for it."""
    if said := _SYSTEM.search(str(error)):
        return f"{path} cannot be used: {said[1]}; when that is mended, start again: the run goes on where it was"
    log = path / "_delta_log"
    hint = log / "_last_checkpoint"
    try:
        if hint.exists():
            msgspec.json.decode(hint.read_bytes())
    except msgspec.MsgspecError:
        return f"{hint} is damaged; remove it while no run is on: it only says where to begin, and is written again"
    checkpoints = sorted(log.glob("*.checkpoint*.parquet"))
    for checkpoint in checkpoints:
        try:
            pq.read_table(checkpoint, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as why:
            return _damaged(checkpoint, str(why))
    newest, first = newest_version(path), int(checkpoints[-1].name[:20]) + 1 if checkpoints else 0
    for version in range(first, newest + 1):
        try:
            if read_commit(path, path.name, version) is None:
                return f"{commit_file(path, version)} is missing, and {newest - version} commits follow it; restore it from a copy"
        except LogError as why:
            return str(why)
    return f"{path} cannot be opened: {str(error).splitlines()[0]}; restore it from a copy"


def make_durable(path: Path, version: int) -> None:
    """Delta's own store leaves it to the system when a commit reaches the disk. Ours is this version, or, where another writer
    was faster, one of the next; to ask Delta which would cost as much as the commit."""
    while (file := commit_file(path, version)).exists():
        with file.open("rb") as commit:
            os.fsync(commit.fileno())
        version += 1
    sync_folder(path / "_delta_log")


class Table:
    """A table that this process may write: every commit asserts the fence of its run, in the same transaction."""

    def __init__(self, path: Path, name: str, fence: int) -> None:
        self.path, self.name, self._fence = path, name, fence
        self._handle: DeltaTable | None = None
        self._uses = 0

    def create(self) -> None:
        try:
            DeltaTable.create(
                str(self.path),
                SCHEMA,
                mode="ignore",
                partition_by=["stream"],
                configuration=REMEMBERED,
                post_commithook_properties=NO_HOOKS,
            )
        except (DeltaError, OSError) as error:
            raise LogError(_blame(self.path, error)) from error

    def raise_fence(self) -> None:
        """From here on, every commit of an older run fails."""
        handle = self._open()
        standing = handle.transaction_version(FENCE)
        if standing is not None and standing >= self._fence:
            raise Fenced(f"a newer run owns {self.path}; this one stops")
        self._write(handle, [], None, {})

    def fence(self) -> int:
        """The fence that stands; 0 if none does."""
        return self._open().transaction_version(FENCE) or 0

    def committed(self, writer: str) -> int:
        """The newest epoch of `writer`; -1 if there is none."""
        version = self._open().transaction_version(writer)
        return -1 if version is None else version

    def commit(self, files: list[StagedFile], note: bytes, *, writer: str, epoch: int) -> None:
        """Make files and note visible as `epoch` of `writer`, atomically, or raise and change nothing."""
        self._write(self.owned(), files, note, {writer: epoch})

    def annotate(self, note: bytes) -> None:
        """A commit that brings a note and no files."""
        self._write(self.owned(), [], note, {})

    def owned(self) -> DeltaTable:
        """The table, if the fence that stands is still ours."""
        handle = self._open()
        if (handle.transaction_version(FENCE) or 0) != self._fence:
            raise Fenced(f"a newer run owns {self.path}; this one stops")
        return handle

    def _open(self) -> DeltaTable:
        self._uses += 1
        if self._handle is not None and self._uses % FRESH_AFTER:
            try:
                self._handle.update_incremental()
                return self._handle
            except (DeltaError, OSError):
                pass  # the log may have been restored from a copy under our hands; if it is damaged, opening it says so
        self._handle = open_table(self.path)
        return self._handle

    def _write(self, handle: DeltaTable, files: list[StagedFile], note: bytes | None, writers: dict[str, int]) -> None:
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.size, {"stream": f.stream}, now, True, f.statistics()) for f in files
        ]
        properties = described(actions, note=note, writers={FENCE: self._fence, **writers})
        try:
            # Two writers that both assert the fence conflict, so a commit cannot slip in behind a newer fence.
            handle.create_write_transaction(
                actions, "append", SCHEMA, ["stream"], commit_properties=properties, post_commithook_properties=NO_HOOKS
            )
        except CommitFailedError as error:
            if self.fence() > self._fence:
                raise Fenced(f"a newer run owns {self.path}; this one stops ({error})") from error
            raise LogError(f"{self.path} cannot be written: {error}; see who else writes to it, and start again") from error
        except (DeltaError, OSError) as error:
            raise LogError(_blame(self.path, error)) from error
        make_durable(self.path, handle.version() + 1)
