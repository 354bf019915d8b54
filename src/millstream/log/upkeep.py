"""Keeping the log small, beside the commits: merging, retention, compaction, Delta's checkpoints, cleaning, removal of orphans.

Called between two commits of the writer, so each call does a bounded amount. Every entry of it says the epoch that the table
has, as the writer's do: neither can pass the other unseen (rule 16).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from millstream.errors import LogError
from millstream.journal.leftovers import sweep_asides
from millstream.log.compaction import Compaction
from millstream.log.entries import ENTRIES, version_of
from millstream.log.folder import sync_folder
from millstream.log.history import History, read_file
from millstream.log.keeping import AgeGroup, Keeping, Needs
from millstream.log.rows import ORDER, ROWS_PER_FILE
from millstream.log.snapshot import LiveFile, LogSnapshot, checkpoint_path, newest_checkpoint
from millstream.timestamp import HOUR, SECOND, Duration, Timestamp

ENTRIES_PER_CHECKPOINT = 20
ENTRIES_KEPT = 200  # before the checkpoint, for those who follow the table entry by entry
FILES_PER_MERGE = 64  # so many small files of a stream are merged
BYTES_PER_MERGE = 16 << 20  # at once, as they lie on the disk
ROWS_PER_MERGE = 500_000
SMALL = 4 << 20  # bytes
FILES_PER_EXPIRY = 1_000  # leave the table in one entry
KEPT_AFTER_LEAVING = HOUR  # for those who are just reading them
EXPIRE_EVERY = 10 * SECOND
FILES = f"{'[0-9]' * 4}-[0-9][0-9]-[0-9][0-9]/*.parquet"  # as `History.stage` calls them


class Upkeep:
    """Maintains the table for the process that writes it."""

    def __init__(self, history: History, root: Path, *, retention: Duration | None, streams: Mapping[str, Keeping] | None = None) -> None:
        """`streams` are those for which something else is asked than `retention`."""
        self._history, self._root = history, root
        self._usual, self._streams = Keeping(retention), dict(streams or {})
        self._compaction = Compaction(history, self._streams)
        self.snapshot = LogSnapshot(history.disk)
        self._checkpointed = max(0, newest_checkpoint(history.disk))
        self._left: deque[tuple[Timestamp, str]] = deque()  # files that no entry names any more, and when they left; oldest first
        self._searched: Timestamp | None = None
        self._expired: Timestamp | None = None
        self.kept: frozenset[str] = frozenset()  # streams of which retention leaves old files, for somebody needs them

    def run(self, now: Timestamp, needs: Needs | None = None) -> bool:
        """Do a bounded part of what is to be done; whether more is to be done at once.

        Retention and compaction stop at what somebody needs; nobody needs anything unless it is said.
        """
        self.snapshot.advance()
        needs = needs or Needs(self.snapshot.upto)
        if self._expired is None or now - self._expired >= EXPIRE_EVERY:
            self._expire(now, needs)
            self._expired = now
        self._leave(self._compaction.run(self.snapshot, now, needs), now)
        merged = self._merge(now)
        if self.snapshot.version - self._checkpointed >= ENTRIES_PER_CHECKPOINT:
            self._checkpoint()
            self._clean()
        if self._searched is None or now - self._searched >= KEPT_AFTER_LEAVING:
            self._find_orphans()
            sweep_asides(self._history.disk, [ENTRIES], now=now)
            self._searched = now
        self._delete(now)
        return merged or self._compaction.is_busy

    def _merge(self, now: Timestamp) -> bool:
        """Many small files of one stream become few, and no record changes. What is still small is merged again: the number of
        live files follows the records, not the entries. Those of an age group that is over become one, however few."""
        small: dict[tuple[str, AgeGroup | None], list[LiveFile]] = {}
        for file in self.snapshot.files.values():
            if file.size < SMALL and file.rows < ROWS_PER_FILE:  # a file with all the rows it may have is whole, however few bytes
                small.setdefault((file.stream, self._keeping(file.stream).age_group(file, now)), []).append(file)
        due = {at: files for at, files in small.items() if len(files) >= (2 if at[1] and at[1].is_over(now) else FILES_PER_MERGE)}
        if not due:
            return False
        stream, group = max(due, key=lambda at: len(due[at]))
        files = _oldest(due[stream, group])
        # Sorted, so that a reader who goes epoch by epoch holds few of them at once.
        whole = pa.concat_tables([read_file(self._history.disk, file.path) for file in files]).sort_by(ORDER)
        written = int(max(file.modified for file in files)) // 1000  # they grow no younger by being merged: retention goes by it
        made = [self._history.stage_records(stream, whole.slice(start, ROWS_PER_FILE)) for start in range(0, whole.num_rows, ROWS_PER_FILE)]
        added = [file.added(modified=written, data_change=False) for file in made]
        removed = [file.path for file in files]
        if not self._history.replace(self.snapshot, added, removed, operation="OPTIMIZE", data_change=False):
            self._history.discard(made)
            return False
        self._leave(removed, now)
        return True

    def _keeping(self, stream: str) -> Keeping:
        return self._streams.get(stream, self._usual)

    def _expire(self, now: Timestamp, needs: Needs) -> None:
        """Files that were written longer ago than the retention of their stream leave the table, unless somebody needs an epoch in
        them."""
        old = [file for file in self.snapshot.files.values() if self._keeping(file.stream).is_over(file, now)]
        free = [file for file in old if min(file.last, self.snapshot.upto) <= needs.settled(file.stream)]
        self.kept = frozenset(file.stream for file in old if file.last >= needs.needed_from.get(file.stream, file.last + 1))
        leaving = [file.path for file in sorted(free, key=lambda file: file.modified)[:FILES_PER_EXPIRY]]
        if leaving and self._history.replace(self.snapshot, [], leaving, operation="DELETE", data_change=True):
            self._leave(leaving, now)

    def _checkpoint(self) -> None:
        """Delta's own, so that opening the table costs the same however many entries it ever had. Durable before any goes."""
        try:
            table = DeltaTable(str(self._root), version=self.snapshot.version)
            table.create_checkpoint()
        except (DeltaError, OSError) as error:
            raise LogError(f"{self._root} cannot be opened by Delta: {str(error).splitlines()[0]}; restore it from a copy") from error
        for path in (checkpoint_path(self.snapshot.version), f"{ENTRIES}/_last_checkpoint"):
            self._history.disk.sync_file(path)
        sync_folder(self._root / ENTRIES)
        self._checkpointed = self.snapshot.version

    def _clean(self) -> None:
        """Old entries and checkpoints go, the oldest first: `History` relies on that to know a number that was taken."""
        entries, checkpoints = [], []
        for name in os.listdir(self._root / ENTRIES):
            version = version_of(name)
            if version is not None and version < self._checkpointed - ENTRIES_KEPT:
                entries.append(name)
            elif name[:20].isdigit() and ".checkpoint." in name and int(name[:20]) < self._checkpointed:
                checkpoints.append(name)
        kept = sorted(checkpoints)[-1:]  # one more, for those who have just read where to begin
        for name in [*sorted(entries), *sorted(set(checkpoints) - set(kept))]:
            (self._root / ENTRIES / name).unlink(missing_ok=True)

    def _leave(self, paths: Iterable[str], now: Timestamp) -> None:
        """The files themselves remember when, for a run that comes later."""
        for path in paths:
            with suppress(FileNotFoundError):  # then it is gone already, and nobody is to miss it any more
                os.utime(self._root / path, (int(now) / 1e6, int(now) / 1e6))
                self._left.append((now, path))

    def _find_orphans(self) -> None:
        """What crashed or refused writers left, and what left the table under an earlier run."""
        known = {path for _, path in self._left}
        found = []
        for file in self._root.glob(FILES):
            path = str(file.relative_to(self._root))
            if path not in self.snapshot.files and path not in known:
                with suppress(FileNotFoundError):
                    found.append((Timestamp(file.stat().st_mtime_ns // 1000), path))
        self._left = deque(sorted([*self._left, *found]))

    def _delete(self, now: Timestamp) -> None:
        """Nobody reads any more what left the table long ago. An entry may have named since what was taken for an orphan."""
        while self._left and now - self._left[0][0] >= KEPT_AFTER_LEAVING:
            _, path = self._left.popleft()
            if path not in self.snapshot.files and path not in self._history.staged:
                self._history.disk.remove(path)


def _oldest(files: list[LiveFile]) -> list[LiveFile]:
    """The oldest epochs first, no more than memory should hold at once, but at least two."""
    part: list[LiveFile] = []
    rows = size = 0
    for file in sorted(files, key=lambda file: (file.first, file.last)):
        rows, size = rows + file.rows, size + file.size
        if len(part) >= 2 and (rows > ROWS_PER_MERGE or size > BYTES_PER_MERGE):
            break
        part.append(file)
    return part
