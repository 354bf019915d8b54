"""Tables of the writer: the log's, and those that a delivery goes to. Every step is a place to be killed at, and the power can go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from millstream.core.parts import Columns
from millstream.log.rows import Rows
from millstream.targets import delta
from millstream.targets.delivery import Content
from millstream.targets.delta import DeltaOutput
from millstream.writer import performing
from tests.simulation.turns import Broken
from tests.writer.memory_table import Found, MemoryTable, found_in

if TYPE_CHECKING:
    from tests.simulation.world import World


class SimTable(MemoryTable):
    """The log's table."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.on_step = lambda what: world.point(f"the table: {what}")

    def history(self, stream: str, after: int, upto: int) -> Iterator[tuple[int, list[Content]]]:
        """As `millstream.log.reading_history` gives it."""
        found = [each for each in self.found(stream) if after < each[0] <= upto]
        for epoch, of_epoch in groupby(found, key=lambda each: each[0]):
            contents = []
            for (origin, major), some in groupby(of_epoch, key=lambda each: (each[1], each[2])):
                rows = list(some)
                columns = Columns([r[4] for r in rows], [r[5] for r in rows], [r[6] for r in rows], [r[3] for r in rows])
                contents.append(Content(origin, major, columns))
            yield epoch, contents


@dataclass
class _Version:
    app: str = ""
    upto: int = 0
    records: list[Found] = field(default_factory=list)
    durable: bool = False


class DeltaFolder:
    """A Delta table as `deltalake` shows it: of two commits that name one application, the second is refused."""

    def __init__(self, world: World, name: str, stream: str) -> None:
        self.world, self.name, self.stream = world, name, stream
        self.path = world.folder / name
        self.versions: list[_Version] = [_Version(durable=True)]
        self.staged: dict[str, list[Found]] = {}

    @property
    def done(self) -> int:
        """Up to this epoch it has everything for good."""
        return max(version.upto for version in self.versions if version.durable)

    def ids(self) -> list[tuple[str, int, int]]:
        return [each[1:4] for version in self.versions for each in version.records]

    def sync(self) -> None:
        self.world.point(f"the table of {self.name}: sync")
        for version in self.versions:
            version.durable = True

    def maintain(self) -> None:
        """Somebody else adds a version."""
        self.versions.append(_Version())

    def lose_power(self) -> None:
        while not self.versions[-1].durable:
            self.versions.pop()


class _Handle:
    """A `DeltaTable`: the table as it was when it was opened or last looked at."""

    def __init__(self, folder: DeltaFolder) -> None:
        self._folder = folder
        self.update_incremental()

    def update_incremental(self) -> None:
        self._folder.world.point(f"the table of {self._folder.name}: open")
        self._at = len(self._folder.versions)

    def version(self) -> int:
        return self._at - 1

    def transaction_version(self, app: str) -> int | None:
        return max((version.upto for version in self._folder.versions[: self._at] if version.app == app), default=None)

    def create_write_transaction(self, actions: list[AddAction], *_: Any, commit_properties: Any, **options: Any) -> None:
        folder, (transaction,) = self._folder, commit_properties.app_transactions
        folder.world.point(f"the table of {folder.name}: create")
        if any(version.app == transaction.app_id for version in folder.versions[self._at :]):
            raise CommitFailedError("Concurrent transaction failed")
        records = sorted(found for action in actions for found in folder.staged[action.path])
        after = max(version.upto for version in folder.versions)
        if transaction.version <= after:
            raise Broken(f"the table of {folder.name} is at epoch {after}, and a commit brings {transaction.version}")
        folder.world.oracle.ends.check_step(folder.name, [each[1:4] for each in records], after, transaction.version)
        folder.versions.append(_Version(transaction.app_id, transaction.version, records))


class SimDelta(DeltaOutput):
    """What it does by itself, on a table in memory."""

    def __init__(self, folder: DeltaFolder, *, begins: int) -> None:
        values: Any = SimpleNamespace(stream=folder.stream, schema=None)
        super().__init__(folder.name, str(folder.path), values, identity=folder.name, begins=begins)
        self._folder = folder

    def _open(self) -> Any:
        table: Any = _Handle(self._folder)
        self._table = table
        return table

    def _write(self, rows: Rows) -> None:
        self._folder.world.point(f"the table of {self.name}: stage")
        path = f"{len(self._folder.staged)}"
        self._folder.staged[path] = found_in(rows)
        self._files.append(AddAction(path, 0, {}, 0, True, "{}"))

    def _maintain(self) -> None:
        pass


@contextmanager
def in_memory(world: World) -> Iterator[None]:
    """Outputs of the writer find the tables of this world where they look for theirs."""

    def sync_versions(path: Path, version: int) -> None:
        next(table for table in world.targets.values() if isinstance(table, DeltaFolder) and table.path == path).sync()

    before = delta._sync_versions, delta.sync_folder, performing.history  # type: ignore[attr-defined]
    delta._sync_versions = sync_versions
    delta.sync_folder = lambda path: None  # type: ignore[attr-defined]
    performing.history = lambda log, *where: log.history(*where)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        delta._sync_versions, delta.sync_folder, performing.history = before  # type: ignore[attr-defined]
