"""A table of PostgreSQL: what a target must keep to, what stands in its rows, and what it refuses."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import StreamPlan
from millstream.targets import postgres_sink
from millstream.testing import TransactionalTargetContract
from tests.services.postgres import PASSWORD, PostgresServer
from tests.targets.fakes import FakeJournal, deliver_all
from tests.targets.postgres_tables import NOON, Schema, context, row, written

LARGE = postgres_sink.MOST_AS_ARRAYS + 1  # records of a step that is copied


@pytest.fixture
def schema(postgres: PostgresServer) -> Schema:
    return Schema(postgres)


class TestAppend(TransactionalTargetContract):
    @pytest.fixture(autouse=True)
    def _schema(self, schema: Schema) -> Iterator[None]:
        self.schema = schema
        yield
        if not schema.server.running:
            schema.server.start()

    def make(self) -> ms.Target:
        return self.schema.target("numbers")

    def stored(self) -> list[tuple[str, Any]]:
        return self.schema.rows("numbers", "key, value", order="timestamp")

    def bad_value(self) -> int:
        return 1 << 70

    def cut_off(self) -> None:
        self.schema.server.stop(signal.SIGQUIT)

    def reconnect(self) -> None:
        self.schema.server.start()


class TestUpsert(TestAppend):
    def make(self) -> ms.Target:
        return self.schema.target("numbers", mode=ms.Mode.UPSERT)


class TestUpsertByCopy(TestUpsert):
    @pytest.fixture(autouse=True)
    def _all_are_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres_sink, "MOST_AS_ARRAYS", 0)


# Rows.


def test_a_row_has_the_record_and_its_id(schema: Schema) -> None:
    written(schema.target("t"), int, [row("a", 1)])
    assert schema.rows("t", "key, value, timestamp, id") == [("a", 1, ms.to_datetime(NOON), "numbers/1/0")]


@pytest.mark.parametrize("more", [0, LARGE])
def test_of_several_records_of_a_key_in_a_step_the_last_one_stays(schema: Schema, more: int) -> None:
    others = [row(f"other {n}", n) for n in range(more)]
    written(schema.target("t", mode=ms.Mode.UPSERT), int, [row("a", 1), row("b", 5), row("a", 2), *others, row("a", 3)])
    assert schema.rows("t", "key, value", where="key IN ('a', 'b')") == [("a", 3), ("b", 5)]
    assert len(schema.rows("t", "key")) == 2 + more


@pytest.mark.parametrize("more", [0, LARGE])
def test_none_deletes_the_row(schema: Schema, more: int) -> None:
    others = [row(f"other {n}", n) for n in range(more)]
    target = schema.target("t", mode=ms.Mode.UPSERT)
    first = [row("a", 1), row("b", 2), row("c", 3), row("d", None)]
    written(target, int | None, first, [*others, row("a", None), row("b", 7), row("b", None), row("c", None), row("c", 9)])
    assert schema.rows("t", "key, value", where="key !~ 'other'") == [("c", 9)]


@dataclass(frozen=True)
class Account:
    owner: str
    balance: int | None


@pytest.mark.parametrize("more", [0, LARGE])
def test_changes_are_applied_to_the_table(schema: Schema, more: int) -> None:
    """What a change leaves is the row; one that leaves nothing deletes it."""
    change = ms.Change[Account]
    ann, bob, eve = Account("ann", 1), Account("bob", None), Account("eve", 3)
    others = [row(f"other {n}", change(None, ann)) for n in range(more)]
    target = schema.target("t", mode=ms.Mode.UPSERT)
    first = [row("a", change(None, ann)), row("b", change(None, bob)), row("c", change(None, eve)), row("d", change(eve, None))]
    gone = [row("b", change(bob, eve)), row("b", change(eve, None)), row("c", change(eve, None)), row("c", change(None, bob))]
    written(target, change, first, [*others, row("a", change(ann, Account("ann", 9))), *gone])
    assert schema.rows("t", "key, owner, balance", where="key !~ 'other'") == [("a", "ann", 9), ("c", "bob", None)]
    assert len(schema.rows("t", "key")) == 2 + more


def test_changes_of_what_has_no_fields_and_no_change_at_all(schema: Schema) -> None:
    written(schema.target("t", mode=ms.Mode.UPSERT), ms.Change[int] | None, [row("a", ms.Change(None, 5)), row("b", None)])
    assert schema.rows("t", "key, value") == [("a", 5)]


def test_appended_changes_are_rows_of_before_and_after(schema: Schema) -> None:
    written(schema.target("t"), ms.Change[Account], [row("a", ms.Change(None, Account("ann", 1)))])
    assert schema.rows("t", "key, before, after") == [("a", None, {"owner": "ann", "balance": 1})]


def test_a_deletion_that_does_not_fit_is_named(schema: Schema) -> None:
    with (
        closing(schema.target("t", mode=ms.Mode.UPSERT).open(context(ms.Change[Account]))) as sink,
        pytest.raises(ms.RecordError, match="the value for column 'key' does not fit"),
    ):
        sink.write(ms.Step(0, 0, 1), [row("a\0", ms.Change(Account("ann", 1), None))])


def test_appended_none_is_a_row_with_nulls(schema: Schema) -> None:
    @dataclass
    class Pair:
        left: int
        right: str

    written(schema.target("t"), Pair | None, [row("a", Pair(1, "x")), row("b", None)])
    assert schema.rows("t", 'key, "left", "right"') == [("a", 1, "x"), ("b", None, None)]


@pytest.mark.parametrize("table", ['"odd.name"', "it's", '"a""b"', "x; DROP TABLE y; --", "100%s", "Größe", "Select"])
@pytest.mark.parametrize(("mode", "count"), [(ms.Mode.APPEND, 1), (ms.Mode.UPSERT, 1), (ms.Mode.UPSERT, LARGE)])
def test_names_are_quoted(schema: Schema, table: str, mode: ms.Mode, count: int) -> None:
    name = table[1:-1].replace('""', '"') if table.startswith('"') else table
    options: dict[str, Any] = {"key": 'the "key" %s', "timestamp": "when; --", "id": "{id}"}
    target = schema.target(table, mode=mode, **options)
    written(target, int, [row(f"a{n}", n) for n in range(count)])
    target.check(context(int, fence=0))
    assert len(schema.rows(name, "*")) == count


def test_a_table_without_a_schema_is_found_by_the_search_path(schema: Schema, postgres: PostgresServer) -> None:
    target = ms.to_postgres("t", dsn=f"{postgres.dsn} options=-csearch_path={schema.name}")
    written(target, int, [row("a", 1)])
    assert schema.rows("t", "key") == [("a",)]
    assert len(schema.rows("millstream_deliveries", "*")) == 1


def test_the_ledger_says_how_far_the_table_is(schema: Schema, tmp_path: Path) -> None:
    journal = FakeJournal()
    for n in range(3):
        journal.commit(n)
    journal.commit()
    assert deliver_all(journal, schema.target("t"), tmp_path).error is None
    assert schema.rows("millstream_deliveries", "delivery, stream, table_name, fence, upto, records") == [("out", "numbers", "t", 1, 4, 3)]


def test_the_session_says_whose_it_is(schema: Schema) -> None:
    sink = schema.target("t").open(context(int))
    with schema.server.connect() as connection:
        rows = connection.execute("SELECT count(*), max(state) FROM pg_stat_activity WHERE application_name = 'millstream out'").fetchone()
    sink.close()
    assert rows == (1, "idle")


# What is refused before anything runs.


@pytest.mark.parametrize(
    ("definition", "mode", "message"),
    [
        ("key text NOT NULL, value text, timestamp timestamptz, id text", ms.Mode.APPEND, "'value' is of type text, .* need bigint"),
        ("key text, value bigint, timestamp timestamp, id text", ms.Mode.APPEND, "timestamp without time zone, .* need timestamptz"),
        ("key text, value bigint, id text", ms.Mode.APPEND, "has no column 'timestamp'; add it, as timestamptz NOT NULL"),
        ("key text, value bigint, timestamp timestamptz, id text, more int NOT NULL", ms.Mode.APPEND, "column 'more'"),
        ("key text, value bigint, timestamp timestamptz, id text", ms.Mode.UPSERT, "no primary key or unique index on its column"),
        ("key text, value bigint, timestamp timestamptz, id text, UNIQUE (key, id)", ms.Mode.UPSERT, "no primary key or unique index"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused(schema: Schema, definition: str, mode: ms.Mode, message: str) -> None:
    schema.execute(f"CREATE TABLE {schema.name}.t ({definition})")
    target = schema.target("t", mode=mode)
    for refuse in (target.check, target.open):
        with pytest.raises(ms.TopologyError, match=message) as refused:
            refuse(context(int))
        assert f"table {schema.name}.t" in str(refused.value)
    assert not schema.has("millstream_deliveries")


def test_not_null_where_the_stream_may_have_none_is_refused(schema: Schema) -> None:
    schema.execute(f"CREATE TABLE {schema.name}.t (key text, value bigint NOT NULL, timestamp timestamptz, id text)")
    schema.target("t").check(context(int))
    with pytest.raises(ms.TopologyError, match="column 'value' is NOT NULL, and the stream may have None there"):
        schema.target("t").check(context(int | None))


@pytest.mark.parametrize("mode", ms.Mode)
@pytest.mark.parametrize("count", [1, LARGE])
def test_a_table_of_somebody_elses_making_will_do(schema: Schema, mode: ms.Mode, count: int) -> None:
    columns = "n serial, value numeric(30, 2), id varchar(40), key varchar UNIQUE, timestamp timestamptz, at timestamptz DEFAULT now()"
    schema.execute(f"CREATE TABLE {schema.name}.t ({columns})")
    written(schema.target("t", mode=mode), int, [row(f"k{n}", n) for n in range(count)])
    assert schema.rows("t", "key, value::int", order="n") == [(f"k{n}", n) for n in range(count)]


def test_a_check_of_a_table_that_is_not_there_makes_none(schema: Schema) -> None:
    schema.target("t").check(context(int))
    assert not schema.has("t")
    with pytest.raises(ms.TopologyError, match="there is no schema 'nowhere'; create it"):
        ms.to_postgres("nowhere.t", dsn=schema.server.dsn).check(context(int))


def test_a_view_is_refused(schema: Schema) -> None:
    schema.execute(f"CREATE VIEW {schema.name}.v AS SELECT 1 AS key")
    with pytest.raises(ms.TopologyError, match="is not a table but a view"):
        schema.target("v").check(context(int))


@pytest.fixture
def guarded(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> str:
    """The dsn of a user who may see the schema, and nothing in it."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    schema.execute(f"GRANT USAGE ON SCHEMA {schema.name} TO guarded")
    return schema.server.dsn_at(schema.server.port, user="guarded")


