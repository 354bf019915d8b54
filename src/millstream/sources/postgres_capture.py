"""What is captured from a PostgreSQL server, for one injector: checked against the server as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from millstream.clients.postgres_connection import NOTICE_CLIENT, NotAdmitted, configure, connect, in_words, reaching
from millstream.clients.postgres_dsn import Dsn, TableName
from millstream.errors import LogError, TopologyError
from millstream.source import Position
from millstream.sources.postgres_catalog import (
    CapturedTable,
    check_columns,
    check_publication,
    check_server,
    check_table,
    find_table,
    find_types,
)
from millstream.sources.postgres_pgoutput import Relation
from millstream.sources.postgres_place import SYSTEM
from millstream.sources.postgres_replication import Replication
from millstream.sources.postgres_rows import RowEncoder
from millstream.sources.postgres_values import AS_TEXT, ServerType

_SESSION = {**AS_TEXT, **NOTICE_CLIENT, "lock_timeout": "30s", "statement_timeout": "30s", "synchronous_commit": "local"}


@dataclass(frozen=True)
class Capture:
    """The arguments of a source, and the injector that it is opened for."""

    dsn: Dsn
    tables: tuple[TableName, ...]
    row: Any
    fields: Mapping[str, Any]
    slot: str  # and publication
    injector: str
    columns: frozenset[str]  # beside the values, that the injector asks for
    snapshot: bool
    ignore_truncates: bool

    @property
    def what(self) -> str:
        """For messages."""
        names = ", ".join(map(str, self.tables))
        return f"injector {self.injector!r}: table{'s' if len(self.tables) > 1 else ''} {names} of PostgreSQL at {self.dsn.place}"

    @property
    def name(self) -> str:
        """As the server shows it."""
        return f"millstream {self.injector}"

    def connect(self) -> tuple[psycopg.Connection[Any], list[str]]:
        """For questions that are answered at once. `ms.Unreachable` if it cannot be had."""
        connection, hidden = connect(self.dsn, what=self.what, name=self.name)
        try:
            with reaching(hidden):
                configure(connection, _SESSION)
                connection.autocommit = True
        except BaseException:
            connection.close()
            raise
        return connection, hidden

    def replicate(self) -> Replication:
        return Replication(self.dsn, what=self.what, name=self.name)

    def check(self, positions: Mapping[str, Position]) -> None:
        """The server can be captured from, by this user, and read on from there; the tables are there and fit. Changes nothing."""
        try:
            connection, hidden = self.connect()
        except NotAdmitted as error:
            raise TopologyError(f"{self.what}: the server does not let the user of the connection in: {error}") from None
        with reaching(hidden), connection:
            if SYSTEM in positions:  # another cluster is not to be blamed for its tables
                self._check_admitted(positions)
            self.find_tables(connection)
            if SYSTEM not in positions:
                self._check_admitted(positions)

    def _check_admitted(self, positions: Mapping[str, Position]) -> None:
        try:
            self.check_cluster(positions)
        except NotAdmitted as error:
            raise TopologyError(
                f"{self.what}: the server does not let the user of the connection replicate: {error}; "
                f"run ALTER ROLE … REPLICATION, and see that pg_hba.conf lets it in"
            ) from None

    def check_cluster(self, positions: Mapping[str, Position]) -> str:
        """Which cluster the server is of. Refuses another one than was read so far, whatever is called the same there."""
        with closing(self.replicate()) as replication:
            found = replication.identify()
        known = positions.get(SYSTEM, found)
        if known != found:
            raise LogError(
                f"{self.what}: the server is of the cluster {found}, by its system identifier, and what was read so far is of the "
                f"cluster {known}: its places in the log mean nothing here. Give a dsn that leads to that one, or begin anew with this "
                f"one: give the injector another name"
            )
        return found

    def find_tables(self, connection: psycopg.Connection[Any]) -> list[CapturedTable]:
        """As they are now; `ms.TopologyError` for what cannot be captured."""
        try:
            check_server(connection, self.slot)
            tables = [find_table(connection, name) for name in self.tables]
            if len({table.oid for table in tables}) < len(tables):
                raise TopologyError("a table is given twice")
            for table in tables:
                check_table(table, self.fields, self.row, needs_key=self.snapshot or "key" in self.columns)
            check_publication(connection, self.slot, tables)
        except TopologyError as error:
            raise TopologyError(f"{self.what}: {error}") from None
        except psycopg.ProgrammingError as error:
            raise TopologyError(f"{self.what}: {in_words(error)}") from None
        return tables

    def encoder(self, table: CapturedTable, columns: Sequence[tuple[str, ServerType]], *, prefixed: bool) -> RowEncoder:
        """For rows with these columns, which may be others than the table has now. `ms.LogError` if they do not do."""
        there = dict(columns)
        why = check_columns(table.name, there, self.fields, self.row)
        lacking = next((name for name in table.key if name not in there), None)
        if why is None and lacking is not None:
            why = f"table {table.name} had no column {lacking!r} then, which is of its primary key"
        if why is not None:
            raise LogError(
                f"the table was changed: {why}. Change the type or the table to fit, and start again; "
                f"the changes are still there, as long as there is room for them on the server"
            )
        return RowEncoder(self.fields, columns, table.key, prefix=str(table.name) if prefixed else "")

    def encoder_of(self, relation: Relation, tables: Sequence[CapturedTable], connection: psycopg.Connection[Any]) -> RowEncoder | None:
        """For the rows of a table as the WAL has it; None if it is not captured."""
        table = next((table for table in tables if table.oid == relation.oid), None)
        sent = TableName(relation.schema, relation.table)
        if table is None:
            if any(sent == other.name for other in tables):
                raise LogError(f"table {sent} was dropped and made anew; begin anew, with another name for the injector")
            return None
        if sent != table.name:
            raise LogError(f"table {table.name} is called {sent} now, or was then; call it as before, and start again")
        if relation.identity != b"f":
            raise LogError(
                f"table {sent} was changed to another REPLICA IDENTITY than FULL, and the changes since then lack what "
                f"rows were before; run ALTER TABLE {sent.quoted} REPLICA IDENTITY FULL, and begin anew, with another name for the injector"
            )
        types = find_types(connection, [(column.type, column.modifier) for column in relation.columns])
        columns = [(column.name, types[column.type, column.modifier]) for column in relation.columns]
        return self.encoder(table, columns, prefixed=len(tables) > 1)
