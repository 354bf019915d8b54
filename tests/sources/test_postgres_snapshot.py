"""The rows at the beginning of a capture: nothing is missing and nothing is doubled, whoever writes meanwhile and whoever ends."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

import millstream as ms
from millstream.sources import postgres_reader, postgres_snapshot
from tests.services.postgres import PostgresServer
from tests.sources.postgres_captures import ALL, TIMEOUT, Account, Captured, Committed, read, read_all
from tests.waiting import wait_until

ROWS = 2_000
RATE = 500  # rows that are written a second while a capture starts, at least


@pytest.fixture
def captured(postgres: PostgresServer, tmp_path: Path) -> Iterator[Captured]:
    found = Captured(postgres, tmp_path / "inputs")
    yield found
    found.close()


class Writer(threading.Thread):
    """Changes a table until it is stopped: with rollbacks, savepoints, keys that change. More rows at once where the machine is so
    busy that they would be less than four times `RATE`."""

    def __init__(self, captured: Captured, seed: int) -> None:
        super().__init__(daemon=True)
        self._captured, self._random, self._stop_now = captured, random.Random(seed), threading.Event()
        self.changed = 0  # statements
        self.written = 0  # rows that are committed
        self._begun = time.monotonic()

    def run(self) -> None:
        with self._captured.server.connect() as connection:
            while not self._stop_now.wait(0.002):
                self.written += self._commit(connection)

    def _commit(self, connection: psycopg.Connection[tuple[object, ...]]) -> int:
        """One transaction; returns how many rows are changed by it."""
        rows, whole = 0, self._random.random() >= 0.1
        with connection.transaction(force_rollback=not whole):
            for _ in range(self._random.randint(1, 4)):
                part = self._random.random() >= 0.1
                with connection.transaction(force_rollback=not part):
                    rows += self._change(connection) * part
        return rows * whole

    def _change(self, connection: psycopg.Connection[tuple[object, ...]]) -> int:
        table, chance, of = f"{self._captured.schema}.accounts", self._random.random(), self._random.randint(1, ROWS)
        self.changed += 1
        if chance < 0.5:
            more = 200 if self.written < 4 * RATE * (time.monotonic() - self._begun) else 2
            statement = f"UPDATE {table} SET balance = balance + 1 WHERE id BETWEEN {of} AND {of + self._random.randint(0, more)}"
        elif chance < 0.65:
            statement = f"DELETE FROM {table} WHERE id = {of}"
        elif chance < 0.9:
            statement = f"INSERT INTO {table} VALUES ({of}, 'again', {self.changed}) ON CONFLICT (id) DO UPDATE SET owner = 'twice'"
        else:  # to the other end of the order in which rows are read
            there = self._random.randint(1, ROWS)
            statement = f"UPDATE {table} SET id = {there} WHERE id = {of} AND NOT EXISTS (SELECT FROM {table} WHERE id = {there})"
        return connection.execute(statement.encode()).rowcount

    def stop(self) -> None:
        self._stop_now.set()
        self.join(TIMEOUT)
        assert not self.is_alive()


@contextmanager
def writing(captured: Captured, seed: int) -> Iterator[Writer]:
    writer = Writer(captured, seed)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def fill(captured: Captured) -> None:
    captured.table()
    captured.execute(f"INSERT INTO {captured.schema}.accounts SELECT n, 'o' || n, n FROM generate_series(1, {ROWS}) n")


class Start:
    """The beginning of a capture, at which at least `RATE` rows are written each second: whoever reads is held until they are."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._begun, self._before, self._held = writer, time.monotonic(), writer.written, 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    @property
    def written(self) -> int:
        return self._writer.written - self._before

    def hold(self) -> None:
        """Until there are some more than at the last look, and twice as many as there must be: enough also when the next one is over."""
        wait_until(lambda: self.written >= max(2 * RATE * self.seconds, self._held + 50), TIMEOUT)
        self._held = self.written


class LongTransactions:
    """One is always open, until the last one is committed. Of those before it, every other one comes to nothing."""

    def __init__(self, captured: Captured) -> None:
        self._captured, self._first = captured, 10_000
        self._open = self._begin()
        self.committed: list[int] = []

    @property
    def rows(self) -> range:
        """Of the one that is open."""
        return range(self._first, self._first + 10)

    def next(self) -> None:
        before, self._first = self.rows, self._first + 100
        self._open, old = self._begin(), self._open
        if self._first % 200:
            old.commit()
            self.committed += before
        old.close()

    def commit(self) -> None:
        self._open.commit()
        self.committed += self.rows

    def close(self) -> None:
        self._open.close()

    def _begin(self) -> psycopg.Connection[Any]:
        connection = self._captured.server.connect()
        connection.autocommit = False
        rows = f"SELECT n, 'long', 0 FROM generate_series({self.rows[0]}, {self.rows[-1]}) n"
        connection.execute(f"INSERT INTO {self._captured.schema}.accounts {rows}".encode())
        return connection


