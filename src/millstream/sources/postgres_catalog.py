"""What a PostgreSQL server says of the tables that are captured, and what of it is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from millstream.clients.postgres_dsn import TableName
from millstream.errors import TopologyError
from millstream.sources.postgres_rows import may_be_none
from millstream.sources.postgres_values import ServerType, encoder, suggestion
from millstream.stream import called

OLDEST = 140_000  # version of a server

_FIND = """
    SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
           has_table_privilege(c.oid, 'SELECT'), pg_has_role(c.relowner, 'USAGE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
    SELECT a.attname, a.atttypid::bigint, a.atttypmod, a.attnotnull, a.attgenerated <> '',
           CASE WHEN a.attcollation = 0 THEN NULL
                ELSE (SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname)
                      FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation) END
    FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEY = """
    SELECT a.attname FROM pg_index i
    CROSS JOIN unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = %s AND i.indisprimary ORDER BY k.place
"""
# A domain is followed to what it is made of, which has the modifier that the domain was made with.
_TYPES = """
    WITH RECURSIVE base AS (
        SELECT g.place, g.oid AS given, g.modifier AS shown, t.oid, t.typbasetype, t.typtypmod, g.modifier
        FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS g (oid, modifier, place) JOIN pg_type t ON t.oid = g.oid
        UNION ALL
        SELECT b.place, b.given, b.shown, t.oid, t.typbasetype, t.typtypmod, b.typtypmod
        FROM base b JOIN pg_type t ON t.oid = b.typbasetype
    )
    SELECT b.given::bigint, b.shown, format_type(b.given, b.shown), t.typname, t.typnamespace = 'pg_catalog'::regnamespace,
           CASE WHEN t.typcategory = 'A' AND t.typname NOT LIKE '%%vector' THEN t.typelem::bigint ELSE 0 END, b.modifier,
           (SELECT e.typdelim::text FROM pg_type e WHERE e.oid = t.typelem)
    FROM base b JOIN pg_type t USING (oid) WHERE b.typbasetype = 0
"""
_PUBLICATION = """
    SELECT oid::bigint, puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s
"""
# Those of which it has all; older versions do not know any others, nor the columns that say so.
_WHOLE = """
    SELECT prrelid::bigint FROM pg_publication_rel r
    WHERE prpubid = %s AND to_jsonb(r) ->> 'prqual' IS NULL AND to_jsonb(r) ->> 'prattrs' IS NULL
"""


@dataclass(frozen=True)
class CapturedColumn:
    name: str
    type: ServerType
    not_null: bool
    generated: bool
    collation: str | None  # quoted


@dataclass(frozen=True)
class CapturedTable:
    """A table as it is on the server now."""

    oid: int
    name: TableName  # with its schema
    columns: tuple[CapturedColumn, ...]
    key: tuple[str, ...]  # the columns of its primary key; none if it has none
    owned: bool  # by the user of the connection

    def column(self, name: str) -> CapturedColumn | None:
        return next((column for column in self.columns if column.name == name), None)


def find_table(connection: psycopg.Connection[Any], wanted: TableName) -> CapturedTable:
    """Refuses what is no table that can be captured, with `ms.TopologyError`."""
    row = connection.execute(_FIND, [wanted.quoted]).fetchone()
    if row is None:
        raise TopologyError(f"there is no table {wanted}, or the user of the connection may not see it; create it, or fix the name")
    oid, schema, table, kind, persistence, identity, readable, owned = row
    name = TableName(schema, table)
    if kind == "p":
        raise TopologyError(
            f"table {name} is partitioned, and its changes are those of its partitions; give these: ['orders_1', 'orders_2']"
        )
    if kind != "r":
        raise TopologyError(f"{name} is not a table but a view, an index or the like; give a table")
    if persistence != "p":
        raise TopologyError(
            f"table {name} is unlogged or temporary, and its changes are not in the WAL; ALTER TABLE {name.quoted} SET LOGGED"
        )
    if identity != "f":
        raise TopologyError(
            f"table {name}: the server does not keep what rows were before a change; run ALTER TABLE {name.quoted} REPLICA IDENTITY FULL"
        )
    if not readable:
        raise TopologyError(f"table {name}: the user of the connection lacks the right to SELECT; grant it")
    rows = connection.execute(_COLUMNS, [oid]).fetchall()
    types = find_types(connection, [(kind, modifier) for _, kind, modifier, *_ in rows])
    columns = tuple(CapturedColumn(name, types[kind, modifier], *rest) for name, kind, modifier, *rest in rows)
    key = tuple(column for (column,) in connection.execute(_KEY, [oid]))
    return CapturedTable(oid, name, columns, key, owned)