def refused(target: ms.Target, message: str) -> None:
    """By a check before anything runs, and by a start."""
    for refuse in (target.check, target.open):
        with pytest.raises(ms.TopologyError, match=message):
            refuse(context(int, fence=2))


@pytest.mark.parametrize(("mode", "needed"), [(ms.Mode.APPEND, ["INSERT"]), (ms.Mode.UPSERT, ["INSERT", "UPDATE", "SELECT", "DELETE"])])
def test_rights_that_are_lacking_are_named(schema: Schema, guarded: str, mode: ms.Mode, needed: list[str]) -> None:
    target, table, ledger = schema.target("t", dsn=guarded, mode=mode), f"{schema.name}.t", f"{schema.name}.millstream_deliveries"
    refused(target, "may not create it in schema")
    written(schema.target("t", mode=mode), int, [row("a", 1)])
    refused(target, f"^table {table}: the user of the connection lacks the right to {' and '.join(needed)}; grant it")
    for each in needed:
        others = [right for right in needed if right != each]
        for right in others:
            schema.execute(f"GRANT {right} ON {table} TO guarded")
        refused(target, f"^table {table}: the user of the connection lacks the right to {each}; grant it")
        schema.execute(f"REVOKE ALL ON {table} FROM guarded")
    schema.execute(f"GRANT {', '.join(needed)} ON {table} TO guarded")
    for each in ("SELECT", "INSERT", "UPDATE"):
        schema.execute(f"GRANT SELECT, INSERT, UPDATE ON {ledger} TO guarded")
        schema.execute(f"REVOKE {each} ON {ledger} FROM guarded")
        refused(target, f"^table {ledger}, which says how far {table} is: the user of the connection lacks the right to {each}; grant it")
    schema.execute(f"GRANT {each} ON {ledger} TO guarded")
    target.check(context(int))
    with closing(target.open(context(int, fence=2))) as sink:
        sink.write(ms.Step(1, 1, 2), [row(f"b{n}", n) for n in range(LARGE)])
        sink.write(ms.Step(2, 2, 3), [row("c", 3)])
    assert len(schema.rows("t", "key")) == LARGE + 2


