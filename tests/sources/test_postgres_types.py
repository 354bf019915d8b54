"""Every type of column of PostgreSQL, from rows that are there and from changes; and tables that do not fit."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import msgspec
import pytest

import millstream as ms
from millstream.errors import LogError
from millstream.sources import postgres_pgoutput
from millstream.sources.postgres_values import ServerType, encoder
from tests.services.postgres import PASSWORD, PostgresServer
from tests.sources.postgres_captures import Account, Captured, Committed, read, read_all


@pytest.fixture
def captured(postgres: PostgresServer, tmp_path: Path) -> Iterator[Captured]:
    found = Captured(postgres, tmp_path / "inputs")
    yield found
    found.close()


class Mood(enum.Enum):
    SAD = "sad"
    GLAD = "glad, very"


class Level(enum.IntEnum):
    HIGH = 3


class Inner(msgspec.Struct, frozen=True):
    a: int


Cents = NewType("Cents", int)
MOMENT = datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)
ODD = "a\n\t\\N'\"{},€\U0001f600"
ODD_SQL = f"E'{ODD.encode('unicode_escape').decode().replace(chr(39), chr(92) + chr(39))}'"

# Of the server, as SQL, of Python, in Python.
COLUMNS: Sequence[tuple[str, str, Any, Any]] = [
    ("smallint", "-32768", int, -32768),
    ("int", "7", Cents, Cents(7)),
    ("bigint", "9223372036854775807", int, 2**63 - 1),
    ("bigint", "3", float, 3.0),
    ("bigint", "3", Level, Level.HIGH),
    ("bigint", "1700000000000000", ms.Timestamp, 1_700_000_000_000_000),
    ("oid", "4294967295", int, 2**32 - 1),
    ("real", "0.1", float, 0.1),
    ("double precision", "1e-300", float, 1e-300),
    ("double precision", "0.1::float8 + 0.2::float8", float, 0.1 + 0.2),
    ("numeric", "12345678901234567890.12300", Decimal, Decimal("12345678901234567890.12300")),
    ("numeric(10, 2)", "-12.5", float, -12.5),
    ("numeric(10, 2)", "12.5", str, "12.50"),
    ("numeric(12)", "123456789012", int, 123456789012),
    ("boolean", "true", bool, True),
    ("boolean", "false", bool | None, False),
    ("text", ODD_SQL, str, ODD),
    ("text", "''", str, ""),
    ("varchar(20)", "'x'", Literal["x", "y"], "x"),
    ("char(4)", "'x'", str, "x   "),
    ("name", "'x'", str, "x"),
    ("mood", "'glad, very'", Mood, Mood.GLAD),
    ("mood", "'sad'", str, "sad"),
    ("json", "E'{\"a\" :\\n 1.50}'", Any, {"a": 1.5}),
    ("jsonb", "'{\"a\": 1}'", Inner, Inner(1)),
    ("jsonb", "'[1, null]'", list[int | None], [1, None]),
    ("jsonb", "'null'", int | None, None),
    ("timestamptz", "'2024-02-29 13:30:01.000005+01'", datetime, MOMENT),
    ("timestamptz", "'2024-02-29 13:30:01.000005+01'", ms.Timestamp, ms.to_timestamp(MOMENT)),
    ("timestamptz", "'0001-01-01 00:00:00+00'", datetime, datetime(1, 1, 1, tzinfo=UTC)),
    ("timestamp", "'2024-02-29 12:30:01.5'", datetime, datetime(2024, 2, 29, 12, 30, 1, 500_000)),
    ("timestamp", "'2024-02-29 12:30:01.000005'", ms.Timestamp, ms.to_timestamp(MOMENT)),
    ("date", "'9999-12-31'", date, date(9999, 12, 31)),
    ("time", "'23:59:59.999999'", time, time(23, 59, 59, 999_999)),
    ("timetz", "'12:00:00+02'", time, time(12, tzinfo=timezone(timedelta(hours=2)))),
    ("timetz", "'12:00:00-05:30'", time, time(12, tzinfo=timezone(-timedelta(hours=5, minutes=30)))),
    ("interval", "'-3 days 7 microseconds'", timedelta, timedelta(days=-3, microseconds=7)),
    ("interval", "'1 day -00:00:01.5'", timedelta, timedelta(days=1, seconds=-1.5)),
    ("interval", "'0'", timedelta, timedelta(0)),
    ("interval", "'-90 seconds'", ms.Duration, -90_000_000),
    ("uuid", "'00000000-0000-0000-0000-0000000000ff'", UUID, UUID(int=255)),
    ("uuid", "'00000000-0000-0000-0000-0000000000FF'", str, "00000000-0000-0000-0000-0000000000ff"),
    ("bytea", "'\\x00ff5c'", bytes, b"\0\xff\\"),
    ("bytea", "''", bytes, b""),
    ("inet", "'10.0.0.1/8'", str, "10.0.0.1/8"),
    ("int4range", "'[1,5)'", str, "[1,5)"),
    ("point", "'(1,2)'", str, "(1,2)"),
    ("int[]", "'{1,NULL,3}'", list[int | None], [1, None, 3]),
    ("int[]", "'{}'", list[int], []),
    ("int[]", "'[0:1]={5,6}'", tuple[int, ...], (5, 6)),
    ("int[]", "'{{1,2},{3,4}}'", list[list[int]], [[1, 2], [3, 4]]),
    ("text[]", f"ARRAY[{ODD_SQL}, '', 'NULL', NULL, 'plain', '{{}}']", list[str | None], [ODD, "", "NULL", None, "plain", "{}"]),
    ("mood[]", "ARRAY['sad', 'glad, very']::mood[]", list[Mood], [Mood.SAD, Mood.GLAD]),
    ("jsonb[]", "ARRAY['{\"a\": 1}']::jsonb[]", list[Inner], [Inner(1)]),
    ("timestamptz[]", "ARRAY['2024-02-29 12:30:01.000005Z']::timestamptz[]", set[datetime], {MOMENT}),
    ("box[]", "'{(1,2),(3,4);(5,6),(7,8)}'", list[str], ["(3,4),(1,2)", "(7,8),(5,6)"]),
    ("amount", "12.5", Decimal, Decimal("12.50")),
    ("amount", "12.5", Any, "12.50"),
    ("amounts", "'{1,2}'", list[Decimal], [Decimal("1.00"), Decimal("2.00")]),
    ("bigint", "5", int | str, 5),
    ("bigint", "NULL", int | None, None),
    ("text[]", "NULL", list[str] | None, None),
]  # fmt: skip


def test_every_type_comes_as_it_is(captured: Captured) -> None:
    """In the snapshot, before and after a change. Settings of the database that change how values read are of no matter."""
    captured.execute(
        f"SET search_path = {captured.schema}",
        "CREATE TYPE mood AS ENUM ('sad', 'glad, very')",
        "CREATE DOMAIN amount AS numeric(10, 2)",
        "CREATE DOMAIN amounts AS amount[]",
    )
    path = f"SET search_path = {captured.schema}, public"
    names = [f"f{n}" for n in range(len(COLUMNS))]
    columns = ", ".join(f"{name} {type_}" for name, (type_, *_) in zip(names, COLUMNS, strict=True))
    captured.execute(path, f"CREATE TABLE t (id int PRIMARY KEY, {columns})", "ALTER TABLE t REPLICA IDENTITY FULL")
    captured.execute(path, f"INSERT INTO t VALUES (1, {', '.join(sql for _, sql, *_ in COLUMNS)})")
    settings = {"DateStyle": "German", "IntervalStyle": "sql_standard", "TimeZone": "Asia/Tokyo", "bytea_output": "escape"}
    for name, value in {**settings, "extra_float_digits": "-3"}.items():
        captured.execute(f"ALTER ROLE app SET {name} = '{value}'")
    try:
        optional = [(name, kind | None if kind is not Any else Any) for name, (_, _, kind, _) in zip(names, COLUMNS, strict=True)]
        row = msgspec.defstruct("Everything", [("id", int), *optional], frozen=True)
        source, seen, kind = captured.source("t", row), Committed(), ms.Change[row]
        source.check(captured.context())
        reader = captured.open(source)
        read(reader, seen, lambda: len(seen.changes) == 1, kind)
        captured.execute(f"UPDATE {captured.schema}.t SET f0 = f0")
        read_all(reader, seen, kind)
    finally:
        captured.execute("ALTER ROLE app RESET ALL")
    expected = row(1, *(value for *_, value in COLUMNS))
    assert seen.reasons == []
    assert seen.changes == [ms.Change(None, expected), ms.Change(expected, expected)]


@pytest.mark.parametrize(
    ("type_", "value", "kind", "reason"),
    [
        ("double precision", "'NaN'", float, "NaN is not a number in JSON"),
        ("real", "'-Infinity'", float, "-Infinity is not a number in JSON"),
        ("numeric", "'NaN'", Decimal, "NaN is not a number in JSON"),
        ("timestamptz", "'infinity'", datetime, "infinity is not within the years 1 to 9999"),
        ("timestamp", "'0044-03-15 00:00:00 BC'", datetime, "0044-03-15 00:00:00 BC is not within the years"),
        ("timestamptz", "'10000-01-01 00:00:00Z'", ms.Timestamp, "is not within the years"),
        ("date", "'10000-01-01'", date, "10000-01-01 is not within the years"),
        ("time", "'24:00:00'", time, "24:00:00 is not a time of day in Python"),
        ("interval", "'1 month'", timedelta, "the interval P1M has months, which are not all of one length"),
        ("interval", "'infinity'", ms.Duration, "the interval infinity has no length"),
        ("float8[]", "'{1,NaN}'", list[float], "NaN is not a number in JSON"),
    ],
)  # fmt: skip
def test_a_value_that_has_no_json_is_refused_by_itself(captured: Captured, type_: str, value: str, kind: Any, reason: str) -> None:
    captured.table(f"id int PRIMARY KEY, v {type_}", name="t")
    row = msgspec.defstruct("Row", [("id", int), ("v", kind | None)], frozen=True)
    captured.execute(f"INSERT INTO {captured.schema}.t VALUES (1, NULL), (2, {value}), (3, NULL)")
    reader, seen = captured.open(captured.source("t", row)), Committed()
    read(reader, seen, lambda: len(seen.changes) == 2, ms.Change[row])
    captured.execute(f"UPDATE {captured.schema}.t SET v = {value} WHERE id = 1")
    read_all(reader, seen, ms.Change[row])
    assert len(seen.reasons) == 2
    assert all(each.startswith("column 'v': ") and reason in each for each in seen.reasons)
    assert len(seen.ids) == 4


# What does not fit.


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        ("id int PRIMARY KEY", {"id": int, "v": int}, r"has no column 'v', which Row has, as int"),
        ("id int PRIMARY KEY, v text NOT NULL", {"v": int}, r"column 'v' is of type text, and Row.v is int; declare it as str"),
        ("id int PRIMARY KEY, v numeric NOT NULL", {"v": int}, r"of type numeric, and Row.v is int; declare it as Decimal, float or str"),
        ("id int PRIMARY KEY, v varchar(7) NOT NULL", {"v": bytes}, r"is of type character varying\(7\)"),
        ("id int PRIMARY KEY, v timestamptz NOT NULL", {"v": str}, r"timestamp with time zone, .*declare it as datetime or ms.Timestamp"),
        ("id int PRIMARY KEY, v int[] NOT NULL", {"v": int}, r"integer\[\], .*declare it as list\[int, float, "),
        ("id int PRIMARY KEY, v int[] NOT NULL", {"v": list[str]}, r"integer\[\]"),
        ("id int PRIMARY KEY, v int", {"v": int}, r"column 'v' may be NULL, and Row.v may not be None; declare it as int | None"),
        ("id int PRIMARY KEY, v int GENERATED ALWAYS AS (id) STORED", {"v": int | None}, r"column 'v' is generated"),
        ("v int NOT NULL", {"v": int}, r"has no primary key, and without one rows are not told apart"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused(captured: Captured, columns: str, kind: dict[str, Any], message: str) -> None:
    captured.table(columns, name="t")
    source = captured.source("t", msgspec.defstruct("Row", list(kind.items())))
    for refuse in (source.check, source.open):
        with pytest.raises(ms.TopologyError, match=message) as refused:
            refuse(captured.context())
        assert f"injector '{captured.injector}': table {captured.schema}.t of PostgreSQL at" in str(refused.value)
    assert captured.query(f"SELECT FROM pg_replication_slots WHERE slot_name = '{captured.slot}'") == []
    assert captured.query(f"SELECT FROM pg_publication WHERE pubname = '{captured.slot}'") == []


def test_a_table_without_a_key_is_captured_without_its_rows(captured: Captured) -> None:
    row = msgspec.defstruct("Row", [("v", int)], frozen=True)
    captured.table("v int NOT NULL", name="t")
    source, seen = captured.source("t", row, snapshot=False), Committed()
    with pytest.raises(ms.TopologyError, match="has no primary key"):
        source.check(captured.context(columns=frozenset({"key"})))
    source.check(captured.context())
    reader = captured.open(source)
    read(reader, seen, lambda: bool(seen.positions))
    captured.execute(f"INSERT INTO {captured.schema}.t VALUES (1), (1)", f"UPDATE {captured.schema}.t SET v = 2")
    read_all(reader, seen, ms.Change[row])
    assert seen.changes == [ms.Change(None, row(1))] * 2 + [ms.Change(row(1), row(2))] * 2


def test_tables_that_cannot_be_captured(captured: Captured) -> None:
    schema = captured.schema
    captured.execute(
        f"CREATE TABLE {schema}.default_identity (id int PRIMARY KEY)",
        f"CREATE UNLOGGED TABLE {schema}.unlogged (id int PRIMARY KEY)",
        f"CREATE TABLE {schema}.parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        f"CREATE VIEW {schema}.view AS SELECT 1 AS id",
    )
    row = msgspec.defstruct("Row", [("id", int)])
    for table, message in {
        "missing": f"there is no table {schema}.missing",
        "default_identity": f'run ALTER TABLE "{schema}"."default_identity" REPLICA IDENTITY FULL',
        "unlogged": "is unlogged or temporary",
        "parted": "is partitioned, and its changes are those of its partitions",
        "view": "is not a table but a view",
    }.items():
        with pytest.raises(ms.TopologyError, match=message):
            captured.source(table, row).check(captured.context())
    captured.table()
    with pytest.raises(ms.TopologyError, match="a table is given twice"):
        captured.source(["accounts", "accounts"]).check(captured.context())
    with pytest.raises(ms.TopologyError, match="have no column 'user'; there are commit_time, key, lsn, table"):
        captured.source().check(captured.context(columns=frozenset({"user"})))


def test_rights_that_are_lacking_are_named(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    table = captured.table()
    source = captured.source(dsn=captured.server.dsn_at(captured.server.port, user="guarded"))

    def refused(message: str) -> None:
        with pytest.raises(ms.TopologyError, match=message):
            source.check(captured.context())

    captured.execute(f"GRANT USAGE ON SCHEMA {captured.schema} TO guarded")
    refused("lacks the right to SELECT; grant it")
    captured.execute(f"GRANT SELECT ON {table} TO guarded")
    refused(f'let the owner of the tables run CREATE PUBLICATION "{captured.slot}" FOR TABLE ONLY')
    captured.execute(f'CREATE PUBLICATION "{captured.slot}" FOR TABLE {table} (id)')
    refused("does not have table .*, or only some of its rows or columns; run ALTER PUBLICATION")
    captured.execute(
        f'ALTER PUBLICATION "{captured.slot}" SET TABLE {table}', f"""ALTER PUBLICATION "{captured.slot}" SET (publish = 'insert')"""
    )
    refused("leaves out some kinds of changes; run ALTER PUBLICATION")
    captured.execute(f"""ALTER PUBLICATION "{captured.slot}" SET (publish = 'insert, update, delete, truncate')""")
    refused("does not let the user of the connection replicate: .*; run ALTER ROLE … REPLICATION")
    captured.execute("ALTER ROLE guarded REPLICATION")
    try:
        source.check(captured.context())
        captured.execute(f"INSERT INTO {table} VALUES (1, 'a', 0)")
        seen = read_all(captured.open(source), Committed())
        assert seen.changes == [ms.Change(None, Account(1, "a", 0))]
    finally:
        captured.execute("ALTER ROLE guarded NOREPLICATION")


def test_a_server_that_does_not_answer_or_cannot_be_captured_from(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.table()
    away = ms.postgres_changes("t", Account, dsn="host=127.0.0.1 port=1 user=nobody")
    for call in (away.check, away.open):
        with pytest.raises(ms.Unreachable, match="refused"):
            call(captured.context())
    for dsn, message in (
        (captured.server.dsn_at(captured.server.port, user="guarded"), "no password supplied"),
        (captured.server.dsn_at(captured.server.port, user="stranger"), 'role "stranger" does not exist'),
        (captured.server.dsn.replace("dbname=postgres", "dbname=nowhere"), 'database "nowhere" does not exist'),
    ):
        with pytest.raises(ms.TopologyError, match=f"does not let the user of the connection in: .*{message}"):
            captured.source(dsn=dsn).check(captured.context())
        with pytest.raises(ms.Unreachable):
            captured.source(dsn=dsn).open(captured.context())
    monkeypatch.setattr("millstream.sources.postgres_catalog.OLDEST", 990_000)
    with pytest.raises(ms.TopologyError, match="the server is PostgreSQL 18, and 99 or later is needed"):
        captured.source().check(captured.context())


# Arguments.


class Pair(NamedTuple):
    left: int


class Entry(TypedDict):
    left: int


def test_arguments_are_refused_where_they_are_given() -> None:
    wrong: Sequence[tuple[dict[str, Any], str]] = [
        ({"tables": ""}, "give the name of a table"),
        ({"tables": []}, "give the name of a table"),
        ({"tables": 7}, "give the name of a table"),
        ({"tables": ["a", 7]}, "give the name of a table"),
        ({"tables": "a.b.c"}, "give the name of a table"),
        ({"row": 7}, "7 is not a type"),
        ({"row": int}, "int has no fields; give a dataclass or a msgspec.Struct"),
        ({"row": Pair}, "Pair has no fields"),
        ({"slot": "Orders"}, "small letters, digits and '_', of at most 63"),
        ({"slot": "x" * 64}, "small letters"),
        ({"slot": ""}, "small letters"),
        ({"snapshot": 1}, "give True or False"),
        ({"ignore_truncates": "yes"}, "give True or False"),
        ({"dsn": 7}, "give text such as"),
        ({"dsn": f"host=a password={PASSWORD}"}, "there is a password in it"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ms.TopologyError, match=message) as refused:
            ms.postgres_changes(**{"tables": "t", "row": Account, "dsn": "host=a", **arguments})
        assert "postgres_changes" in str(refused.value)
        assert PASSWORD not in str(refused.value)


def test_what_is_given_is_kept_and_shown() -> None:
    source = ms.postgres_changes(["shop.orders", "a"], Entry, dsn="host=db dbname=x")
    assert source.value_type == ms.Change[Entry]
    assert source.describe() == "changes of shop.orders, a of PostgreSQL at db/x"


# Messages of the server that are not as they should be.


def test_messages_that_are_cut_or_unknown_are_refused() -> None:
    insert = b"I\0\0\0\1N\0\2t\0\0\0\1an"
    assert postgres_pgoutput.decode(insert) == postgres_pgoutput.RowChange(1, ord("I"), None, [b"a", None])
    for wrong in (
        b"",
        b"X",
        *(insert[:end] for end in range(1, len(insert))),
        b"I\0\0\0\1N\0\1z",
        b"B\0",
        b"C",
        b"R\0\0\0\1a",
        b"T\0\0\0\2\0",
    ):
        with pytest.raises(LogError, match="pgoutput sent a message"):
            postgres_pgoutput.decode(wrong)
    for passed_over in (b"Oabc", b"Yabc", b"Mabc"):
        assert postgres_pgoutput.decode(passed_over) is postgres_pgoutput.OTHER


@dataclass
class Plain:
    left: int


@pytest.mark.parametrize("hint", [dict[str, int], Plain, None, Mood | int, tuple[int, str], type, 5])
def test_hints_that_no_text_fits(hint: Any) -> None:
    assert encoder(ServerType("int[]", element=ServerType("integer", "int4")), hint) is None
    assert encoder(ServerType("text", "text"), hint) is None or hint == Mood | int
