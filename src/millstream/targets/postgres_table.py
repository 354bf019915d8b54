"""A table of PostgreSQL and the ledger beside it: what is there, what is missing, and the statements for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from millstream.clients.postgres_dsn import TableName
from millstream.delivery import Mode
from millstream.errors import TopologyError
from millstream.targets.postgres_columns import TableColumn

LEDGER = "millstream_deliveries"
STAGE = sql.Identifier("pg_temp", "millstream_stage")

# Beside the type itself: what takes every value of it, or says so when it does not.
_ALSO_FIT = {
    "text": {"character varying"},
    "bigint": {"numeric"},
    "jsonb": {"json"},
    "timestamptz": {"timestamp with time zone"},
    "time": {"time without time zone"},
}

_FIND = (
    "SELECT n.nspname, c.relkind::text, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)"
)
_COLUMNS = """
    SELECT attname, format_type(atttypid, NULL), attnotnull,
           atthasdef OR attidentity <> '' OR attgenerated <> ''
    FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_UNIQUE = """
    SELECT EXISTS (
        SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indnkeyatts = 1
          AND i.indpred IS NULL AND a.attname = %s
    )
"""
# Granted on the table, or on each of the columns.
_MAY_ALL = "SELECT bool_and(has_column_privilege(%s::oid, name, %s)) FROM unnest(%s::text[]) AS name"
_LEDGER_COLUMNS = sql.SQL("""
    identity text PRIMARY KEY,
    delivery text NOT NULL,
    stream text NOT NULL,
    table_name text NOT NULL,
    fence bigint NOT NULL,
    step bigint,
    after bigint,
    upto bigint,
    records bigint NOT NULL DEFAULT 0,
    written_at timestamptz NOT NULL DEFAULT now()
""")


Quote = Callable[..., sql.Composable]


def among_parameters(*parts: str) -> sql.Composable:
    """A quoted name in a statement that has parameters: there a % in it would be taken for one."""
    return sql.SQL(sql.Identifier(*parts).as_string(None).replace("%", "%%"))


@dataclass(frozen=True)
class FoundTable:
    """Where a table is, or is to be made."""

    schema: str
    oid: int | None  # None: it is not there
    exact: bool = True  # the types there are those that are wanted