@pytest.mark.parametrize("seed", range(3))
def test_a_table_that_is_written_all_the_time(captured: Captured, seed: int) -> None:
    """At 500 rows a second and more while the capture starts, and with a transaction that is open across the moment of the snapshot."""
    fill(captured)
    seen, waited = Committed(), 0
    waits = f"SELECT FROM pg_stat_activity WHERE application_name = 'millstream {captured.injector}' AND wait_event_type = 'Lock'"
    with writing(captured, seed) as writer, closing(LongTransactions(captured)) as long:
        wait_until(lambda: writer.changed > 50, TIMEOUT)
        start = Start(writer)
        reader = captured.open(captured.source())
        while True:  # a slot begins when all that were open have ended; those that were begun later may be open still
            start.hold()
            wait_until(lambda: bool(captured.query(waits)) or read_once(reader, seen) > 0, TIMEOUT)
            if seen.positions:
                break
            waited += 1
            long.next()
        made = start.written
        while seen.positions["snapshot"] and '"done":true' not in str(seen.positions["snapshot"]):
            start.hold()
            read_once(reader, seen)
        seconds, written = start.seconds, start.written
        assert written >= RATE * seconds, (written, seconds)
        assert written - made > RATE, "of them while rows of the snapshot were read"
        assert waited > 0, "for a transaction that was open"
        assert not any(change.after.id in long.rows for change in seen.changes), "the last one is open across the snapshot"
        long.commit()
        before = writer.written
        read(reader, seen, lambda: writer.written > before + RATE, at_most=100)
    read_all(reader, seen)
    assert seen.fold() == captured.rows()
    assert sorted(row.id for row in captured.rows().values() if row.owner == "long") == long.committed


def read_once(reader: ms.SourceReader, into: Committed) -> int:
    """What one look gives."""
    batches = reader.poll(100, 0.1)
    for batch in batches:
        assert isinstance(batch, ms.Batch)
        into.add(batch, ms.Change[Account])
    return len(batches)


