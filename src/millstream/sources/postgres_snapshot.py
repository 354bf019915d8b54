"""The rows that a table has when its capture begins, in the order of their keys and a few at a time, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import sql
from psycopg.pq.abc import PGresult

from millstream.clients.postgres_connection import configure, connect, reaching
from millstream.errors import LogError, Unreachable
from millstream.source import Batch
from millstream.sources.postgres_assembly import PendingChange, change_json, columns_beside
from millstream.sources.postgres_capture import Capture
from millstream.sources.postgres_catalog import CapturedTable, files_of, find_types
from millstream.sources.postgres_place import Cut, SnapshotPlace, WalPlace
from millstream.sources.postgres_replication import Statement
from millstream.sources.postgres_rows import RowEncoder
from millstream.sources.postgres_values import AS_TEXT

BYTES_PER_FETCH = 4 << 20  # about
FIRST_FETCH = 10  # rows, before it is known how large they are
MOST_PER_FETCH = 5_000  # rows
ROOM = 7  # places in the WAL before the one where the slot begins at which no commit can stand: the numbers of the rows are there

SESSION = {
    **AS_TEXT,
    "lock_timeout": "30s",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",  # a full mill may not ask for rows for a while
    "cursor_tuple_fraction": "1.0",  # all rows are read
}


class SnapshotRows:
    """A transaction that sees a snapshot, and the rows of the tables in it that were not given yet."""

    def __init__(self, capture: Capture, tables: Sequence[CapturedTable], place: SnapshotPlace, snapshot: str) -> None:
        self.place = place
        self._capture, self._prefixed = capture, len(tables) > 1
        self._tables = _from(tables, place.upto)
        self._size = FIRST_FETCH
        self._fetching = 0  # rows that were asked for
        self._encoder: RowEncoder | None = None
        connection, hidden = connect(capture.dsn, what=capture.what, name=capture.name)
        self._statement, self._hidden = Statement(connection, hidden), hidden
        try:
            with reaching(hidden):
                configure(connection, SESSION)
                connection.autocommit = True
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
                names = ", ".join(f"ONLY {table.name.quoted}" for table in tables)
                connection.execute(f"LOCK TABLE {names} IN ACCESS SHARE MODE".encode())  # nobody changes or truncates them
                self.files = files_of(connection, tables)
            self._open_next()
        except BaseException:
            self._statement.close()
            raise

    def poll(self, at_most: int, timeout: float) -> Batch | None:
        """The next rows; None: not yet. The last batch says that the snapshot is done."""
        if not self._tables:
            self.place = msgspec.structs.replace(self.place, upto=None, done=True)
            return Batch([], [], self._positions())
        if self._fetching == 0:
            self._fetching = max(1, min(at_most, self._size, MOST_PER_FETCH))
            self._statement.send(f"FETCH FORWARD {self._fetching} FROM millstream_rows")
        with reaching(self._hidden):
            rows = self._statement.result(timeout)
        if rows is None:
            return None
        asked, self._fetching = self._fetching, 0
        found = self._batch(rows) if rows.ntuples else None
        if rows.ntuples < asked:
            self._close_cursor()
        return self.poll(at_most, timeout) if found is None else found

    def close(self) -> None:
        self._statement.close()

    def _batch(self, rows: PGresult) -> Batch:
        place, table = self.place, self._table
        if self._encoder is None:
            self._encoder = self._new_encoder(rows)
        encoder, name, wanted = self._encoder, str(table.name), self._capture.columns
        values: list[bytes] = []
        columns: list[dict[str, Any]] | None = [] if wanted else None
        refused: dict[int, str] = {}
        cells: list[bytes | None] = []
        get, width = rows.get_value, range(rows.nfields)
        for number in range(rows.ntuples):
            cells, reasons = [get(number, each) for each in width], list[str]()
            values.append(change_json(encoder, None, cells, reasons))
            if columns is not None:
                columns.append(columns_beside(wanted, encoder, cells, name, place.time, place.begun))
            if reasons:
                refused[number] = "; ".join(reasons)
        size = sum(map(len, values)) // len(values) + 1
        self._size = max(1, BYTES_PER_FETCH // size)
        base = place.begun - ROOM
        first = ((base & 0xFFFFFFFF) << 31) + place.rows
        self.place = msgspec.structs.replace(place, rows=place.rows + len(values), upto=Cut(name, tuple(encoder.key_values(cells))))
        numbers = range(first, first + len(values))
        return Batch(values, numbers, self._positions(), major=base >> 32, columns=columns, reasons=refused)

    def _positions(self) -> Mapping[str, Any]:
        """A snapshot that was done in one go leaves nothing behind: its changes begin where it was taken."""
        place = self.place
        return WalPlace(place.begun, snapshot=None if place.done and place.point == place.begun else place).positions()

    def _new_encoder(self, rows: PGresult) -> RowEncoder:
        """By what the rows themselves say of their types: the table may have changed since it was looked at."""
        names = [(rows.fname(each) or b"").decode() for each in range(rows.nfields)]
        types = [(rows.ftype(each), rows.fmod(each)) for each in range(rows.nfields)]
        # In the same transaction, between two fetches.
        known = find_types(self._statement.connection, types)
        columns = [(name, known[each]) for name, each in zip(names, types, strict=True)]
        return self._capture.encoder(self._table, columns, prefixed=self._prefixed)

    def _open_next(self) -> None:
        """A cursor for the first of the tables that are left."""
        self._encoder = None
        if not self._tables:
            return
        self._table = table = self._tables[0]
        wanted = list(dict.fromkeys([*self._capture.fields, *table.key]))
        columns = sql.SQL(", ").join(map(sql.Identifier, wanted))
        key = sql.SQL(", ").join(map(sql.Identifier, table.key))
        upto = self.place.upto
        rest: sql.Composable = sql.SQL("")
        if upto is not None and upto.table == str(table.name):
            rest = sql.SQL("WHERE ({}) > ({})").format(key, key_literals(table, upto.key))
        query = sql.SQL("DECLARE millstream_rows NO SCROLL CURSOR FOR SELECT {} FROM ONLY {} {} ORDER BY {}").format(
            columns,
            sql.SQL(table.name.quoted),
            rest,
            key,
        )
        with reaching(self._hidden):
            self._statement.run(query.as_string(self._statement.connection))

    def _close_cursor(self) -> None:
        with reaching(self._hidden):
            self._statement.run("CLOSE millstream_rows")
        self._tables = self._tables[1:]
        self._open_next()


def _from(tables: Sequence[CapturedTable], upto: Cut | None) -> Sequence[CapturedTable]:
    if upto is None:
        return tables
    names = [str(table.name) for table in tables]
    if upto.table not in names:
        raise LogError(
            f"the snapshot was taken up to a row of table {upto.table}, which the source has no more; give it back, and start again"
        )
    return tables[names.index(upto.table) :]


def key_literals(table: CapturedTable, key: Sequence[str]) -> sql.Composed:
    """Values of a key as SQL, of the types of its columns and in their order."""
    return sql.SQL(", ").join(sql.SQL("{}{}").format(value, _as_key(table, name)) for name, value in zip(table.key, key, strict=True))


def _as_key(table: CapturedTable, name: str) -> sql.SQL:
    column = table.column(name)
    assert column is not None
    order = "" if column.collation is None else f" COLLATE {column.collation}"
    return sql.SQL(f"::{column.type.name}{order}")


def not_in_snapshot(
    connection: psycopg.Connection[Any], tables: Sequence[CapturedTable], place: SnapshotPlace
) -> Callable[[Sequence[PendingChange]], Sequence[PendingChange]]:
    """Leaves changes out that the rows of their stretch have already. The server says on which side of a cut a key stands."""
    order = {str(table.name): number for number, table in enumerate(tables)}

    def points(table: CapturedTable, changes: Sequence[PendingChange]) -> list[int]:
        """For each change, from where on in the WAL it counts."""
        found, name = [place.point] * len(changes), str(table.name)
        for stretch in reversed(place.stretches):
            if order[name] < order[stretch.upto.table]:
                found = [stretch.point] * len(changes)
            elif name == stretch.upto.table:
                before = _at_or_before(connection, table, stretch.upto.key, [change.key for change in changes])
                found = [stretch.point if each else point for each, point in zip(before, found, strict=True)]
        return found

    def keep(changes: Sequence[PendingChange]) -> Sequence[PendingChange]:
        if changes[0].commit >= place.point:
            return changes
        counts: dict[int, int] = {}
        for table in tables:
            of = [number for number, change in enumerate(changes) if change.table == str(table.name)]
            if of:
                counts.update(zip(of, points(table, [changes[number] for number in of]), strict=True))
        return [change for number, change in enumerate(changes) if change.commit >= counts[number]]

    return keep


def _at_or_before(connection: psycopg.Connection[Any], table: CapturedTable, cut: Sequence[str], keys: Sequence[list[str]]) -> list[bool]:
    names = [f"k{number}" for number in range(len(table.key))]
    given = [sql.SQL("{}{}").format(sql.Identifier(name), _as_key(table, of)) for name, of in zip(names, table.key, strict=True)]
    columns = [sql.SQL("{}::text[]").format(list(each)) for each in zip(*keys, strict=True)]
    join = sql.SQL(", ").join
    query = sql.SQL("SELECT array_agg(({}) <= ({}) ORDER BY place) FROM unnest({}) WITH ORDINALITY AS given ({}, place)").format(
        join(given), key_literals(table, cut), join(columns), join(map(sql.Identifier, names))
    )
    row = connection.execute(query).fetchone()
    if row is None:
        raise Unreachable("the server has not said how its keys are ordered")
    return list(row[0])
