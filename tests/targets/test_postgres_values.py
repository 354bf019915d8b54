"""Every type of value in a table of PostgreSQL, there and back; values that do not fit; and no secret anywhere."""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest

import millstream as ms
from millstream.core.codec import encode_value, value_decoder
from millstream.targets import connection, postgres_sink
from tests.services.postgres import PASSWORD, PostgresServer
from tests.targets.fakes import FakeJournal, deliver_all
from tests.targets.postgres_tables import Schema, context, row, written

LARGE = postgres_sink.MOST_AS_ARRAYS + 1
BOTH = pytest.mark.parametrize("count", [1, LARGE])

T = TypeVar("T")
Cents = NewType("Cents", int)


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Inner(msgspec.Struct):
    a: int


@dataclass
class Order:
    customer: str
    total: int | None


class Line(NamedTuple):
    article: str
    number: int


class Entry(TypedDict):
    name: str
    note: NotRequired[str]


class Box(msgspec.Struct, Generic[T]):
    content: T


@dataclass
class Nothing:
    pass


@pytest.fixture
def schema(postgres: PostgresServer) -> Schema:
    return Schema(postgres)


MOMENT = datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)
COLUMNS: Sequence[tuple[Any, Any, str, Any]] = [
    (int, -(2**63), "bigint", -(2**63)),
    (int, 2**63 - 1, "bigint", 2**63 - 1),
    (Cents, 7, "bigint", 7),
    (Annotated[int, msgspec.Meta(ge=0)], 7, "bigint", 7),
    (float, 0.1, "double precision", 0.1),
    (float, 3.0, "double precision", 3.0),
    (str, "a\n\\N'\"{}\u20ac\U0001f600", "text", "a\n\\N'\"{}\u20ac\U0001f600"),
    (str, "", "text", ""),
    (bool, True, "boolean", True),
    (bytes, b"\0\xff\\", "bytea", b"\0\xff\\"),
    (datetime, MOMENT, "timestamp with time zone", MOMENT),
    (datetime, MOMENT.astimezone(timezone(timedelta(hours=5))), "timestamp with time zone", MOMENT),
    (datetime, MOMENT.replace(tzinfo=None), "timestamp with time zone", MOMENT),
    (ms.Timestamp, ms.to_timestamp(MOMENT), "timestamp with time zone", MOMENT),
    (date, date(1, 1, 1), "date", date(1, 1, 1)),
    (time, time(23, 59, 59, 999_999), "time without time zone", time(23, 59, 59, 999_999)),
    (timedelta, timedelta(days=-3, microseconds=7), "interval", timedelta(days=-3, microseconds=7)),
    (ms.Duration, 90 * ms.SECOND, "interval", timedelta(seconds=90)),
    (UUID, UUID(int=5), "uuid", UUID(int=5)),
    (Decimal, Decimal("12345678901234567890.123"), "numeric", Decimal("12345678901234567890.123")),
    (Color, Color.RED, "text", "red"),
    (Level, Level.HIGH, "bigint", 3),
    (Literal["x", "y"], "x", "text", "x"),
    (list[int], [1, 2], "jsonb", [1, 2]),
    (dict[str, list[Inner]], {"x": [Inner(1)]}, "jsonb", {"x": [{"a": 1}]}),
    (int | str, "x", "jsonb", "x"),
    (tuple[int, str], (1, "x"), "jsonb", [1, "x"]),
    (int | None, None, "bigint", None),
    (datetime | None, None, "timestamp with time zone", None),
    (Any, {"a": [1]}, "jsonb", {"a": [1]}),
    (None, 5, "jsonb", 5),
    (Nothing, Nothing(), "jsonb", {}),
]


@BOTH
def test_every_type_has_its_column(schema: Schema, count: int) -> None:
    """All of them in one value with a field for each; as it comes from the log, which is JSON."""
    names = [f"f{n}" for n in range(len(COLUMNS))]
    kind = msgspec.defstruct("Everything", [(name, Any if kind is None else kind) for name, (kind, *_) in zip(names, COLUMNS, strict=True)])
    value = value_decoder(kind)(encode_value(kind(*(value for _, value, *_ in COLUMNS))))
    written(schema.target("t", mode=ms.Mode.UPSERT), kind, [row(f"k{n}", value) for n in range(count)])
    found = schema.rows("t", ", ".join(names))
    assert found == [tuple(expected for *_, expected in COLUMNS)] * count
    types = schema.rows("t", ", ".join(f"pg_typeof({name})::text" for name in names))
    assert types[0] == tuple(type_ for _, _, type_, _ in COLUMNS)


