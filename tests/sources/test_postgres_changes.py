"""Changes of a table of PostgreSQL: what is there when the capture begins, and everything after it, once."""

from __future__ import annotations

import random
import string
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

import millstream as ms
from millstream.sources import postgres_assembly, postgres_streaming
from millstream.sources.postgres_place import lsn_of
from tests.services.postgres import PostgresServer
from tests.sources.postgres_captures import ALL, Account, Captured, Committed, read, read_all
from tests.waiting import wait_until


@pytest.fixture
def captured(postgres: PostgresServer, tmp_path: Path) -> Iterator[Captured]:
    found = Captured(postgres, tmp_path / "inputs")
    yield found
    found.close()


def test_rows_and_then_their_changes(captured: Captured) -> None:
    captured.table()
    captured.execute(f"INSERT INTO {captured.schema}.accounts SELECT n, 'o' || n, n FROM generate_series(1, 100) n")
    source = captured.source()
    source.check(captured.context())
    reader, seen = captured.open(source), Committed()
    read(reader, seen, lambda: len(seen.changes) == 100)
    captured.execute(
        f"UPDATE {captured.schema}.accounts SET balance = 0 WHERE id = 7",
        f"DELETE FROM {captured.schema}.accounts WHERE id = 8",
        f"INSERT INTO {captured.schema}.accounts VALUES (500, 'new', 5)",
    )
    read_all(reader, seen)
    assert seen.changes[100:] == [
        ms.Change(Account(7, "o7", 7), Account(7, "o7", 0)),
        ms.Change(Account(8, "o8", 8), None),
        ms.Change(None, Account(500, "new", 5)),
    ]
    assert seen.fold() == captured.rows()


def test_what_came_to_nothing_is_not_there(captured: Captured) -> None:
    table = captured.table()
    reader, seen = captured.open(captured.source()), Committed()
    read(reader, seen, lambda: bool(seen.positions))
    with captured.server.connect() as connection:
        with connection.transaction() as whole:
            connection.execute(f"INSERT INTO {table} VALUES (1, 'rolled back', 0)".encode())
            raise psycopg.Rollback(whole)
        with connection.transaction():
            connection.execute(f"INSERT INTO {table} VALUES (2, 'kept', 0)".encode())
            with connection.transaction() as part:
                connection.execute(f"INSERT INTO {table} VALUES (3, 'savepoint', 0)".encode())
                raise psycopg.Rollback(part)
            with connection.transaction():
                connection.execute(f"UPDATE {table} SET balance = 4 WHERE id = 2".encode())
    read_all(reader, seen)
    assert seen.changes == [ms.Change(None, Account(2, "kept", 0)), ms.Change(Account(2, "kept", 0), Account(2, "kept", 4))]


def test_a_key_that_changes_is_a_row_that_goes_and_one_that_comes(captured: Captured) -> None:
    table = captured.table()
    reader, seen = captured.open(captured.source(), columns=ALL), Committed()
    captured.execute(f"INSERT INTO {table} VALUES (1, 'a', 0), (2, 'b', 0)")
    read(reader, seen, lambda: len(seen.changes) == 2)
    captured.execute(f"UPDATE {table} SET id = id + 10")
    read_all(reader, seen)
    assert seen.changes[2:] == [
        ms.Change(Account(1, "a", 0), None),
        ms.Change(None, Account(11, "a", 0)),
        ms.Change(Account(2, "b", 0), None),
        ms.Change(None, Account(12, "b", 0)),
    ]
    assert [columns["key"] for columns in seen.columns] == ["1", "2", "1", "11", "2", "12"]
    assert seen.fold() == captured.rows()


