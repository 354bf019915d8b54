"""A delivery into a Delta table: typed columns, and the last epoch it has in the table's own transaction."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from millstream.core.parts import Columns
from millstream.errors import LogError
from millstream.log.folder import sync_folder
from millstream.log.parquet import write_parquet
from millstream.log.rows import Rows
from millstream.targets.leftovers import sweep_table
from millstream.targets.output import Refused
from millstream.targets.row_values import RowValues
from millstream.targets.typed import Gathered, Values
from millstream.timestamp import Timestamp

VERSIONS_PER_CHECKPOINT = 50
FRESH_AFTER = 64  # uses of a handle: it may look at versions as old as itself, and those are cleaned away some day
# Checkpoints and cleaning stay outside the commit.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class DeltaOutput:
    """The table is the user's: it may have other writers, features and settings, so its commits are deltalake's.

    Two commits that name the same application conflict, so of two writers of one delivery that read the same position only
    one goes in; others make deltalake take the next version (tried with 1.6.6; rule 16).
    """

    configuration: ClassVar[dict[str, str]] = {}  # of a table that is made

    def __init__(self, name: str, path: str, values: Values | RowValues, *, identity: str, begins: int) -> None:
        """`begins` is the position where the table has none: what came before went elsewhere, or nowhere."""
        self.name, self.streams = name, frozenset([values.stream])
        self._path, self._values, self._begins = Path(path), values, begins
        self._app, self._prefix = application(name, identity), identity[:8]
        self._gathered = Gathered(self._write)
        self._files: list[AddAction] = []
        self._table: DeltaTable | None = None
        self._uses = 0
        self._position = begins

    def position(self) -> int:
        table = self._open()
        _sync_versions(self._path, table.version())  # after kill -9 it may be there and not yet on the disk
        self._position = self._found(table)
        return self._position

    def open_until(self) -> int | None:
        return None

    def add(self, epoch: int, stream: str, origin: str, major: int, columns: Columns) -> None:
        self._gathered.add(epoch, origin, major, columns)

    def commit(self, to: int) -> int:
        self._gathered.flush()
        table = self._open()
        if self._found(table) != self._position:
            raise Refused(self._another(f"it is at epoch {self._found(table)}"))
        actions = self._actions(table)
        if self._files:
            sync_folder(self._path)
        version = table.version()
        self._files = []  # from here on nobody removes them: after an error it is not known whether a commit names them
        try:
            table.create_write_transaction(
                actions, "append", self._values.schema, commit_properties=self._properties(to), post_commithook_properties=NO_HOOKS
            )
        except CommitFailedError as error:
            raise Refused(self._another(str(error).splitlines()[0])) from error
        except (DeltaError, OSError) as error:
            raise LogError(f"{self._path} cannot be written: {str(error).splitlines()[0]}") from error
        _sync_versions(self._path, version + 1)
        self._position = to
        self._maintain()
        return to

    def drop(self) -> None:
        self._gathered.drop()
        for file in self._files:
            (self._path / file.path).unlink(missing_ok=True)
        self._files = []

    def sweep(self, now: Timestamp) -> None:
        """Remove what writers of this delivery that were killed have left."""
        called = re.compile(rf"{re.escape(self._prefix)}-(\d{{12,}})-[0-9a-f]{{32}}\.parquet")
        sweep_table(self._path, self._open(), self._app, called, staged={file.path for file in self._files}, now=now)

    def _actions(self, table: DeltaTable) -> list[AddAction | RemoveAction]:
        """What the next commit does to the table as it stands."""
        return [*self._files]

    def _properties(self, to: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(self._app, to)])

    def _write(self, rows: Rows) -> None:
        assert isinstance(self._values, Values)
        self._write_file(self._values.table(rows))

    def _write_file(self, content: pa.Table, *, repeated: Sequence[str] = ("key",)) -> AddAction:
        self._path.mkdir(parents=True, exist_ok=True)
        name = f"{self._prefix}-{self._position:012d}-{uuid.uuid4().hex}.parquet"  # `sweep` goes by it
        size = write_parquet(self._path / name, content, repeated=repeated)
        statistics = msgspec.json.encode({"numRecords": content.num_rows}).decode()
        added = AddAction(name, size, {}, int(time.time() * 1000), True, statistics)
        self._files.append(added)
        return added

    def _found(self, table: DeltaTable) -> int:
        found = table.transaction_version(self._app)
        return self._begins if found is None else found

    def _open(self) -> DeltaTable:
        self._uses += 1
        if self._table is not None and self._uses % FRESH_AFTER:
            try:
                self._table.update_incremental()
                return self._table
            except (DeltaError, OSError):
                pass  # restored from a copy, or cleaned by its owner; if it is damaged, opening it says so
        table = open_table(self._path)
        if table is None:
            table = self._create()
        check_schema(self._path, table, self._values)
        self._table = table
        return table

    def _create(self) -> DeltaTable:
        with explained_table(self._path):
            DeltaTable.create(str(self._path), self._values.schema, mode="ignore", configuration=self.configuration or None)
            return DeltaTable(str(self._path))

    def _maintain(self) -> None:
        """Opening the table must not cost with its commits."""
        assert self._table is not None
        self._table.update_incremental()
        if self._table.version() % VERSIONS_PER_CHECKPOINT == 0:
            self._table.create_checkpoint()
            if self._table.metadata().configuration.get("delta.enableExpiredLogCleanup") != "false":
                self._table.cleanup_metadata()  # what is older than the table is told to keep: a month, by itself

    def _another(self, why: str) -> str:
        return f"another writer delivers to {self._path} as this delivery; stop it: {why}"


def application(name: str, identity: str) -> str:
    """Under which a delivery has its position in the table."""
    return f"millstream/{identity}/{name}"


def open_table(path: Path) -> DeltaTable | None:
    """The table as it stands; None if there is none."""
    with explained_table(path):
        return DeltaTable(str(path)) if DeltaTable.is_deltatable(str(path)) else None


def check_schema(path: Path, table: DeltaTable, values: Values | RowValues) -> None:
    """Refuse a table whose columns are not those that the stream makes, and one whose files cannot be written anew."""
    values.check(path, pa.schema(table.schema().to_arrow()))
    if isinstance(values, RowValues) and table.protocol().min_reader_version > 1:
        raise LogError(
            f"the table {path} has features that its readers must know (column mapping, deletion vectors or the like), so its rows "
            f"cannot be kept by Millstream; deliver them to another path"
        )


@contextmanager
def explained_table(path: Path, what: str = "opened") -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError) as error:
        why = str(error).splitlines()[0].removeprefix("Kernel error: ")
        raise LogError(f"the table {path} cannot be {what}: {why}; restore it from a copy, or deliver to another path") from error


def _sync_versions(path: Path, version: int) -> None:
    """Delta's own store leaves it to the system when a commit reaches the disk. Ours is this version, or one of the next."""
    while (file := path / "_delta_log" / f"{version:020d}.json").exists():
        with file.open("rb") as commit:
            os.fsync(commit.fileno())
        version += 1
    sync_folder(path / "_delta_log")