def test_rights_to_the_columns_will_do(schema: Schema, guarded: str) -> None:
    """A table may have others, which are nobody's business here."""
    written(schema.target("t", mode=ms.Mode.UPSERT), int, [row("a", 1)])
    schema.execute(f"ALTER TABLE {schema.name}.t ADD COLUMN salary int")
    ours = "(key, value, timestamp, id)"
    rights = f"SELECT {ours}, INSERT {ours}, UPDATE (value, timestamp, id), DELETE"
    schema.execute(f"GRANT {rights} ON {schema.name}.t TO guarded")
    schema.execute(f"GRANT SELECT, INSERT, UPDATE ON {schema.name}.millstream_deliveries TO guarded")
    target = schema.target("t", dsn=guarded, mode=ms.Mode.UPSERT)
    target.check(context(int | None))
    with closing(target.open(context(int | None, fence=2))) as sink:
        sink.write(ms.Step(1, 1, 2), [row(f"b{n}", n) for n in range(LARGE)])
        sink.write(ms.Step(2, 2, 3), [row("b1", 7), row("b2", None), row("a", None)])
    assert schema.rows("t", "value", where="key IN ('a', 'b1', 'b2')") == [(7,)]


def test_a_ledger_that_may_not_be_used_is_named_where_the_table_is_missing_too(schema: Schema, guarded: str) -> None:
    written(schema.target("other"), int, [row("a", 1)])
    schema.execute(f"GRANT CREATE ON SCHEMA {schema.name} TO guarded")
    refused(
        schema.target("t", dsn=guarded), f"table {schema.name}.millstream_deliveries, .* lacks the right to SELECT and INSERT and UPDATE"
    )
    assert not schema.has("t")


