"""What a capture leaves on the server, a slot and a publication: whose they are, what becomes of them, and how they are removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.clients.postgres_dsn import Dsn
from millstream.clients.postgres_slots import drop_command, drop_slot
from millstream.command.main import app
from millstream.sources import postgres_reader, postgres_streaming
from millstream.sources.postgres_changes import drop, slot_for
from tests.services.postgres import PASSWORD, PostgresServer
from tests.sources.postgres_captures import TIMEOUT, Captured, Committed, read, read_all, streaming
from tests.waiting import wait_until


@pytest.fixture
def captured(postgres: PostgresServer, tmp_path: Path) -> Iterator[Captured]:
    found = Captured(postgres, tmp_path / "inputs")
    yield found
    found.close()


# Slots that are not as they were.


def refused(captured: Captured, source: ms.Source[object], seen: Committed, message: str, *, there: bool = True) -> None:
    """A slot that is still there is to be dropped, with a command that is given."""

    def ready() -> bool:
        try:
            source.open(captured.context(seen.positions)).close()
        except ms.Unreachable:
            return False
        return True

    with pytest.raises(ms.LogError, match=message) as error:
        wait_until(ready, TIMEOUT)
    text = str(error.value)
    assert "cannot be read any more. Begin anew: give the injector another name, or the run another folder" in text
    assert text.endswith(f"; and drop the slot: {drop_command(Dsn(captured.server.dsn), captured.slot)}") is there


def dropped(captured: Captured) -> None:
    wait_until(
        lambda: captured.query(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{captured.slot}'") == [(False,)], TIMEOUT
    )
    captured.query(f"SELECT pg_drop_replication_slot('{captured.slot}')")


def test_a_slot_that_is_gone_is_not_made_anew(captured: Captured) -> None:
    source, reader, seen = streaming(captured)
    reader.close()
    dropped(captured)
    refused(captured, source, seen, "is gone from the server", there=False)
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
        with pytest.raises(ms.LogError, match=r"not made by this run: .* slot=..., or drop it: MILLSTREAM_DSN=.* --drop"):
            captured.source().open(captured.context())
        reader.close()
    captured.folder = None
    with pytest.raises(ms.LogError, match="is there already, and not made by this run"):
        captured.source().open(captured.context())
    another = captured.source(slot=f"{captured.slot}_2")
    assert read_all(captured.open(another), Committed()).fold() == seen.fold()


def test_a_slot_that_another_run_makes_at_the_same_moment_is_left_alone(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.table()
    source = captured.source()
    captured.query(f"SELECT pg_create_logical_replication_slot('{captured.slot}', 'pgoutput')")
    with monkeypatch.context() as patched:
        patched.setattr(postgres_reader, "slot_named", lambda *_: None)  # it was not there when that was looked at
        reader = captured.open(source)
        with pytest.raises(ms.LogError, match="is there already, and not made by this run"):
            read(reader, Committed(), lambda: False)
        reader.close()
    with pytest.raises(ms.LogError, match="is there already, and not made by this run"):
        source.open(captured.context())
    assert captured.query(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{captured.slot}'") == [(False,)]


@pytest.mark.parametrize("slots", [["long" * 13] * 2, ["long" * 13 + "_a", "long" * 13 + "_b"]])
def test_a_snapshot_is_gone_on_with_while_the_server_has_another_slot_for_one(captured: Captured, slots: list[str]) -> None:
    """That of an earlier try whose end it has not seen, or of another injector with nearly the same name."""
    captured.execute(f"INSERT INTO {captured.table()} SELECT n, 'o', n FROM generate_series(1, 100) n")
    found = {slot: Committed() for slot in slots}
    for slot, seen in found.items():
        reader = captured.open(captured.source(slot=slot))
        read(reader, seen, lambda: len(seen.changes) > 10, at_most=10)  # noqa: B023
        reader.close()
    held, another = (captured.open(captured.source(slot=slot), found[slot]) for slot in slots)
    temporary = "SELECT count(*) FROM pg_replication_slots WHERE temporary AND slot_name LIKE 'long%'"
    wait_until(lambda: captured.query(temporary) == [(2,)], TIMEOUT)
    wait_until(lambda: bool(another.poll(10, 0.1)), TIMEOUT)
    for reader in (held, another):
        reader.close()
    for slot, seen in found.items():
        assert read_all(captured.open(captured.source(slot=slot), seen), seen).fold() == captured.rows()


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


# How they are removed.


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


def test_a_publication_without_a_slot_is_left_alone(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.execute(f"CREATE PUBLICATION {captured.slot} FOR TABLE {captured.table()}")
    monkeypatch.setenv("CAPTURE_DSN", captured.server.dsn)
    with pytest.raises(ms.LogError, match=rf"there is no slot {captured.slot} on this server; the publication .* nothing was changed"):
        CliRunner().invoke(app, ["slots", "--dsn-env", "CAPTURE_DSN", "--drop", captured.slot], catch_exceptions=False)
    assert len(captured.query(f"SELECT FROM pg_publication WHERE pubname = '{captured.slot}'")) == 1
    captured.execute(f"DROP PUBLICATION {captured.slot}")


def test_a_slot_whose_publication_cannot_be_dropped_stays(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    _, reader, _ = streaming(captured)
    reader.close()
    captured.execute("ALTER ROLE guarded REPLICATION")
    dsn = Dsn(captured.server.dsn_at(captured.server.port, user="guarded"))

    def tried() -> bool:
        try:
            drop_slot(dsn, captured.slot)
        except ms.LogError as error:
            return "must be owner of publication" in str(error)
        return False

    try:
        wait_until(tried, TIMEOUT)
    finally:
        captured.execute("ALTER ROLE guarded NOREPLICATION")
    assert len(captured.query(f"SELECT FROM pg_replication_slots WHERE slot_name = '{captured.slot}'")) == 1


@pytest.mark.parametrize("kept", ["plain", "env", "file"])
def test_the_command_that_a_message_says_works_as_it_is_typed(captured: Captured, tmp_path: Path, kept: str) -> None:
    streaming(captured)[1].close()
    wait_until(lambda: not captured.query(f"SELECT FROM pg_replication_slots WHERE slot_name = '{captured.slot}' AND active"), TIMEOUT)
    (tmp_path / "the dsn").write_text(f"{captured.server.dsn}\n")
    secrets = {"env": ms.secret(env="CAPTURE_DSN"), "file": ms.secret(file=tmp_path / "the dsn")}
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "CAPTURE_DSN": captured.server.dsn}
    captured.folder = tmp_path / "another"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CAPTURE_DSN", captured.server.dsn)
        with pytest.raises(ms.LogError) as told:
            captured.source(dsn=secrets.get(kept)).open(captured.context())
    command = str(told.value).rpartition("or drop it: ")[2]
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (0, "")
    assert captured.query(f"SELECT FROM pg_replication_slots WHERE slot_name = '{captured.slot}'") == []


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