def test_columns_beside_the_values(captured: Captured) -> None:
    table = captured.table()
    reader, seen = captured.open(captured.source(), columns=ALL), Committed()
    read(reader, seen, lambda: bool(seen.positions))
    ((before,),) = captured.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    captured.execute(f"INSERT INTO {table} VALUES (7, 'a', 0)")
    ((after, lsn),) = captured.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_current_wal_lsn()")
    read_all(reader, seen)
    (columns,) = seen.columns
    assert (columns["key"], columns["table"]) == ("7", table)
    assert before <= columns["commit_time"] <= after
    assert lsn_of(columns["lsn"]) < lsn_of(lsn)  # type: ignore[operator]
    assert seen.ids == [(lsn_of(columns["lsn"]) >> 32, (lsn_of(columns["lsn"]) & 0xFFFFFFFF) << 31)]  # type: ignore[operator]


def test_only_the_columns_that_are_asked_for(captured: Captured) -> None:
    captured.execute(f"INSERT INTO {captured.table()} VALUES (7, 'a', 0)")
    seen = read_all(captured.open(captured.source(), columns=frozenset({"key"})), Committed())
    assert seen.columns == [{"key": "7"}]


def test_keys_of_several_columns_and_names_that_must_be_quoted(captured: Captured) -> None:
    names = {"size": "Größe", "share": "a%s", "word": "select"}
    kind = msgspec.defstruct("Odd", [("size", str), ("share", int | None), ("word", str)], rename=names, frozen=True)
    captured.table('"Größe" text, "a%s" int, "select" text, other int, PRIMARY KEY ("Größe", "select")', name='"My ""Table""; --"')
    captured.execute(f"""INSERT INTO {captured.schema}."My ""Table""; --" VALUES ('x,y', 1, 'it''s', 5)""")
    source = captured.source('"My ""Table""; --"', kind)
    source.check(captured.context())
    reader, seen = captured.open(source, columns=ALL), Committed()
    read(reader, seen, lambda: len(seen.changes) == 1, ms.Change[kind])
    captured.execute(f"""UPDATE {captured.schema}."My ""Table""; --" SET "a%s" = NULL""")
    read_all(reader, seen, ms.Change[kind])
    old, new = kind("x,y", 1, "it's"), kind("x,y", None, "it's")
    assert seen.changes == [ms.Change(None, old), ms.Change(old, new)]
    assert [columns["key"] for columns in seen.columns] == ['["x,y","it\'s"]'] * 2
    assert seen.columns[0]["table"] == f'{captured.schema}.My "Table"; --'


def test_several_tables_whose_keys_coincide(captured: Captured) -> None:
    for name in ("a", "b"):
        captured.execute(f"INSERT INTO {captured.table(name=name)} VALUES (1, '{name}', 0)")
    reader, seen = captured.open(captured.source(["a", "b"]), columns=ALL), Committed()
    read(reader, seen, lambda: len(seen.changes) == 2)
    captured.execute(*(f"UPDATE {captured.schema}.{name} SET balance = 1" for name in ("b", "a")))
    read_all(reader, seen)
    keys = {name: f'["{captured.schema}.{name}","1"]' for name in ("a", "b")}
    assert [columns["key"] for columns in seen.columns] == [keys["a"], keys["b"], keys["b"], keys["a"]]
    assert [change.after.owner for change in seen.changes if change.after] == ["a", "b", "b", "a"]


def test_values_that_are_kept_apart_are_whole(captured: Captured) -> None:
    """PostgreSQL does not send large values that were not changed."""
    table = captured.table()
    large = "".join(random.Random(1).choices(string.ascii_letters, k=100_000))
    reader, seen = captured.open(captured.source()), Committed()
    read(reader, seen, lambda: bool(seen.positions))
    captured.execute(f"INSERT INTO {table} VALUES (1, '{large}', 0)")
    captured.execute(f"UPDATE {table} SET balance = 1", f"UPDATE {table} SET owner = owner || '!'", f"DELETE FROM {table}")
    read_all(reader, seen)
    first, second, third = Account(1, large, 0), Account(1, large, 1), Account(1, large + "!", 1)
    assert seen.changes == [ms.Change(None, first), ms.Change(first, second), ms.Change(second, third), ms.Change(third, None)]


# Large transactions.