def test_who_may_not_create_temporary_tables_is_told_so(schema: Schema, guarded: str) -> None:
    written(schema.target("t", mode=ms.Mode.UPSERT), int, [row("a", 1)])
    schema.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema.name} TO guarded")
    schema.execute("REVOKE TEMPORARY ON DATABASE postgres FROM public")
    try:
        refused(
            schema.target("t", dsn=guarded, mode=ms.Mode.UPSERT), "may not create temporary tables, .*; grant TEMPORARY on the database"
        )
        schema.target("t", dsn=guarded).check(context(int))  # rows are copied into the table itself
    finally:
        schema.execute("GRANT TEMPORARY ON DATABASE postgres TO public")


def test_a_server_that_does_not_answer_is_named() -> None:
    target = ms.to_postgres("t", dsn="host=127.0.0.1 port=1 user=nobody")
    with pytest.raises(ms.TopologyError, match=r"delivery 'out': table t of PostgreSQL at 127.0.0.1:1 cannot be reached: .*refused"):
        target.check(context(int))
    with pytest.raises(ms.Unreachable):
        target.open(context(int))


def test_a_table_that_was_dropped_is_refused_and_not_made_anew(schema: Schema) -> None:
    written(schema.target("t"), int, [row("a", 1)])
    schema.execute(f"DROP TABLE {schema.name}.t")
    with pytest.raises(ms.LogError, match=r"is missing, and delivery 'out' has delivered to it up to epoch 1: .*--deliver-anew 'out'"):
        schema.target("t").open(context(int, fence=2))
    assert not schema.has("t")
    schema.target("elsewhere").open(context(int, fence=2)).close()
    schema.target("t").open(context(int, fence=1, identity="anew")).close()
    assert schema.has("t")


def test_rows_of_an_earlier_beginning_are_told_of(schema: Schema, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream")
    written(schema.target("t"), int, [row("a", 1)])
    assert caplog.messages == []
    schema.target("t").open(context(int, identity="anew")).close()
    assert "has rows of this delivery from another folder, or from before it began anew" in caplog.text


# Arguments.


def test_arguments_are_refused_where_they_are_given() -> None:
    wrong: Sequence[tuple[dict[str, Any], str]] = [
        ({"table": ""}, "give the name of a table"),
        ({"table": "a.b.c"}, "give the name of a table"),
        ({"table": "x" * 64}, "at most 63 bytes"),
        ({"table": "a\0b"}, "without NUL"),
        ({"dsn": 7}, "give text such as"),
        ({"dsn": "no dsn"}, "give text such as"),
        ({"mode": "upsert"}, "give ms.Mode.APPEND or ms.Mode.UPSERT"),
        ({"key": ""}, r"to_postgres\(key=''\): give the name of a column"),
        ({"key": "id"}, "give three columns three names"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ms.TopologyError, match=message):
            ms.to_postgres(**{"table": "t", "dsn": "host=a", **arguments})


def test_without_psycopg_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ms.TopologyError, match=r'pip install "millstream\[postgres\]"'):
        ms.to_postgres("t", dsn="host=a")


def test_it_is_delivered_in_steps_of_any_size(schema: Schema, tmp_path: Path) -> None:
    journal = FakeJournal()
    target, stream = schema.target("t"), StreamPlan("numbers", int)
    journal.commit(*range(3))
    assert deliver_all(journal, target, tmp_path, stream=stream).error is None
    journal.commit(*range(3, 3 + LARGE))
    assert deliver_all(journal, target, tmp_path, fence=2, stream=stream).error is None
    assert [value for (value,) in schema.rows("t", "value", order="value")] == list(range(3 + LARGE))
