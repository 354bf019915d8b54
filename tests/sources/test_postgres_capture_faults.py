"""A capture whose server dies, whose slot is gone or moved, whose table is changed; and no secret anywhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.command.main import app
from millstream.sources import postgres_streaming
from millstream.sources.postgres_changes import drop, slot_for
from tests.services.postgres import PASSWORD, PostgresServer
from tests.services.postgres_proxy import Proxy
from tests.sources.postgres_captures import TIMEOUT, Account, Captured, Committed, read, read_all
from tests.waiting import wait_until


@pytest.fixture
def captured(postgres: PostgresServer, tmp_path: Path) -> Iterator[Captured]:
    found = Captured(postgres, tmp_path / "inputs")
    yield found
    found.close()


def streaming(captured: Captured, source: ms.Source[object] | None = None) -> tuple[ms.Source[object], ms.SourceReader, Committed]:
    """A table with a row, which is read."""
    captured.execute(f"INSERT INTO {captured.table()} VALUES (1, 'a', 0)")
    source, seen = source or captured.source(), Committed()
    reader = captured.open(source)
    read(reader, seen, lambda: seen.positions.get("snapshot") == "" and len(seen.changes) == 1 and bool(seen.complete))
    return source, reader, seen


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


# Slots that are not as they were.


def refused(captured: Captured, source: ms.Source[object], seen: Committed, message: str) -> None:
    def ready() -> bool:
        try:
            source.open(captured.context(seen.positions)).close()
        except ms.Unreachable:
            return False
        return True

    with pytest.raises(ms.LogError, match=message) as error:
        wait_until(ready, TIMEOUT)
    assert "cannot be read any more. Begin anew: drop the slot (millstream slots --drop" in str(error.value)


def dropped(captured: Captured) -> None:
    wait_until(
        lambda: captured.query(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{captured.slot}'") == [(False,)], TIMEOUT
    )
    captured.query(f"SELECT pg_drop_replication_slot('{captured.slot}')")


def test_a_slot_that_is_gone_is_not_made_anew(captured: Captured) -> None:
    source, reader, seen = streaming(captured)
    reader.close()
    dropped(captured)
    refused(captured, source, seen, "is gone from the server")
    assert captured.query(f"SELECT FROM pg_replication_slots WHERE slot_name = '{captured.slot}'") == []
    captured.query(f"SELECT pg_create_logical_replication_slot('{captured.slot}', 'pgoutput')")
    refused(captured, source, seen, "was read up to .* by another run, or by this one before its folder was put back")


def test_a_publication_that_is_gone(captured: Captured) -> None:
    source, reader, seen = streaming(captured)
    reader.close()
    captured.execute(f"DROP PUBLICATION {captured.slot}")
    refused(captured, source, seen, "publication .* is gone from the server")


def test_a_folder_that_was_put_back(captured: Captured) -> None:
    source, reader, seen = streaming(captured)
    old = Committed(dict(seen.positions))
    captured.execute(f"INSERT INTO {captured.schema}.accounts VALUES (2, 'b', 0)")
    read(reader, seen, lambda: len(seen.changes) == 2 and len(seen.complete) > 2)
    state = f"SELECT confirmed_flush_lsn - '0/0' > {old.positions['']} FROM pg_replication_slots WHERE slot_name = '{captured.slot}'"
    read(reader, seen, lambda: captured.query(state) == [(True,)])
    reader.close()
    refused(captured, source, old, "was read up to .* before its folder was put back")


def test_a_server_that_was_put_back(captured: Captured) -> None:
    source, reader, seen = streaming(captured)
    reader.close()
    seen.positions[""] = int(seen.positions[""]) + (1 << 40)
    refused(captured, source, seen, "the WAL of the server ends at .*, before what was read")


def test_a_slot_that_the_server_gave_up(captured: Captured) -> None:
    source, reader, seen = streaming(captured)
    reader.close()

    def gave_up(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
        connection.execute(f"INSERT INTO {captured.schema}.accounts VALUES (2, 'b', 0) ON CONFLICT DO NOTHING".encode())
        connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
        return captured.query(f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{captured.slot}'") == [("lost",)]

    with captured.server.connect() as connection:
        connection.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            wait_until(lambda: gave_up(connection), TIMEOUT)  # the setting needs a moment to arrive
            refused(captured, source, seen, "the server has given up slot .*, for it held back too much WAL")
        finally:
            connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.execute("SELECT pg_reload_conf()")


def test_a_slot_of_another_run_is_left_alone(captured: Captured, tmp_path: Path) -> None:
    _, reader, seen = streaming(captured)
    captured.folder = tmp_path / "another"
    for _ in ("while it is read", "later"):
        with pytest.raises(ms.LogError, match=r"not made by this run: .* slot=..., or drop it: millstream slots --drop"):
            captured.source().open(captured.context())
        reader.close()
    captured.folder = None
    with pytest.raises(ms.LogError, match="is there already, and not made by this run"):
        captured.source().open(captured.context())
    another = captured.source(slot=f"{captured.slot}_2")
    assert read_all(captured.open(another), Committed()).fold() == seen.fold()


def test_a_run_that_ends_before_its_first_commit_begins_anew(captured: Captured) -> None:
    table = captured.table()
    source = captured.source()
    for number in range(3):
        captured.execute(f"INSERT INTO {table} VALUES ({number}, 'a', 0)")
        seen = Committed()
        reader = captured.open(source)
        read(reader, seen, lambda: len(seen.changes) > number, confirm=False)  # noqa: B023
        reader.close()
    seen = read_all(captured.open(source), Committed())
    assert seen.fold() == captured.rows()
    assert captured.folder is not None
    assert list(captured.folder.iterdir()) == []


def test_positions_of_another_source_are_refused(captured: Captured) -> None:
    captured.table()
    with pytest.raises(ms.LogError, match="are not those of a capture from PostgreSQL"):
        captured.source().open(captured.context({"": "here"}))


def test_a_slot_that_holds_back_much_is_told_of(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    _, reader, seen = streaming(captured)
    assert reader.trouble is None
    monkeypatch.setattr(postgres_streaming, "HELD_IS_MUCH", 0)
    count = len(seen.complete)
    read(reader, seen, lambda: len(seen.complete) > count + 1, confirm=False)
    assert f"slot {captured.slot} holds back " in str(reader.trouble)


def test_slots_are_dropped_with_their_publications(captured: Captured) -> None:
    source, reader, _ = streaming(captured)
    with pytest.raises(ms.LogError, match=r"is being read, by process \d+ of the server; stop the run"):
        drop(source, captured.injector)  # type: ignore[arg-type]
    reader.close()
    wait_until(lambda: captured._dropped(captured.slot), TIMEOUT)
    assert captured.query(f"SELECT FROM pg_publication WHERE pubname = '{captured.slot}'") == []
    with pytest.raises(ms.LogError, match="there is no slot"):
        drop(source, captured.injector)  # type: ignore[arg-type]


def test_the_command_lists_and_drops_them(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    _, reader, _ = streaming(captured)
    monkeypatch.setenv("CAPTURE_DSN", captured.server.dsn)

    def command(*words: str) -> str:
        return CliRunner().invoke(app, ["slots", "--dsn-env", "CAPTURE_DSN", *words], catch_exceptions=False).output

    (line,) = [line for line in command().splitlines() if line.startswith(captured.slot)]
    assert line.split()[2:] == ["MB", "now"]
    with pytest.raises(ms.LogError, match="is being read"):
        command("--drop", captured.slot)
    reader.close()
    wait_until(lambda: "by nobody" in next(line for line in command().splitlines() if line.startswith(captured.slot)), TIMEOUT)
    assert captured.slot not in command("--drop", captured.slot)
    with pytest.raises(ms.TopologyError, match="the environment variable NOWHERE is not set"):
        CliRunner().invoke(app, ["slots", "--dsn-env", "NOWHERE"], catch_exceptions=False)


def test_names_of_slots() -> None:
    assert slot_for("orders_2") == "millstream_orders_2"
    names = [slot_for(injector) for injector in ("Orders", "orders ", "größe", "x" * 60, "x" * 61, "a-b", "a.b", "a_b")]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and name.replace("_", "").isalnum() and name.isascii() and name == name.lower() for name in names)


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