def find_types(connection: psycopg.Connection[Any], wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], ServerType]:
    """By oid and modifier, as columns have them. One that is gone is of no use to anybody, and nameless."""
    found, asked = {}, [[oid for oid, _ in wanted], [modifier for _, modifier in wanted]]
    for oid, shown, name, base, ours, element, modifier, delimiter in connection.execute(_TYPES, asked).fetchall():
        of = find_types(connection, [(element, modifier)])[element, modifier] if element else None
        whole = base == "numeric" and modifier >= 4 and (modifier - 4) & 0x7FF == 0
        found[oid, shown] = ServerType(name, base if ours and of is None else "", of, delimiter or ",", whole)
    return {each: found.get(each, ServerType(f"type {each[0]}")) for each in wanted}


def check_columns(table: TableName, there: Mapping[str, ServerType], fields: Mapping[str, Any], row: Any) -> str | None:
    """Why rows of a table with these columns are none of the type; None if they are."""
    for name, hint in fields.items():
        found = there.get(name)
        if found is None:
            return f"table {table} has no column {name!r}, which {called(row)} has, as {called(hint)}"
        if encoder(found, hint) is None:
            return (
                f"table {table}: column {name!r} is of type {found.name}, and {called(row)}.{name} is {called(hint)}; "
                f"declare it as {suggestion(found)}"
            )
    return None


def check_table(table: CapturedTable, fields: Mapping[str, Any], row: Any, *, needs_key: bool) -> None:
    """Refuse a table whose rows are none of the type, or cannot be told apart where they must be."""
    if why := check_columns(table.name, {column.name: column.type for column in table.columns}, fields, row):
        raise TopologyError(f"{why}; or change the table, or {called(row)}")
    for name, hint in fields.items():
        column = table.column(name)
        assert column is not None
        if column.generated:
            raise TopologyError(
                f"table {table.name}: column {name!r} is generated, and its values are not sent; leave {called(row)}.{name} out"
            )
        if not column.not_null and not may_be_none(row, name, hint):
            raise TopologyError(
                f"table {table.name}: column {name!r} may be NULL, and {called(row)}.{name} may not be None; "
                f"declare it as {called(hint)} | None, or make the column NOT NULL"
            )
    if needs_key and not table.key:
        raise TopologyError(
            f"table {table.name} has no primary key, and without one rows are not told apart; make one, or begin with "
            f"snapshot=False and give key= as a function of the value"
        )


def check_server(connection: psycopg.Connection[Any], slot: str) -> None:
    """Refuse a server that cannot be captured from."""
    version = connection.info.server_version
    if version < OLDEST:
        raise TopologyError(f"the server is PostgreSQL {version // 10_000}, and {OLDEST // 10_000} or later is needed")
    level = first(connection, "SHOW wal_level")
    if level != "logical":
        raise TopologyError(
            f"wal_level of the server is {level}; set it to logical (ALTER SYSTEM SET wal_level = 'logical') and restart the server"
        )
    free = "SELECT current_setting('max_replication_slots')::int > count(*) OR bool_or(slot_name = %s) FROM pg_replication_slots"
    if not first(connection, free, slot):
        raise TopologyError("all replication slots of the server are taken; drop one, or raise max_replication_slots and restart it")


def check_publication(connection: psycopg.Connection[Any], name: str, tables: Sequence[CapturedTable]) -> bool:
    """Whether it is there. Refuses one that does not have all changes of the tables, or that could not be made."""
    row = connection.execute(
        "SELECT oid::bigint, puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s",
        [name],
    ).fetchone()
    if row is None:
        lacking = next((table for table in tables if not table.owned), None)
        if lacking is not None or not first(connection, "SELECT has_database_privilege(current_database(), 'CREATE')"):
            names = ", ".join(table.name.quoted for table in tables)
            raise TopologyError(
                f"there is no publication {name}, and the user of the connection may not create it; let the owner of the "
                f'tables run CREATE PUBLICATION "{name}" FOR TABLE ONLY {names}, or grant CREATE on the database and the tables themselves'
            )
        return False
    oid, of_all, every = row
    if not every:
        kinds = "publish = 'insert, update, delete, truncate'"
        raise TopologyError(f'publication {name} leaves out some kinds of changes; run ALTER PUBLICATION "{name}" SET ({kinds})')
    has = {relation for (relation,) in connection.execute(_WHOLE, [oid])}
    for table in tables:
        if not of_all and table.oid not in has:
            raise TopologyError(
                f"publication {name} does not have table {table.name}, or only some of its rows or columns; "
                f'run ALTER PUBLICATION "{name}" ADD TABLE ONLY {table.name.quoted}, or give another name: slot=...'
            )
    return True


def first(connection: psycopg.Connection[Any], query: str, *parameters: object) -> Any:
    row = connection.execute(query.encode(), parameters).fetchone()
    return None if row is None else row[0]


def files_of(connection: psycopg.Connection[Any], tables: Sequence[CapturedTable]) -> list[int | None]:
    """Where the rows of the tables are. A table that was written anew elsewhere looks empty to who sees an earlier snapshot."""
    return [first(connection, "SELECT pg_relation_filenode(%s::oid)::bigint", table.oid) for table in tables]
