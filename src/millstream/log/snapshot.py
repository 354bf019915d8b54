"""The live files of the log's table at one version: read once from its newest checkpoint, then kept up entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import LogError
from millstream.journal.disk import Disk
from millstream.journal.errors import explained
from millstream.log.entries import APP_ID, COMPACTED, ENTRIES, Add, Entry, damaged, decode_entry, entry_path, version_of
from millstream.timestamp import Timestamp

_CHECKPOINT = ".checkpoint.parquet"
_UNKNOWN_LAST = 2**63 - 1


class LiveFile(msgspec.Struct, frozen=True):
    """A file of the table, and what its entry says of it."""

    path: str
    stream: str
    rows: int
    size: int
    first: int  # epoch; the first and last are those of all epochs where a tool that is not ours wrote the file
    last: int
    modified: Timestamp  # when its newest records were written
    oldest: str = ""  # timestamp of its records, as Delta spells it; empty if it is not known


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int = 0
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}


_decode_stats = msgspec.json.Decoder(_Stats).decode


def live_file(add: Add) -> LiveFile:
    stats = _decode_stats(add.stats or "{}")
    first, last = stats.min_values.get("epoch", 0), stats.max_values.get("epoch", _UNKNOWN_LAST)
    stream = add.partition_values.get("stream") or ""
    modified, oldest = Timestamp(add.modification_time * 1000), stats.min_values.get("timestamp") or ""
    return LiveFile(unquote(add.path), stream, stats.num_records, add.size, first, last, modified, oldest)


def newest_version(disk: Disk) -> int:
    """The newest entry; -1 if there is no table."""
    with explained(ENTRIES):
        return max((found for name in disk.names(ENTRIES) if (found := version_of(name)) is not None), default=-1)


def newest_checkpoint(disk: Disk) -> int:
    """The version of Delta's newest checkpoint; -1 if there is none."""
    with explained(ENTRIES):
        names = [name for name in disk.names(ENTRIES) if name.endswith(_CHECKPOINT) and name[:20].isdigit()]
    return max((int(name[:20]) for name in names), default=-1)


def read_entry(disk: Disk, version: int) -> Entry | None:
    """One version from its own file (0.1 ms at any size of the table); None if it is not there."""
    path = entry_path(version)
    with explained(path):
        try:
            content = disk.read(path)
        except FileNotFoundError:
            return None
    return decode_entry(path, version, content)


class LogSnapshot:
    """What the table holds at `version`, complete up to epoch `upto`."""

    def __init__(self, disk: Disk) -> None:
        """Costs with the live files, and with the entries since the newest checkpoint."""
        self._disk = disk
        while True:
            self.files: dict[str, LiveFile] = {}
            self.upto = 0
            self.compacted: dict[str, int] = {}  # by stream: no two records up to this epoch have one key
            self.version = begun = newest_checkpoint(disk)
            newest = newest_version(disk)
            if begun < 0 or self._read_checkpoint():
                self.advance()
                if self.version >= newest:
                    return
            if newest_checkpoint(disk) == begun:  # else entries were cleaned away while this was read
                raise LogError(f"{entry_path(self.version + 1)} is missing, and later entries are there; restore it from a copy")

    def advance(self) -> None:
        """Take in the entries that came since."""
        while (entry := read_entry(self._disk, self.version + 1)) is not None:
            self.apply(entry)

    def apply(self, entry: Entry) -> None:
        assert entry.version == self.version + 1
        for path in entry.removed:
            self.files.pop(path, None)
        for add in entry.added:
            self._add(add)
        self.compacted.update(entry.compacted)
        self.version = entry.version
        if entry.upto is not None:
            self.upto = entry.upto

    def of_stream(self, stream: str) -> list[LiveFile]:
        """In the order of their epochs."""
        return sorted((file for file in self.files.values() if file.stream == stream), key=lambda file: (file.first, file.last, file.path))

    def _add(self, add: Add) -> None:
        file = live_file(add)
        self.files[file.path] = file

    def _read_checkpoint(self) -> bool:
        """False if it is gone."""
        path = checkpoint_path(self.version)
        with explained(path):
            try:
                content = self._disk.read(path)
            except FileNotFoundError:
                return False
        try:
            table = pq.read_table(pa.BufferReader(content), columns=["add", "txn"])
        except (pa.ArrowException, OSError) as error:
            raise LogError(damaged(path, str(error))) from error
        for row in _rows(table, "add"):
            partitions = dict(row["partitionValues"] or [])
            self._add(Add(row["path"], partitions, row["size"], row["modificationTime"], False, row["stats"]))
        for row in _rows(table, "txn"):
            if row["appId"] == APP_ID:
                self.upto = row["version"]
            elif row["appId"].startswith(COMPACTED):
                self.compacted[row["appId"].removeprefix(COMPACTED)] = row["version"]
        return True


def checkpoint_path(version: int) -> str:
    return f"{ENTRIES}/{version:020d}{_CHECKPOINT}"


def _rows(table: pa.Table, name: str) -> Iterator[dict[str, Any]]:
    yield from table[name].drop_null().to_pylist()
