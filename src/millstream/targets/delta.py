"""A delivery into a Delta table: typed columns, and the last epoch it has in the table's own transaction."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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

    def __init__(self, name: str, path: str, values: Values, *, identity: str, begins: int) -> None:
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
        if self._files:
            sync_folder(self._path)
        version = table.version()
        # From here on nobody removes them: after an error it is not known whether a commit names them.
        actions: list[AddAction | RemoveAction] = [*self._files]
        self._files = []
        properties = CommitProperties(app_transactions=[Transaction(self._app, to)])
        try:
            table.create_write_transaction(
                actions, "append", self._values.schema, commit_properties=properties, post_commithook_properties=NO_HOOKS
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

    def _write(self, rows: Rows) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        name = f"{self._prefix}-{self._position:012d}-{uuid.uuid4().hex}.parquet"  # `sweep` goes by it
        size = write_parquet(self._path / name, self._values.table(rows))
        statistics = msgspec.json.encode({"numRecords": len(rows)}).decode()
        self._files.append(AddAction(name, size, {}, int(time.time() * 1000), True, statistics))

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
        with _opening(self._path):
            DeltaTable.create(str(self._path), self._values.schema, mode="ignore")
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
    with _opening(path):
        return DeltaTable(str(path)) if DeltaTable.is_deltatable(str(path)) else None


def check_schema(path: Path, table: DeltaTable, values: Values) -> None:
    """Refuse a table whose columns are not those that the stream makes."""
    standing, schema = pa.schema(table.schema().to_arrow()), values.schema
    if standing.names != schema.names or standing.field("value").type != schema.field("value").type:
        held = standing.field("value").type if "value" in standing.names else f"columns {', '.join(standing.names)}"
        raise LogError(
            f"the table {path} holds values of {held}, the stream {values.stream!r} now carries "
            f"{schema.field('value').type}; deliver it to another path, or keep the old type"
        )


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError) as error:
        why = str(error).splitlines()[0].removeprefix("Kernel error: ")
        raise LogError(f"the table {path} cannot be opened: {why}; restore it from a copy, or deliver to another path") from error


def _sync_versions(path: Path, version: int) -> None:
    """Delta's own store leaves it to the system when a commit reaches the disk. Ours is this version, or one of the next."""
    while (file := path / "_delta_log" / f"{version:020d}.json").exists():
        with file.open("rb") as commit:
            os.fsync(commit.fileno())
        version += 1
    sync_folder(path / "_delta_log")