@pytest.mark.parametrize("at_most", [1, 7, 100, 5_000])
def test_a_transaction_is_whole_or_cut_where_it_is_larger_than_is_wanted(captured: Captured, at_most: int) -> None:
    """Whoever opens it again in the middle gets the rest, and nothing twice; what was confirmed is not asked for."""
    table = captured.table()
    source, seen = captured.source(), Committed()
    reader = captured.open(source)
    read(reader, seen, lambda: bool(seen.positions))
    count = 20 * at_most if at_most < 100 else 10_000
    captured.execute(f"INSERT INTO {table} VALUES (-1, 'small', 0)", f"INSERT INTO {table} VALUES (-2, 'small', 0)")
    captured.execute(
        f"INSERT INTO {table} SELECT n, 'o', 0 FROM generate_series(1, {count}) n",
        f"UPDATE {table} SET id = id + {count} WHERE id <= {count // 2} AND id > 0",
    )
    captured.execute(f"INSERT INTO {table} VALUES (-3, 'small', 0)")
    chance, opened = random.Random(at_most), 0
    while len(seen.changes) < 3 + count + 2 * (count // 2):
        target = len(seen.changes) + chance.randint(1, count)
        read(reader, seen, lambda: len(seen.changes) >= min(target, 3 + count + 2 * (count // 2)), at_most=at_most)  # noqa: B023
        reader.poll(at_most, 0.1)  # and lost
        reader.close()
        reader = captured.open(source, seen)
        opened += 1
    read_all(reader, seen)
    assert opened > 1
    assert seen.fold() == captured.rows()
    assert max(seen.sizes) <= max(at_most + 1, 2)


def test_a_giant_transaction_is_not_held_in_memory(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    table = captured.table()
    reader, seen = captured.open(captured.source()), Committed()
    read(reader, seen, lambda: bool(seen.positions))
    captured.execute(f"INSERT INTO {table} SELECT n, repeat('x', 1000), n FROM generate_series(1, 50000) n")
    lsn = seen.positions[""]
    tracemalloc.start()
    count, positions = 0, set()
    while count < 50_000:
        for batch in reader.poll(1_000, 0.1):
            count += len(batch.values)
            positions.add(batch.positions[""])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20
    assert min(positions) == lsn  # it moves with the end of the transaction only
    assert len(positions) <= 3


def test_batches_are_bounded_by_their_size_too(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_assembly, "MAX_BYTES", 100_000)
    table = captured.table()
    reader, seen = captured.open(captured.source()), Committed()
    read(reader, seen, lambda: bool(seen.positions))
    captured.execute(f"INSERT INTO {table} SELECT n, repeat('x', 10000), n FROM generate_series(1, 100) n")
    read_all(reader, seen, at_most=10_000)
    assert max(seen.sizes) <= 11
    assert seen.fold() == captured.rows()


# How far it is.


def test_event_time_goes_on_while_nothing_happens(captured: Captured) -> None:
    captured.table()
    reader, seen = captured.open(captured.source()), Committed()
    read(reader, seen, lambda: len(seen.complete) >= 3)
    assert seen.complete == sorted(set(seen.complete))
    ((now,),) = captured.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    assert now - 5_000_000 < seen.complete[-1] < now - 900_000


def test_what_is_promised_is_kept(captured: Captured) -> None:
    """No change comes after it was said that all before it have come."""
    table = captured.table()
    reader, seen = captured.open(captured.source(), columns=ALL), Committed()
    deadline, number, promised = time.monotonic() + 3.5, 0, 0
    while time.monotonic() < deadline:
        number += 1
        captured.execute(f"INSERT INTO {table} VALUES ({number}, 'a', 0)")
        for batch in reader.poll(5, 0.05):
            assert all(columns["commit_time"] >= promised for columns in batch.columns or ())
            promised = int(batch.complete or promised)
    assert promised > 0


def test_nothing_is_promised_over_what_waits_to_be_read(captured: Captured) -> None:
    table = captured.table()
    source, seen = captured.source(), Committed()
    reader = captured.open(source, columns=ALL)
    read(reader, seen, lambda: bool(seen.complete))
    reader.close()
    for number in range(20):
        captured.execute(f"INSERT INTO {table} VALUES ({number}, 'a', 0)")
    clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    ((written,),) = captured.query(clock)
    wait_until(lambda: captured.query(clock)[0][0] > written + 3_000_000)
    reader, promised = captured.open(source, seen, columns=ALL), 0
    while len(seen.changes) < 20:
        for batch in reader.poll(1, 0.1):
            assert isinstance(batch, ms.Batch)
            assert all(columns["commit_time"] >= promised for columns in batch.columns or ())
            promised = int(batch.complete or promised)
            seen.add(batch, ms.Change[Account])
    read(reader, seen, lambda: seen.complete[-1] > written)


def test_wal_of_others_is_let_go(captured: Captured) -> None:
    """The position goes on with what others write, and the slot with what commits have."""
    captured.table()
    other = captured.table(name="other")
    reader, seen = captured.open(captured.source()), Committed()
    read(reader, seen, lambda: bool(seen.complete))
    captured.execute(f"INSERT INTO {other} SELECT n, repeat('x', 1000), n FROM generate_series(1, 1000) n")
    ((lsn,),) = captured.query("SELECT pg_current_wal_lsn()")
    source = captured.source()
    wanted = source.position(lsn)
    assert wanted is not None
    read(reader, seen, lambda: source.reached(seen.positions, wanted))
    assert seen.changes == []
    state = f"SELECT confirmed_flush_lsn >= '{lsn}' FROM pg_replication_slots WHERE slot_name = '{captured.slot}'"
    read(reader, seen, lambda: captured.query(state) == [(True,)])


def test_nothing_is_confirmed_that_no_commit_has(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens it again in the same run reads on from what was given, which a crash may still take away."""
    monkeypatch.setattr(postgres_streaming, "SAY_EVERY", 0.0)
    table = captured.table()
    source, seen = captured.source(), Committed()
    reader = captured.open(source)
    read(reader, seen, lambda: '"done"' not in str(seen.positions.get("snapshot", '"done"')))
    committed = dict(seen.positions)
    captured.execute(f"INSERT INTO {table} VALUES (1, 'a', 0)")
    read(reader, seen, lambda: len(seen.changes) == 1, confirm=False)
    reader.close()
    reader = captured.open(source, seen)
    read(reader, seen, lambda: len(seen.complete) > 2, confirm=False)
    reader.close()
    state = f"SELECT confirmed_flush_lsn - '0/0' <= {committed['']} FROM pg_replication_slots WHERE slot_name = '{captured.slot}'"
    assert captured.query(state) == [(True,)]
    again = Committed(committed)
    read_all(captured.open(source, again), again)
    assert again.changes == [ms.Change(None, Account(1, "a", 0))]


def test_who_writes_knows_when_it_is_read(captured: Captured) -> None:
    table = captured.table()
    source, seen = captured.source(), Committed()
    reader = captured.open(source)
    for function in ("pg_current_wal_lsn", "pg_current_wal_flush_lsn"):
        captured.execute(f"INSERT INTO {table} VALUES ({len(seen.changes) + 1}, 'a', 0)")
        ((lsn,),) = captured.query(f"SELECT {function}()")
        wanted = source.position(lsn)
        assert wanted is not None
        assert not source.reached(seen.positions, wanted)
        read(reader, seen, lambda: source.reached(seen.positions, wanted))  # noqa: B023
        assert seen.fold() == captured.rows()
    assert source.position(5) == {"": 5}
    for other in ("", "x", "1/", "/1", "1/G", "123456789/0", None, 1.5, True):
        assert source.position(other) is None


def test_lag_is_there_while_there_is_something_to_read(captured: Captured) -> None:
    table = captured.table()
    captured.execute(f"INSERT INTO {table} SELECT n, 'o', n FROM generate_series(1, 1000) n")
    reader, seen = captured.open(captured.source()), Committed()
    assert reader.lag()[""] > 0
    read(reader, seen, lambda: len(seen.changes) >= 100, at_most=100)
    assert reader.lag()[""] > 0
    read_all(reader, seen)
    assert reader.lag() == {}
