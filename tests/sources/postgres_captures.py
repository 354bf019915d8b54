"""A table that is captured, in a schema of its own: what a run would do with a source, without one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg

import millstream as ms
from millstream.clients.postgres_dsn import Dsn
from millstream.clients.postgres_slots import drop_slot
from tests.services.postgres import PostgresServer
from tests.waiting import wait_until

TIMEOUT = 60.0  # seconds; a bound, never an expectation
ALL = frozenset({"key", "commit_time", "table", "lsn"})


@dataclass(frozen=True)
class Account:
    id: int
    owner: str
    balance: int


@dataclass
class Committed:
    """What a run has of a source: the values that commits have, and how far it is read with them."""

    positions: dict[str, ms.Position] = field(default_factory=dict)
    changes: list[ms.Change[Any]] = field(default_factory=list)
    columns: list[dict[str, Any]] = field(default_factory=list)
    ids: list[tuple[int, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    complete: list[ms.Timestamp] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add(self, batch: ms.Batch, kind: Any) -> None:
        assert list(batch.numbers) == sorted(set(batch.numbers))
        self.positions.update(batch.positions)
        self.changes += [msgspec.json.decode(value, type=kind) for n, value in enumerate(batch.values) if n not in batch.reasons]
        self.columns += batch.columns or ()
        self.ids += [(batch.major, number) for number in batch.numbers]
        self.reasons += batch.reasons.values()
        self.sizes.append(len(batch.values))
        if batch.complete is not None:
            self.complete.append(batch.complete)

    def fold(self, key: Callable[[Any], Any] = lambda row: row.id) -> dict[Any, Any]:
        """The table that the changes make. Each of them must begin where the last one of its key has ended."""
        assert len(set(self.ids)) == len(self.ids)
        table: dict[Any, Any] = {}
        for change in self.changes:
            of = key(change.after if change.after is not None else change.before)
            assert table.get(of) == change.before, (table.get(of), change)
            if change.before is not None and change.after is not None:
                assert key(change.before) == key(change.after)
            if change.after is None:
                del table[of]
            else:
                table[of] = change.after
        return table


class Captured:
    """A table `accounts` and its capture. Slots of a test are dropped after it."""

    def __init__(self, server: PostgresServer, folder: Path | None = None) -> None:
        self.server, self.folder = server, folder
        self.schema = f"s{uuid.uuid4().hex[:12]}"
        self.injector = self.schema
        self.execute(f"CREATE SCHEMA {self.schema}")
        self._sources: list[Any] = []
        self._readers: list[ms.SourceReader] = []

    def table(self, columns: str = "id bigint PRIMARY KEY, owner text NOT NULL, balance bigint NOT NULL", name: str = "accounts") -> str:
        self.execute(f"CREATE TABLE {self.schema}.{name} ({columns})")
        self.execute(f"ALTER TABLE {self.schema}.{name} REPLICA IDENTITY FULL")
        return f"{self.schema}.{name}"

    def execute(self, *statements: str) -> None:
        """In one transaction."""
        with self.server.connect() as connection, connection.transaction():
            for statement in statements:
                connection.execute(statement.encode())

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with self.server.connect() as connection:
            return connection.execute(statement.encode()).fetchall()

    def rows(self, name: str = "accounts") -> dict[int, Account]:
        return {row[0]: Account(*row) for row in self.query(f"SELECT id, owner, balance FROM {self.schema}.{name}")}

    def source(self, tables: str | Sequence[str] = "accounts", row: Any = Account, *, dsn: Any = None, **options: Any) -> ms.Source[Any]:
        names = [f"{self.schema}.{name}" for name in ([tables] if isinstance(tables, str) else tables)]
        found = ms.postgres_changes(names, row, dsn=self.server.dsn if dsn is None else dsn, **options)
        self._sources.append(found)
        return found

    def context(self, positions: Mapping[str, ms.Position] | None = None, columns: frozenset[str] = frozenset()) -> ms.SourceContext:
        return ms.SourceContext(self.injector, None, dict(positions or {}), columns, folder=self.folder)

    def open(self, source: ms.Source[Any], committed: Committed | None = None, columns: frozenset[str] = frozenset()) -> ms.SourceReader:
        """Waits while an earlier session is ending, as a run does."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self._readers.append(source.open(self.context(committed.positions if committed else None, columns)))
            except ms.Unreachable:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return self._readers[-1]

    @property
    def slot(self) -> str:
        return f"millstream_{self.injector}"

    def close(self) -> None:
        for reader in self._readers:
            with suppress(psycopg.Error):
                reader.close()
        for slot in {source.slot or self.slot for source in self._sources}:
            wait_until(lambda: self._dropped(slot), TIMEOUT)  # noqa: B023

    def _dropped(self, slot: str) -> bool:
        """The server needs a moment to see that a reader is gone."""
        try:
            drop_slot(Dsn(self.server.dsn), slot)
        except ms.LogError as error:
            return "being read" not in str(error)
        return True


def read(
    reader: ms.SourceReader,
    into: Committed,
    until: Callable[[], bool],
    kind: Any = ms.Change[Account],
    *,
    at_most: int = 1000,
    confirm: bool = True,
) -> Committed:
    deadline = time.monotonic() + TIMEOUT
    while not until():
        assert time.monotonic() < deadline, (into.positions, len(into.changes), reader.trouble)
        for batch in reader.poll(at_most, 0.1):
            assert isinstance(batch, ms.Batch)
            into.add(batch, kind)
        if confirm and into.positions:
            reader.confirm(into.positions)
    return into


def read_all(reader: ms.SourceReader, into: Committed, kind: Any = ms.Change[Account], **options: Any) -> Committed:
    """Everything that there is now."""
    reader.finish()
    return read(reader, into, reader.ended, kind, **options)


def streaming(captured: Captured, source: ms.Source[object] | None = None) -> tuple[ms.Source[object], ms.SourceReader, Committed]:
    """A table with a row, which is read."""
    captured.execute(f"INSERT INTO {captured.table()} VALUES (1, 'a', 0)")
    source, seen = source or captured.source(), Committed()
    reader = captured.open(source)
    read(reader, seen, lambda: seen.positions.get("snapshot") == "" and len(seen.changes) == 1 and bool(seen.complete))
    return source, reader, seen