@pytest.mark.parametrize("number", range(0, len(COLUMNS), 4))
def test_a_value_alone_is_the_column_value(schema: Schema, number: int) -> None:
    kind, value, type_, expected = COLUMNS[number]
    written(schema.target("t"), kind, [row("k", value)])
    assert schema.rows("t", "pg_typeof(value)::text, value") == [(type_, expected)]


@pytest.mark.parametrize(
    ("kind", "value", "columns"),
    [
        (Order, Order("ann", None), {"customer": "ann", "total": None}),
        (Line, Line("pen", 3), {"article": "pen", "number": 3}),
        (Entry, {"name": "x"}, {"name": "x", "note": None}),
        (Entry, {"name": "x", "note": "y"}, {"name": "x", "note": "y"}),
        (Inner, Inner(4), {"a": 4}),
        (Box[int], Box(5), {"content": 5}),
        (Box[list[int]], Box([5]), {"content": [5]}),
        (Order | Inner, Inner(4), {"value": {"type": "Inner", "a": 4}}),
    ],
)
def test_what_has_fields_has_a_column_for_each(schema: Schema, kind: Any, value: Any, columns: dict[str, Any]) -> None:
    written(schema.target("t"), kind, [row("k", value)])
    assert schema.rows("t", ", ".join(columns)) == [tuple(columns.values())]
    nullable = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = 't' AND is_nullable = 'YES'"
    with schema.server.connect() as connection:
        assert {name for (name,) in connection.execute(nullable, [schema.name])} == {"total", "note"} & set(columns)


def test_fields_that_are_called_as_our_own_columns_have_a_way_out(schema: Schema) -> None:
    with pytest.raises(ms.TopologyError, match=r"DeadLetter brings a column 'key', .*to_postgres\(..., key='record_key'\)"):
        schema.target("t").check(context(ms.DeadLetter))
    target = schema.target("t", key="record_key", id="record_id")
    written(target, ms.DeadLetter, [row("k", ms.DeadLetter("s", None, "was", "s/1", "why", "7"))])
    assert schema.rows("t", "record_key, record_id, key, id, reason") == [("k", "numbers/1/0", "was", "s/1", "why")]
    with pytest.raises(ms.TopologyError, match="int brings a column 'value'"):
        schema.target("u", key="value").check(context(int))


# What does not fit.


@pytest.mark.parametrize(
    ("kind", "value", "column"),
    [
        (int, 2**63, "value"),
        (str, "a\0b", "value"),
        (Order, Order("a\0b", 1), "customer"),
        (Order, Order("a", 2**70), "total"),
        (list[str], ["\0"], "value"),
        (time, time(1, tzinfo=UTC), "value"),
    ],
)
@pytest.mark.parametrize(("mode", "count"), [(ms.Mode.APPEND, LARGE), (ms.Mode.UPSERT, 1), (ms.Mode.UPSERT, LARGE)])
def test_a_value_that_does_not_fit_is_named_and_leaves_nothing(
    schema: Schema, kind: Any, value: Any, column: str, mode: ms.Mode, count: int
) -> None:
    good = {int: 1, str: "x", Order: Order("x", 1), time: time(1)}.get(kind, [])
    records = [row(f"k{n}", good, number=n) for n in range(count)] + [row("bad", value, number=count), row("last", good, number=count + 1)]
    with closing(schema.target("t", mode=mode).open(context(kind))) as sink:
        sink.write(ms.Step(0, 0, 1), [row("first", good)])
        with pytest.raises(ms.RecordError) as refused:
            sink.write(ms.Step(1, 1, 2), records)
        assert f"delivery 'out', record numbers/1/{count}, key 'bad': the value for column {column!r} does not fit" in str(refused.value)
        assert schema.rows("t", "key") == [("first",)]
        assert sink.last_step() == ms.Step(0, 0, 1)
        sink.write(ms.Step(1, 1, 2), [row("second", good)])
    assert schema.rows("t", "key") == [("first",), ("second",)]


def test_a_key_or_a_time_that_does_not_fit_is_named_too(schema: Schema) -> None:
    with closing(schema.target("t").open(context(int))) as sink:
        with pytest.raises(ms.RecordError, match="the value for column 'key' does not fit"):
            sink.write(ms.Step(0, 0, 1), [row("a", 1), row("a\0", 1)])
        with pytest.raises(ms.RecordError, match="the value for column 'timestamp' does not fit"):
            sink.write(ms.Step(0, 0, 1), [row("a", 1), ms.Record("b", 1, ms.END_OF_TIME)])


