"""A capture whose connection breaks, whose server is another one, whose table is changed; and no secret anywhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream as ms
from tests.services.postgres import PASSWORD, PostgresServer, running
from tests.services.postgres_proxy import Proxy
from tests.sources.postgres_captures import Account, Captured, Committed, read, read_all, streaming


@pytest.fixture
def captured(postgres: PostgresServer, tmp_path: Path) -> Iterator[Captured]:
    found = Captured(postgres, tmp_path / "inputs")
    yield found
    found.close()


# Connections.


def test_a_connection_that_breaks_in_the_middle_of_a_transaction(captured: Captured) -> None:
    captured.table()
    proxy = Proxy(captured.server.port)
    source, seen = captured.source(dsn=captured.server.dsn_at(proxy.port)), Committed()
    reader = captured.open(source)
    read(reader, seen, lambda: bool(seen.complete))
    captured.execute(f"INSERT INTO {captured.schema}.accounts SELECT n, repeat('x', 1000), n FROM generate_series(1, 20000) n")
    read(reader, seen, lambda: len(seen.changes) > 3_000, at_most=100)
    captured.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
    with pytest.raises(ms.Unreachable):
        read(reader, seen, lambda: False, at_most=100)
    assert 3_000 < len(seen.changes) < 20_000
    reader.close()
    proxy.close()
    reader = captured.open(captured.source(), seen)
    read_all(reader, seen)
    assert seen.fold() == captured.rows()


def test_one_reader_at_a_time(captured: Captured) -> None:
    source, reader, seen = streaming(captured)
    with pytest.raises(ms.Unreachable, match=r"is being read, by process \d+ of the server; an earlier run may be ending"):
        source.open(captured.context(seen.positions))
    reader.close()
    read_all(captured.open(source, seen), seen)


# Servers.


@pytest.fixture(scope="module")
def another() -> Iterator[PostgresServer]:
    server = running()
    yield server
    server.remove()


@pytest.mark.parametrize("secret", [False, True])
def test_another_cluster_is_refused_by_name_and_one_that_has_moved_is_not(
    captured: Captured, another: PostgresServer, monkeypatch: pytest.MonkeyPatch, secret: bool
) -> None:
    """Even where all is called the same there."""
    proxy = Proxy(captured.server.port)
    at = {"here": captured.server.dsn, "moved": captured.server.dsn_at(proxy.port), "another": another.dsn}

    def source(where: str) -> ms.Source[object]:
        monkeypatch.setenv("CAPTURE_DSN", at[where])
        return captured.source(dsn=ms.secret(env="CAPTURE_DSN") if secret else at[where])

    _, reader, seen = streaming(captured, source("here"))
    reader.close()
    with another.connect() as connection:
        connection.execute(f"CREATE SCHEMA {captured.schema}".encode())
        connection.execute(f"CREATE TABLE {captured.schema}.accounts (LIKE pg_class)".encode())
        ((there,),) = connection.execute("SELECT system_identifier::text FROM pg_control_system()").fetchall()
    ((here,),) = captured.query("SELECT system_identifier::text FROM pg_control_system()")
    assert seen.positions["system"] == here != there
    told = f"the server is of the cluster {there}, .* what was read so far is of the cluster {here}: .* give the injector another name"
    for call in (source("another").check, source("another").open):
        with pytest.raises(ms.LogError, match=told):
            call(captured.context(seen.positions))
    moved = source("moved")
    assert moved.identity() == source("another").identity() == captured.source().identity() == source("here").identity()
    monkeypatch.setenv("CAPTURE_DSN", at["moved"])
    moved.check(captured.context(seen.positions))
    captured.execute(f"UPDATE {captured.schema}.accounts SET balance = 9")
    reader = captured.open(moved, seen)
    read_all(reader, seen)
    reader.close()
    proxy.close()
    assert seen.fold() == captured.rows()


def test_the_tables_and_the_slot_are_what_is_read(captured: Captured) -> None:
    of = captured.source().identity()
    assert of == f"changes of {captured.schema}.accounts of PostgreSQL"
    assert captured.source(slot="mine").identity() == f"{of}, by slot mine"
    assert captured.source(["accounts", "others"]).identity() != of


def test_positions_of_another_source_are_refused(captured: Captured) -> None:
    captured.table()
    with pytest.raises(ms.LogError, match="are not those of a capture from PostgreSQL"):
        captured.source().open(captured.context({"": "here"}))


# Tables that change.


def test_a_truncated_table_ends_the_run_after_all_before_it(captured: Captured) -> None:
    source, reader, seen = streaming(captured)
    table = f"{captured.schema}.accounts"
    captured.execute(f"INSERT INTO {table} VALUES (2, 'b', 0)")
    captured.execute(f"INSERT INTO {table} VALUES (3, 'c', 0)", f"TRUNCATE {table}", f"INSERT INTO {table} VALUES (4, 'd', 0)")
    for _ in range(2):
        with pytest.raises(ms.LogError, match=f"table {table} was truncated, .*ignore_truncates=True"):
            read(reader, seen, lambda: False)
        assert len(seen.changes) == 3
        reader.close()
        reader = captured.open(source, seen)
    reader.close()
    reader = captured.open(captured.source(ignore_truncates=True), seen)
    read_all(reader, seen)
    assert seen.changes[3:] == [ms.Change(None, Account(4, "d", 0))]
    assert reader.trouble == f"table {table} was truncated, and its rows are kept"


def test_columns_that_the_type_lacks_are_passed_over(captured: Captured) -> None:
    _, reader, seen = streaming(captured)
    table = f"{captured.schema}.accounts"
    captured.execute(f"ALTER TABLE {table} ADD note text DEFAULT 'x'")
    captured.execute(f"INSERT INTO {table} VALUES (2, 'b', 0, 'y')")
    captured.execute(f"ALTER TABLE {table} ALTER owner TYPE varchar(40), ALTER balance TYPE int, ADD more int[] DEFAULT '{{1}}'")
    captured.execute(f"UPDATE {table} SET balance = 5", f"ALTER TABLE {table} DROP note", f"DELETE FROM {table} WHERE id = 1")
    read_all(reader, seen)
    assert seen.fold() == captured.rows()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DROP owner", r"table .*\.accounts has no column 'owner', which Account has, as str"),
        ("RENAME owner TO holder", r"has no column 'owner'"),
        ("ALTER balance TYPE text", r"column 'balance' is of type text, and Account.balance is int; declare it as str"),
        ("REPLICA IDENTITY DEFAULT", r"was changed to another REPLICA IDENTITY than FULL"),
        ("RENAME TO others", r"table .*\.accounts is called .*\.others now, or was then"),
        ("DROP id", r"has no column 'id'"),
    ],
)  # fmt: skip
def test_a_table_that_no_longer_fits_ends_the_run_after_all_before_it(captured: Captured, change: str, message: str) -> None:
    _, reader, seen = streaming(captured)
    table = f"{captured.schema}.accounts"
    captured.execute(f"INSERT INTO {table} VALUES (2, 'b', 0)")
    captured.execute(f"ALTER TABLE {table} {change}")
    captured.execute(f"DELETE FROM {captured.schema}.{'others' if 'others' in change else 'accounts'}")
    with pytest.raises(ms.LogError, match=message) as error:
        read(reader, seen, lambda: False)
    assert str(error.value).startswith(f"injector '{captured.injector}': table {table} of PostgreSQL at")
    assert seen.changes[1:] == [ms.Change(None, Account(2, "b", 0))]


def test_a_table_that_is_changed_back_in_time_is_read_on(captured: Captured) -> None:
    _, reader, seen = streaming(captured)
    table = f"{captured.schema}.accounts"
    captured.execute(f"ALTER TABLE {table} RENAME owner TO holder")
    captured.execute(f"ALTER TABLE {table} RENAME holder TO owner", f"UPDATE {table} SET balance = 7")
    read_all(reader, seen)
    assert seen.fold() == captured.rows()


# Secrets.


def test_a_secret_is_nowhere(captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server, began, table = captured.server, len(captured.server.log), captured.table()
    captured.execute(f"GRANT USAGE ON SCHEMA {captured.schema} TO guarded", f"ALTER TABLE {table} OWNER TO guarded")
    captured.execute("ALTER ROLE guarded REPLICATION", "GRANT CREATE ON DATABASE postgres TO guarded")
    source = captured.source(dsn=ms.secret(env="CANARY_DSN"))
    seen = [repr(source), source.describe()]

    def say(error: BaseException) -> None:
        seen.extend([str(error), repr(error), repr(error.__cause__), repr(error.__context__)])

    try:
        for dsn in (
            f"postgresql://guarded:wrong-{PASSWORD}@127.0.0.1:{server.port}/postgres",
            f"host=127.0.0.1 port=1 password={PASSWORD}",
            f"host=127.0.0.1 {PASSWORD}",
        ):
            monkeypatch.setenv("CANARY_DSN", dsn)
            for call in (source.check, source.open):
                with pytest.raises((ms.TopologyError, ms.Unreachable)) as refused:
                    call(captured.context())
                say(refused.value)
        monkeypatch.setenv("CANARY_DSN", f"postgresql://guarded:{PASSWORD}@127.0.0.1:{server.port}/postgres")
        source.check(captured.context())
        reader, read_so_far = captured.open(source), Committed()
        read(reader, read_so_far, lambda: bool(read_so_far.complete))
        captured.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guarded'")
        with pytest.raises(ms.Unreachable) as away:
            read(reader, read_so_far, lambda: False)
        say(away.value)
        reader.close()
        captured.execute(f"TRUNCATE {table}")
        reader = captured.open(source, read_so_far)
        with pytest.raises(ms.LogError) as truncated:
            read(reader, read_so_far, lambda: False)
        say(truncated.value)
        reader.close()
    finally:
        captured.execute("ALTER ROLE guarded NOREPLICATION", "REVOKE CREATE ON DATABASE postgres FROM guarded")
    assert captured.folder is not None
    seen += [caplog.text, server.log[began:], str(read_so_far.positions)]
    seen += [path.read_text() for path in captured.folder.rglob("*") if path.is_file()]
    assert captured.slot in server.log[began:]
    assert [text for text in seen if PASSWORD in text] == []