class PostgresTable:
    """A table with these columns, as it is on a server. Statements are put together once for a connection."""

    def __init__(self, name: TableName, mode: Mode, columns: Sequence[TableColumn]) -> None:
        self.name, self.mode, self.columns = name, mode, columns
        self.key = columns[0].name

    def find(self, connection: psycopg.Connection[Any]) -> FoundTable:
        """Refuses a table that the records do not fit in. Changes nothing."""
        row = connection.execute(_FIND, [self.name.quoted]).fetchone()
        if row is None:
            schema = self._schema(connection)
            _check_may_create(connection, self.name.table, schema)
            self._check_beside(connection, schema, staged=self.mode is Mode.UPSERT)
            return FoundTable(schema, None)
        schema, kind, oid = row
        if kind not in ("r", "p"):
            raise TopologyError(f"{self.name} is not a table but a view, an index or the like; deliver to a table")
        exact = self._check_columns(connection, oid)
        if self.mode is Mode.UPSERT and not _first(connection, _UNIQUE, oid, self.key):
            raise TopologyError(
                f"table {self.name} has no primary key or unique index on its column {self.key!r} alone, and UPSERT finds rows by it; "
                f"make one, or deliver with ms.Mode.APPEND"
            )
        self._check_rights(connection, oid)
        self._check_beside(connection, schema, staged=self.mode is Mode.UPSERT or not exact)
        return FoundTable(schema, oid, exact)

    def create_missing(self, connection: psycopg.Connection[Any], found: FoundTable) -> None:
        if found.oid is None:
            columns = [self._definition(column) for column in self.columns]
            create = sql.SQL("CREATE TABLE {} ({})").format(self.at(found), sql.SQL(", ").join(columns))
            connection.execute(create)
        if not _is_there(connection, found.schema):
            connection.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(found.schema, LEDGER), _LEDGER_COLUMNS))

    def at(self, found: FoundTable, quote: Quote = sql.Identifier) -> sql.Composable:
        return quote(found.schema, self.name.table)

    # The statements of a step.

    def copy(self, into: sql.Composable) -> sql.Composed:
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(into, self._names())

    def create_stage(self) -> sql.Composed:
        columns = [sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type)) for column in self.columns]
        return sql.SQL("CREATE TEMP TABLE IF NOT EXISTS millstream_stage ({}) ON COMMIT DELETE ROWS").format(sql.SQL(", ").join(columns))

    def insert_staged(self, found: FoundTable) -> sql.Composed:
        return self._insert(found, STAGE, sql.Identifier)

    def insert_arrays(self, found: FoundTable) -> sql.Composed:
        """With an array for each column as parameters."""
        arrays = sql.SQL(", ").join(sql.SQL("%s::{}[]").format(sql.SQL(column.type)) for column in self.columns)
        return self._insert(found, sql.SQL("unnest({}) AS given ({})").format(arrays, self._names(among_parameters)), among_parameters)

    def delete(self, found: FoundTable) -> sql.Composed:
        """With the keys as its parameter."""
        return sql.SQL("DELETE FROM {} WHERE {} = ANY (%s::text[])").format(self.at(found, among_parameters), among_parameters(self.key))

    def _insert(self, found: FoundTable, source: sql.Composable, quote: Quote) -> sql.Composed:
        names = self._names(quote)
        insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(self.at(found, quote), names, names, source)
        if self.mode is Mode.APPEND:
            return insert
        given = [sql.SQL("{0} = EXCLUDED.{0}").format(quote(column.name)) for column in self.columns[1:]]
        return sql.SQL("{} ON CONFLICT ({}) DO UPDATE SET {}").format(insert, quote(self.key), sql.SQL(", ").join(given))

    def _names(self, quote: Quote = sql.Identifier) -> sql.Composed:
        return sql.SQL(", ").join(quote(column.name) for column in self.columns)

    def _definition(self, column: TableColumn) -> sql.Composed:
        primary = self.mode is Mode.UPSERT and column.name == self.key
        rest = sql.SQL(" PRIMARY KEY" if primary else "" if column.nullable else " NOT NULL")
        return sql.SQL("{} {}{}").format(sql.Identifier(column.name), sql.SQL(column.type), rest)

    def _schema(self, connection: psycopg.Connection[Any]) -> str:
        """Where the table is to be made."""
        if self.name.schema is None:
            schema = _first(connection, "SELECT current_schema()")
            if schema is None:
                raise TopologyError(
                    f"table {self.name}: the search_path of the connection names no schema that is there; give schema.table"
                )
        else:
            schema = _first(connection, "SELECT nspname FROM pg_namespace WHERE nspname = %s", self.name.schema)
            if schema is None:
                raise TopologyError(f"table {self.name}: there is no schema {self.name.schema!r}; create it")
        return str(schema)

    def _check_rights(self, connection: psycopg.Connection[Any], oid: int) -> None:
        """What the statements of a step need. An upsert reads too: it finds rows by the key, and takes what is there for a conflict."""
        names = [column.name for column in self.columns]
        needed = [("INSERT", names)] if self.mode is Mode.APPEND else [("INSERT", names), ("UPDATE", names[1:]), ("SELECT", names)]
        lacking = [right for right, columns in needed if not _first(connection, _MAY_ALL, oid, right, columns)]
        if self.mode is Mode.UPSERT and not _first(connection, "SELECT has_table_privilege(%s::oid, 'DELETE')", oid):
            lacking.append("DELETE")
        if lacking:
            raise TopologyError(f"table {self.name}: the user of the connection lacks the right to {' and '.join(lacking)}; grant it")

    def _check_beside(self, connection: psycopg.Connection[Any], schema: str, *, staged: bool) -> None:
        """The ledger can be used, or made; and so can the stage, where rows go through one."""
        if not _is_there(connection, schema):
            _check_may_create(connection, LEDGER, schema)
        else:
            ledger = TableName(schema, LEDGER)
            may = "SELECT has_table_privilege(to_regclass(%s), %s)"
            lacking = [right for right in ("SELECT", "INSERT", "UPDATE") if not _first(connection, may, ledger.quoted, right)]
            if lacking:
                raise TopologyError(
                    f"table {ledger}, which says how far {self.name} is: the user of the connection lacks the right to "
                    f"{' and '.join(lacking)}; grant it"
                )
        if staged and not _first(connection, "SELECT has_database_privilege(current_database(), 'TEMPORARY')"):
            raise TopologyError(
                f"table {self.name}: the user of the connection may not create temporary tables, and many rows at once go through one; "
                f"grant TEMPORARY on the database"
            )

    def _check_columns(self, connection: psycopg.Connection[Any], oid: int) -> bool:
        """Whether the types are exactly those that are wanted; refuses those that do not do."""
        there = {name: (kind, not_null, default) for name, kind, not_null, default in connection.execute(_COLUMNS, [oid])}
        exact = True
        for column in self.columns:
            wanted = f"{column.type}{'' if column.nullable else ' NOT NULL'}"
            if column.name not in there:
                raise TopologyError(f"table {self.name} has no column {column.name!r}; add it, as {wanted}, or deliver to another table")
            kind, not_null, _ = there[column.name]
            exact &= kind == column.type or (kind, column.type) in _SAME
            if kind != column.type and kind not in _ALSO_FIT.get(column.type, ()):
                raise TopologyError(
                    f"table {self.name}: column {column.name!r} is of type {kind}, and the values of the stream need {column.type}; "
                    f"change the column or the type of the stream, or deliver to another table"
                )
            if not_null and column.nullable:
                raise TopologyError(
                    f"table {self.name}: column {column.name!r} is NOT NULL, and the stream may have None there; "
                    f"drop the NOT NULL, or change the type of the stream"
                )
        ours = {column.name for column in self.columns}
        for name, (kind, not_null, default) in there.items():
            if name not in ours and not_null and not default:
                raise TopologyError(
                    f"table {self.name}: column {name!r} ({kind}) is NOT NULL without a default, and the stream has no value for it; "
                    f"give it a default, or deliver to another table"
                )
        return exact


_SAME = {("character varying", "text"), ("timestamp with time zone", "timestamptz"), ("time without time zone", "time")}


def ledger_at(found: FoundTable) -> sql.Composable:
    return among_parameters(found.schema, LEDGER)


def _is_there(connection: psycopg.Connection[Any], schema: str) -> bool:
    """Whether the schema has a ledger."""
    return _first(connection, "SELECT to_regclass(%s)", TableName(schema, LEDGER).quoted) is not None


def _check_may_create(connection: psycopg.Connection[Any], table: str, schema: str) -> None:
    if not _first(connection, "SELECT has_schema_privilege(%s::text, 'CREATE')", schema):
        raise TopologyError(
            f"table {table} is not there, and the user of the connection may not create it in schema {schema!r}; "
            f"create it, or grant CREATE on the schema"
        )


def _first(connection: psycopg.Connection[Any], query: str, *parameters: object) -> Any:
    row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]
