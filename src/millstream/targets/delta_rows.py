"""A delivery into a Delta table with one row a key: a step writes anew the files that hold a changed row, and no others."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from millstream.core.parts import Columns
from millstream.log.rows import ROWS_PER_FILE
from millstream.targets.delta import DeltaOutput, explained_table
from millstream.targets.output import Refused
from millstream.targets.row_files import BYTES_PER_FILE, FULL, RowFile, RowFiles, slices
from millstream.targets.row_values import RowValues, Told
from millstream.timestamp import Timestamp

BYTES_HELD = 256 << 20  # of changes that wait for the end of their step; more are merged before it
# The table is made of rows that stand, and every step removes files. So nobody is to travel back in it for long: what has left
# the table is gone after an hour, and of what its versions were a day is kept.
CONFIGURATION = {"delta.deletedFileRetentionDuration": "interval 1 hours", "delta.logRetentionDuration": "interval 1 days"}


class DeltaRowsOutput(DeltaOutput):
    """Changed rows move to a new file, and the files where they were are written anew without them: rows that change often come
    to lie together, in small files, and a step costs with those. Small files are merged as they become many.

    A commit says which files it removes, so it must follow the very version that was looked at: whoever else changes the
    table meanwhile makes it fail, and the step is made again.
    """

    configuration = CONFIGURATION

    def __init__(self, name: str, path: str, values: RowValues, *, identity: str, begins: int) -> None:
        super().__init__(name, path, values, identity=identity, begins=begins)
        self._rows = values
        self._changes: dict[str, tuple[Told, bytes]] = {}
        self._size = 0
        self._live = RowFiles(Path(path), values.key)
        self._removed: dict[str, int] = {}  # of the table's files, and their sizes

    def add(self, epoch: int, stream: str, origin: str, major: int, columns: Columns) -> None:
        changes = self._changes
        for key, value, timestamp, minor in zip(columns.keys, columns.values, columns.timestamps, columns.minors, strict=True):
            told, known = Told(epoch, timestamp, origin, major, minor), changes.get(key)
            if known is None or known[0] < told:
                changes[key] = (told, value)
                self._size += len(value) - (0 if known is None else len(known[1]))
        if self._size > BYTES_HELD:
            self._merge(self._open())

    def commit(self, to: int) -> int:
        super().commit(to)
        self._removed.clear()
        return to

    def drop(self) -> None:
        super().drop()
        self._changes, self._size = {}, 0
        self._removed.clear()
        self._live.forget()

    def sweep(self, now: Timestamp) -> None:
        """Delta's own vacuum, by what the table says how long to keep what has left it: nothing else keeps its disk from filling."""
        with explained_table(self._path, "cleaned"):
            self._open().vacuum(dry_run=False, full=True)

    def _actions(self, table: DeltaTable) -> list[AddAction | RemoveAction]:
        self._merge(table)
        now = int(time.time() * 1000)
        gone: list[AddAction | RemoveAction] = [RemoveAction(path, True, now, size, {}) for path, size in self._removed.items()]
        self._live.version = table.version() + 1  # by the commit that follows, or it is refused and all is forgotten
        return [*gone, *self._files]

    def _properties(self, to: int) -> CommitProperties:
        """Without a retry: deltalake would take the next version without a look at what is in the ones between."""
        return CommitProperties(app_transactions=[Transaction(self._app, to)], max_commit_retries=0)

    def _another(self, why: str) -> str:
        return f"another writer changes {self._path}, which this delivery keeps; stop it: {why}"

    def _merge(self, table: DeltaTable) -> None:
        """The changes that wait, into files that nobody sees yet."""
        if (self._files or self._removed) and self._live.version != table.version():
            raise Refused(self._another(f"it is at version {table.version()}"))
        self._live.follow(table)
        changes, self._changes, self._size = self._changes, {}, 0
        if not changes:
            return
        keys = pa.array(changes, pa.string())
        pool = [self._rows.rows(changes)]
        for file in self._live.holding(changes):
            rows = self._take(file)
            rows = rows.filter(pc.invert(pc.is_in(rows[self._rows.key], keys)))
            if rows.num_rows > ROWS_PER_FILE * FULL or rows.nbytes > BYTES_PER_FILE * FULL:
                self._put(rows)
            else:
                pool = self._pooled(pool, rows)
        for file in self._live.to_merge():
            pool = self._pooled(pool, self._take(file))
        self._put(pa.concat_tables(pool))

    def _pooled(self, pool: list[pa.Table], rows: pa.Table) -> list[pa.Table]:
        """Rows on their way into files; those that fill one are written, so that memory holds few."""
        pool.append(rows)
        if sum(each.num_rows for each in pool) <= ROWS_PER_FILE and sum(each.nbytes for each in pool) <= BYTES_PER_FILE:
            return pool
        *full, rest = slices(pa.concat_tables(pool))
        for each in full:
            self._put(each)
        return [rest]

    def _take(self, file: RowFile) -> pa.Table:
        """The rows of a file, which is none of the table's any more; one of this very step is gone at once."""
        rows = self._live.read(file.path).select(self._rows.schema.names).cast(self._rows.schema)
        self._live.remove(file.path)
        staged = [add for add in self._files if add.path == file.path]
        if staged:
            self._files.remove(staged[0])
            (self._path / file.path).unlink(missing_ok=True)
        else:
            self._removed[file.path] = file.size
        return rows

    def _put(self, rows: pa.Table) -> None:
        for each in slices(rows):
            add = self._write_file(each, repeated=())  # each key stands there once
            self._live.add(add.path, add.size, each)