def test_a_constraint_of_the_table_names_the_record(schema: Schema) -> None:
    schema.execute(
        f"CREATE TABLE {schema.name}.t (key text, value bigint CONSTRAINT small CHECK (value < 10), timestamp timestamptz, id text)"
    )
    with closing(schema.target("t").open(context(int))) as sink, pytest.raises(ms.RecordError, match=r"record numbers/1/2, .*small"):
        sink.write(ms.Step(0, 0, 1), [row("a", n * 9, number=n) for n in range(4)])


def test_a_table_that_changes_during_a_run_is_no_fault_of_a_record(schema: Schema) -> None:
    with closing(schema.target("t").open(context(int))) as sink:
        schema.execute(f"ALTER TABLE {schema.name}.t DROP COLUMN value")
        with pytest.raises(ms.LogError, match=r'does not take the step: column "value" .* does not exist'):
            sink.write(ms.Step(0, 0, 1), [row("a", 1)])


# Secrets.


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=127.0.0.1 password={PASSWORD}",
        f"postgresql://guarded:{PASSWORD}@127.0.0.1/postgres",
        f"postgresql://guarded@127.0.0.1/postgres?password={PASSWORD}",
        f"host=127.0.0.1 sslpassword={PASSWORD}",
        f"host=127.0.0.1 passwort={PASSWORD}",
        f"{PASSWORD}",
    ],
)
def test_a_password_in_a_dsn_is_refused_without_repeating_it(dsn: str) -> None:
    with pytest.raises(ms.TopologyError) as refused:
        ms.to_postgres("t", dsn=dsn)
    assert PASSWORD not in repr(refused.value)
    assert "ms.secret(env=" in str(refused.value)
    if " password=" in dsn or "://" in dsn:
        assert "PGPASSWORD in the environment or in ~/.pgpass" in str(refused.value)


def test_a_secret_is_nowhere(
    schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a run that is interrupted, one that cannot come in, and one whose secret is no dsn."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.001)
    server, began = schema.server, len(schema.server.log)
    schema.execute(f"GRANT ALL ON SCHEMA {schema.name} TO guarded")
    target = ms.to_postgres(f"{schema.name}.t", dsn=ms.secret(env="CANARY_DSN"), mode=ms.Mode.UPSERT)
    seen = [repr(target), target.describe()]

    def say(error: BaseException | None) -> None:
        assert error is not None
        seen.extend([str(error), repr(error), repr(error.__cause__), repr(error.__context__)])

    for dsn in (
        f"postgresql://guarded:wrong-{PASSWORD}@127.0.0.1:{server.port}/postgres",
        f"host=127.0.0.1 port=1 password={PASSWORD}",
        f"host=127.0.0.1 {PASSWORD}",
    ):
        monkeypatch.setenv("CANARY_DSN", dsn)
        for call in (target.check, target.open):
            with pytest.raises((ms.TopologyError, ms.Unreachable)) as refused:
                call(context(int))
            say(refused.value)
    monkeypatch.setenv("CANARY_DSN", f"postgresql://guarded:{PASSWORD}@127.0.0.1:{server.port}/postgres")
    target.check(context(int))
    journal = FakeJournal()
    journal.commit(1, 5)
    assert deliver_all(journal, target, tmp_path).error is None
    with closing(target.open(context(int))) as sink:
        schema.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guarded'")
        with pytest.raises(ms.Unreachable) as away:
            sink.write(ms.Step(0, 0, 1), [row("a", 1)])
        say(away.value)
    with closing(target.open(context(int))) as sink:
        with pytest.raises(ms.RecordError) as unfit:
            sink.write(ms.Step(0, 0, 1), [row("a", 2**64)])
        say(unfit.value)
    seen += [
        str(schema.rows("millstream_deliveries", "*")),
        str(schema.rows("t", "*")),
        caplog.text,
        *capfd.readouterr(),
        server.log[began:],
    ]
    seen += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert "millstream_deliveries" in server.log[began:]
    assert [text for text in seen if PASSWORD in text] == []


def test_a_message_of_the_server_that_repeats_a_password_is_shown_without_it(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_DSN", f"postgresql://{PASSWORD}:{PASSWORD}@127.0.0.1:{schema.server.port}/postgres")
    with pytest.raises(ms.Unreachable, match=r'role "\*\*\*" does not exist'):
        ms.to_postgres("t", dsn=ms.secret(env="CANARY_DSN")).open(context(int))