def test_who_waits_for_a_long_transaction_says_so(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_reader, "WAITING_IS_LONG", 0.1)
    fill(captured)
    with captured.server.connect() as long:
        long.autocommit = False
        long.execute(f"DELETE FROM {captured.schema}.accounts WHERE id = 1".encode())
        reader = captured.open(captured.source())
        assert reader.poll(10, 0.2) == []
        assert "waits for the transactions that are open on the server" in str(reader.trouble)
        assert reader.lag() == {"": 1}
        began = time.monotonic()
        reader.close()
        assert time.monotonic() - began < 5
        wait_until(lambda: captured.query(f"SELECT FROM pg_replication_slots WHERE slot_name = '{captured.slot}'") == [], TIMEOUT)
        long.rollback()


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_ends_in_the_middle_again_and_again(captured: Captured, seed: int) -> None:
    """What was given and not committed is given again; what was committed is not. Rows are written all the time."""
    fill(captured)
    chance, seen, source, opened = random.Random(seed), Committed(), captured.source(), 0
    with writing(captured, seed) as writer:
        while '"done":true' not in str(seen.positions.get("snapshot", '"done":true')) or opened < 2:
            reader = captured.open(source, seen)
            opened += 1
            target = len(seen.changes) + chance.randint(0, ROWS // 3)
            read(reader, seen, lambda: len(seen.changes) >= target or opened > 20, at_most=chance.randint(1, 200))  # noqa: B023
            for _ in range(chance.randint(0, 3)):
                reader.poll(50, 0.05)  # and lost
            reader.close()
            before = writer.changed
            wait_until(lambda: writer.changed > before + 20, TIMEOUT)  # noqa: B023
            if "snapshot" in seen.positions and not seen.positions["snapshot"]:
                break
    reader = captured.open(source, seen)
    read_all(reader, seen)
    assert opened > 2
    assert seen.fold() == captured.rows()
    assert seen.positions["snapshot"] == ""
    assert captured.query("SELECT slot_name FROM pg_replication_slots WHERE temporary") == []


@pytest.mark.parametrize("given", [0, 1, 2, 3, 4, 5])
def test_a_run_that_ends_after_so_many_batches(captured: Captured, given: int) -> None:
    """In a small table, with keys of two columns whose order is not that of their text, and a second table after it."""
    captured.execute(f"CREATE TYPE {captured.schema}.zone AS ENUM ('a', 'B', 'b', 'c', 'D', 'E', 'A')")
    for name in ("first", "second"):
        captured.table(f"zone {captured.schema}.zone, n int, note text, PRIMARY KEY (zone, n)", name=name)
        captured.execute(*(f"INSERT INTO {captured.schema}.{name} VALUES ('{zone}', {n}, '{name}')" for zone in "aBcD" for n in (2, 10)))

    @dataclass(frozen=True)
    class Place:
        zone: str
        n: int
        note: str | None

    kind, seen, tables = ms.Change[Place], Committed(), ["first", "second"]
    source = captured.source(tables, Place)
    reader = captured.open(source, columns=ALL)
    batches = 0
    while batches < given:
        for batch in reader.poll(3, 0.1):
            assert isinstance(batch, ms.Batch)
            if batches < given:
                seen.add(batch, kind)
                batches += 1
    reader.close()
    for name in tables:
        table = f"{captured.schema}.{name}"
        captured.execute(f"UPDATE {table} SET note = 'new' WHERE zone IN ('a', 'B')")
        captured.execute(f"DELETE FROM {table} WHERE zone = 'c'", f"INSERT INTO {table} VALUES ('b', 3, 'x')")
        captured.execute(f"UPDATE {table} SET zone = 'E' WHERE (zone, n) = ('a', 2)")
        captured.execute(f"UPDATE {table} SET zone = 'A' WHERE (zone, n) = ('D', 2)")
    reader = captured.open(source, seen, columns=ALL)
    read(reader, seen, lambda: len(seen.changes) >= 14, kind, at_most=2)  # as many as there are now
    captured.execute(*(f"UPDATE {captured.schema}.{name} SET note = 'last'" for name in tables))
    read_all(reader, seen, kind, at_most=2)
    keyed = iter(seen.columns)
    found: dict[str, Place] = {}
    for change in seen.changes:
        key = next(keyed)["key"]
        assert found.get(key) == change.before
        if change.after is None:
            del found[key]
        else:
            found[key] = change.after
    expected = {
        f'["{captured.schema}.{name}","{zone}","{n}"]': Place(zone, n, note)
        for name in tables
        for zone, n, note in captured.query(f"SELECT zone, n, note FROM {captured.schema}.{name}")
    }
    assert found == expected
    assert len(set(seen.ids)) == len(seen.ids)


def test_an_empty_table(captured: Captured) -> None:
    captured.table()
    reader, seen = captured.open(captured.source()), Committed()
    read_all(reader, seen)
    assert (seen.changes, seen.positions["snapshot"]) == ([], "")


def test_memory_does_not_grow_with_the_table(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large rows come in smaller batches, whatever is asked for."""
    monkeypatch.setattr(postgres_snapshot, "BYTES_PER_FETCH", 100_000)
    captured.table()
    captured.execute(f"INSERT INTO {captured.schema}.accounts SELECT n, repeat('x', 10000), n FROM generate_series(1, 200) n")
    seen = read_all(captured.open(captured.source()), Committed(), at_most=100_000)
    assert max(seen.sizes) <= 10
    assert seen.fold() == captured.rows()


def test_only_changes_from_now_on(captured: Captured) -> None:
    fill(captured)
    reader, seen = captured.open(captured.source(snapshot=False)), Committed()
    read(reader, seen, lambda: bool(seen.positions))
    captured.execute(f"INSERT INTO {captured.schema}.accounts VALUES (-1, 'new', 0)")
    read_all(reader, seen)
    assert seen.changes == [ms.Change(None, Account(-1, "new", 0))]


def test_rows_have_the_time_at_which_the_first_snapshot_was_begun(captured: Captured) -> None:
    """So that no change after it is late, and none before a snapshot that is taken later for the rest."""
    fill(captured)
    ((before,),) = captured.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    source, seen = captured.source(), Committed()
    reader = captured.open(source, columns=ALL)
    read(reader, seen, lambda: len(seen.changes) > 10, at_most=10)
    reader.close()
    captured.execute(f"UPDATE {captured.schema}.accounts SET balance = -5 WHERE id IN (1, {ROWS})")
    read_all(captured.open(source, seen, columns=ALL), seen)
    times = [columns["commit_time"] for columns in seen.columns]
    assert len(times) == ROWS + 1
    assert len(set(times[:ROWS])) == 1
    assert before <= times[0] <= times[ROWS]
    assert seen.fold() == captured.rows()


def test_a_table_that_is_written_anew_while_its_snapshot_is_taken(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a one looks empty to an earlier snapshot."""
    fill(captured)

    class Late(postgres_snapshot.SnapshotRows):
        def __init__(self, *arguments: Any) -> None:
            captured.execute(f"ALTER TABLE {captured.schema}.accounts ALTER balance TYPE numeric(20, 0)")
            super().__init__(*arguments)

    source = captured.source()
    with monkeypatch.context() as patched:
        patched.setattr(postgres_reader, "SnapshotRows", Late)
        reader = captured.open(source)
        with pytest.raises(ms.Unreachable, match="written anew"):
            read(reader, Committed(), lambda: False)
    reader.close()
    seen = read_all(captured.open(source), Committed())
    assert seen.fold() == captured.rows()
    assert len(seen.changes) == ROWS
