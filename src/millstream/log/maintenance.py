"""Keeping the log small, outside the commit path: checkpoints, compaction, retention, and the sweeping of orphans.

Nothing that a consumer has not read is ever touched.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from millstream.core.backlog import LogFile, Position
from millstream.log.folder import Folder, read_json
from millstream.log.staged import ROWS_A_FILE, read_records, stage
from millstream.log.table import (
    FENCE,
    NO_HOOKS,
    SCHEMA,
    commit_file,
    described,
    make_durable,
    newest_note,
    newest_version,
    open_table,
    read_commit,
)
from millstream.timestamp import Duration, Timestamp

CHECKPOINT_EVERY = 20  # commits
COMPACT_FROM = 64  # read small files of one stream
COMPACT_ROWS = 1_000_000  # or this many rows together; no more are merged at once
COMPACT_SIZE = 32 << 20  # nor more bytes, as they lie on the disk
SMALL = 4 << 20  # bytes
COMMITS_KEPT = 200  # of those that every consumer has read
HOURS_KEPT = 1  # of files that left the table, for those who are just reading them
STAGED = f"[0-9]*/{'[0-9]' * 12}-*.parquet"  # as `stage` calls them


def consumed(folder: Folder, table: str, readers: Iterable[str] = ()) -> int:
    """The version below which every consumer has read everything of a table. One of `readers` that has not said so yet has
    read nothing; any other that ever read the table counts as it left it."""
    reached = {path.stem: read_json(path, dict[str, Position]) or {} for path in (folder.path / "consumers").glob("*.json")}
    versions = [positions[table].version for positions in reached.values() if table in positions]
    return 0 if any(table not in reached.get(reader, {}) for reader in readers) else min(versions, default=0)


def epoch_of(path: str) -> int:
    """The epoch that a file was staged in; of a compacted one, the newest that it holds."""
    return int(Path(path).name[:12])


@dataclass(frozen=True)
class LiveFile:
    """A file of a table at some version."""

    table: str
    path: str
    stream: str
    rows: int
    size: int
    modified: Timestamp


def live_files(table: DeltaTable, name: str) -> list[LiveFile]:
    """All files of a table at the version that is loaded."""
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [
        LiveFile(
            name, row["path"], row["partition.stream"], row["num_records"], row["size_bytes"], Timestamp(row["modification_time"] * 1000)
        )
        for row in rows
    ]


Small = LogFile | LiveFile


class Keeper:
    """Looks after one table. Made before anything else writes to it, then called now and then by the run that owns the folder."""

    def __init__(self, folder: Folder, table: str, *, readers: Iterable[str], retention: Duration | None, fence: int) -> None:
        self._folder, self._name, self._path, self._retention, self._fence = folder, table, folder.table(table), retention, fence
        self._readers = tuple(readers)  # consumers that will come, whether or not they have said how far they are
        found = sorted(self._path.glob("_delta_log/*.checkpoint*.parquet"))
        self._checkpointed = int(found[-1].name[:20]) if found else 0
        self._compacted: int | None = None
        self._small: dict[str, list[Small]] = {}
        self._left = deque(sorted(self._sweep()))  # no version names these files any more; when they left, the oldest first

    def look_after(self) -> None:
        newest = newest_version(self._path)
        read = min(consumed(self._folder, self._name, self._readers), newest + 1)
        self._compact(read)
        if newest - self._checkpointed >= CHECKPOINT_EVERY:
            table = open_table(self._path)
            self._retire(table, read)
            table.update_incremental()
            table.create_checkpoint()
            self._checkpointed = table.version()
            self._clean(read)
        self._delete()

    def _sweep(self) -> list[tuple[float, Path]]:
        """Delete what crashed attempts staged for an epoch that was never published; returns what else neither a version nor a
        manifest names, with when it left."""
        live = {file.path for file in live_files(open_table(self._path), self._name)}
        manifests = "".join(manifest.read_text() for manifest in self._folder.manifests.glob("*.json"))
        published = max(self._epoch_before(newest_version(self._path) + 1), *map(epoch_of, live), -1)
        known = published >= 0 or commit_file(self._path, 0).exists()  # else what said so is cleaned away
        left = []
        for file in self._path.glob(STAGED):
            name = str(file.relative_to(self._path))
            if name not in live and name not in manifests:
                if known and epoch_of(name) > published:
                    file.unlink()
                else:
                    left.append((file.stat().st_mtime, file))
        return left

    def _leave(self, files: Iterable[Small]) -> None:
        """The files themselves remember when, for a run that comes later."""
        now = time.time()
        for file in files:
            path = self._path / file.path
            with suppress(FileNotFoundError):  # then it is gone already, and nobody is to miss it any more
                os.utime(path, (now, now))
                self._left.append((now, path))

    def _delete(self) -> None:
        """Nobody reads any more what left the table long ago."""
        before = time.time() - HOURS_KEPT * 3600
        if not self._left or self._left[0][0] >= before:
            return
        # An older run may have been slow to commit what this one took for a leftover of it.
        live = {self._path / file.path for file in live_files(open_table(self._path), self._name)}
        while self._left and self._left[0][0] < before:
            _, file = self._left.popleft()
            if file not in live:
                file.unlink(missing_ok=True)

    def _compact(self, read: int) -> None:
        """Many small files that all have read become one, without any reader noticing."""
        if read == 0:
            return  # somebody has not begun
        if self._compacted is None:  # what earlier runs left
            upto = self._epoch_before(read)
            found: list[Small] = [file for file in live_files(open_table(self._path), self._name) if epoch_of(file.path) <= upto]
            self._compacted = read
        else:
            commits = [read_commit(self._path, self._name, version) for version in range(self._compacted, read)]
            found = [file for commit in commits if commit is not None for file in commit.files]
            self._compacted = max(self._compacted, read)
        for file in found:
            if _is_small(file):
                self._small.setdefault(file.stream, []).append(file)
        for stream, files in list(self._small.items()):
            if len(files) >= COMPACT_FROM or sum(file.rows for file in files) >= COMPACT_ROWS:
                # What is still small is merged again: the number of live files follows the records, not the epochs.
                self._small[stream] = [file for part in _parts(files) for file in self._merge(stream, part) if _is_small(file)]

    def _merge(self, stream: str, files: list[Small]) -> list[Small]:
        """Make as few files of these as can be; returns those that hold their records now."""
        table = open_table(self._path)
        live = {file.path: file for file in live_files(table, self._name)}
        present = [live[file.path] for file in files if file.path in live]
        if len(present) < 2:
            return [*present]
        whole = pa.concat_tables([read_records(self._path / file.path) for file in present])
        written = max(file.modified for file in present)  # they grow no younger by being merged: retention goes by it
        made = []
        for start in range(0, whole.num_rows, ROWS_A_FILE):  # each under the newest epoch that it holds
            part = whole.slice(start, ROWS_A_FILE)
            made += stage(self._path, stream, part, epoch=pc.max(part["epoch"]).as_py())
        actions: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.size, {"stream": stream}, int(written) // 1000, False, f.statistics()) for f in made
        ]
        actions += [_remove(file, int(time.time() * 1000), data_change=False) for file in present]
        if not self._commit(table, actions):
            for file in made:
                (self._path / file.path).unlink()
            return [*present]
        self._leave(present)
        return [LiveFile(self._name, f.path, stream, f.rows, f.size, written) for f in made]

    def _retire(self, table: DeltaTable, read: int) -> None:
        """Files older than the retention whose epochs all have read leave the table."""
        if self._retention is None:
            return
        upto = self._epoch_before(read)
        before = Timestamp(time.time_ns() // 1000) - self._retention
        old = [file for file in live_files(table, self._name) if epoch_of(file.path) <= upto and file.modified < before]
        if old and self._commit(table, [_remove(file, int(time.time() * 1000), data_change=True) for file in old]):
            self._leave(old)

    def _epoch_before(self, read: int) -> int:
        """The newest epoch that all have read; -1 if it is not known any more."""
        for version in range(read - 1, -1, -1):
            commit = read_commit(self._path, self._name, version)
            if commit is None:
                return -1
            if commit.files:
                return max(epoch_of(file.path) for file in commit.files)
        return -1

    def _commit(self, table: DeltaTable, actions: list[AddAction | RemoveAction]) -> bool:
        """False if somebody else changed the same files meanwhile: then theirs stands, and the next look finds what is left."""
        table.update_incremental()
        if (table.transaction_version(FENCE) or 0) != self._fence:
            return False  # another run owns the table now
        try:
            table.create_write_transaction(
                actions, "append", SCHEMA, ["stream"], commit_properties=described(actions), post_commithook_properties=NO_HOOKS
            )
        except CommitFailedError:
            return False
        make_durable(self._path, table.version() + 1)
        return True

    def _clean(self, read: int) -> None:
        """Versions before the checkpoint that nobody needs any more."""
        note = newest_note(self._path, self._name)
        keep_from = min(self._checkpointed, read, note[0] if note is not None else 0) - COMMITS_KEPT
        for path in self._path.glob("_delta_log/*"):
            if path.name[:20].isdigit() and int(path.name[:20]) < keep_from:
                path.unlink(missing_ok=True)


def _is_small(file: Small) -> bool:
    """A file with as many rows as one may have is whole, however few bytes they take."""
    return file.size < SMALL and file.rows < ROWS_A_FILE


def _parts(files: list[Small]) -> Iterator[list[Small]]:
    """The oldest first, no more at once than is merged at once."""
    part: list[Small] = []
    rows = size = 0
    for file in sorted(files, key=lambda file: epoch_of(file.path)):
        if part and (rows + file.rows > COMPACT_ROWS or size + file.size > COMPACT_SIZE):
            yield part
            part, rows, size = [], 0, 0
        part.append(file)
        rows, size = rows + file.rows, size + file.size
    yield part


def _remove(file: Small, now: int, *, data_change: bool) -> RemoveAction:
    return RemoveAction(file.path, data_change, now, file.size, {"stream": file.stream})
