"""A server that goes away in the middle of a step, or between a commit and its answer: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import millstream as ms
from millstream.targets import connection, postgres_sink
from millstream.targets.driver import DeliveryThread
from tests.services.postgres import PostgresServer
from tests.services.postgres_proxy import Cut, Proxy
from tests.targets.fakes import TIMEOUT, FakeJournal, deliver_all, delivery
from tests.targets.postgres_tables import Schema, context, row, written
from tests.waiting import wait_until

LARGE = postgres_sink.MOST_AS_ARRAYS + 1
SIZES = pytest.mark.parametrize("count", [2, LARGE])
MODES = pytest.mark.parametrize("mode", ms.Mode)
BLOCKED = "SELECT pid FROM pg_stat_activity WHERE application_name = 'millstream out' AND wait_event_type = 'Lock'"


@pytest.fixture
def schema(postgres: PostgresServer) -> Schema:
    return Schema(postgres)


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    found = Proxy(postgres.port)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.1)


def values(schema: Schema) -> list[Any]:
    return [value for (value,) in schema.rows("t", "value", order="value")]


def last(schema: Schema) -> list[tuple[Any, ...]]:
    return schema.rows("millstream_deliveries", "step, after, upto, records")


def blocked(schema: Schema) -> list[int]:
    with schema.server.connect() as observer:
        return [pid for (pid,) in observer.execute(BLOCKED)]


@contextmanager
def in_the_middle(schema: Schema, thread: DeliveryThread) -> Iterator[int]:
    """The thread has moved the ledger on and waits for the table, in a transaction of the server's process that is given."""
    holder = schema.server.connect()
    try:
        with holder.transaction():
            holder.execute(f"LOCK TABLE {schema.name}.t IN EXCLUSIVE MODE".encode())
            thread.start()
            wait_until(lambda: len(blocked(schema)) == 1, TIMEOUT)
            yield blocked(schema)[0]
    except psycopg.OperationalError:
        pass  # it went with the server
    finally:
        holder.close()


@MODES
@SIZES
@pytest.mark.parametrize("cut", Cut)
def test_a_connection_that_breaks_at_the_commit(schema: Schema, proxy: Proxy, tmp_path: Path, cut: Cut, count: int, mode: ms.Mode) -> None:
    journal = FakeJournal()
    journal.commit(*range(count))
    target = schema.target("t", dsn=schema.server.dsn_at(proxy.port), mode=mode)
    thread = delivery(journal, target, tmp_path)
    proxy.arm(cut)
    thread.start()
    thread.stop(journal.newest, TIMEOUT)
    assert (thread.error, proxy.fired) == (None, 1)
    assert values(schema) == list(range(count))
    assert last(schema) == [(0, 0, 1, count)]
    journal.commit(count)
    assert deliver_all(journal, target, tmp_path, fence=2).error is None
    assert values(schema) == list(range(count + 1))


@pytest.mark.parametrize("cut", Cut)
def test_a_run_that_ends_there_is_followed_by_one_that_knows(schema: Schema, proxy: Proxy, cut: Cut) -> None:
    """Without the delivery that tries again: what the sink says, and what the next one finds."""
    target, step = schema.target("t", dsn=schema.server.dsn_at(proxy.port)), ms.Step(0, 0, 1)
    with closing(target.open(context(int))) as sink:
        proxy.arm(cut)
        with pytest.raises(ms.Unreachable):
            sink.write(step, [row("a", 1)])
        assert proxy.fired == 1
        with pytest.raises(ms.Unreachable):
            sink.last_step()
    with closing(target.open(context(int, fence=2))) as sink:
        assert sink.last_step() == (step if cut is Cut.CLIENT else None)
    assert values(schema) == ([1] if cut is Cut.CLIENT else [])


@MODES
@SIZES
def test_a_server_that_crashes_in_the_middle_of_a_step(schema: Schema, tmp_path: Path, count: int, mode: ms.Mode) -> None:
    """One of its processes is killed, so all of them end and it recovers."""
    server, journal = schema.server, FakeJournal()
    journal.commit(*range(count))
    thread = delivery(journal, schema.target("t", mode=mode), tmp_path)
    crashes = server.log.count("was terminated by signal 9")
    with in_the_middle(schema, thread) as pid:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.log.count("was terminated by signal 9") == crashes + 1, TIMEOUT)
    thread.stop(journal.newest, TIMEOUT)
    wait_until(server.answers, TIMEOUT)
    assert thread.error is None
    assert values(schema) == list(range(count))
    assert last(schema) == [(0, 0, 1, count)]


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT])
def test_a_server_that_is_away_for_a_while(schema: Schema, tmp_path: Path, how: signal.Signals) -> None:
    journal = FakeJournal()
    journal.commit(1, 2)
    thread = delivery(journal, schema.target("t"), tmp_path)
    try:
        with in_the_middle(schema, thread):
            schema.server.stop(how)
            wait_until(lambda: thread.trouble is not None, TIMEOUT)
        assert str(thread.trouble).startswith(f"delivery 'out' waits: table {schema.name}.t of PostgreSQL at 127.0.0.1:")
    finally:
        schema.server.start()
    thread.stop(journal.newest, TIMEOUT)
    assert (thread.error, thread.trouble, values(schema)) == (None, None, [1, 2])
    assert last(schema) == [(0, 0, 1, 2)]


def test_a_session_that_is_ended_by_an_administrator(schema: Schema, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.commit(1)
    thread = delivery(journal, schema.target("t"), tmp_path)
    with in_the_middle(schema, thread) as pid:
        schema.execute(f"SELECT pg_terminate_backend({pid})")
        wait_until(lambda: pid not in blocked(schema), TIMEOUT)
    thread.stop(journal.newest, TIMEOUT)
    assert (thread.error, values(schema)) == (None, [1])
    assert "terminating connection due to administrator command" in schema.server.log


def test_a_new_run_waits_for_the_step_of_the_old_one(schema: Schema, tmp_path: Path) -> None:
    """What it is told then is final: the old one can no longer change it."""
    journal, found = FakeJournal(), []
    journal.commit(1)
    old = delivery(journal, schema.target("t"), tmp_path)

    def open_new() -> None:
        with closing(schema.target("t").open(context(int, fence=9, identity=identity))) as sink:
            found.append(sink.last_step())

    ((identity,),) = schema.rows("millstream_deliveries", "identity")
    new = threading.Thread(target=open_new)
    with in_the_middle(schema, old):
        new.start()
        wait_until(lambda: len(blocked(schema)) == 2, TIMEOUT)
        assert found == []
    new.join(TIMEOUT)
    old.stop(journal.newest, TIMEOUT)
    assert (found, values(schema)) == ([ms.Step(0, 0, 1)], [1])


def test_a_row_of_the_ledger_that_stays_locked_is_tried_again_later(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres_sink._SESSION, "lock_timeout", "50ms")
    written(schema.target("t"), int, [row("a", 1)])
    with schema.server.connect() as holder, holder.transaction():
        holder.execute(f"SELECT FROM {schema.name}.millstream_deliveries FOR UPDATE".encode())
        with pytest.raises(ms.Unreachable, match="lock timeout"):
            schema.target("t").open(context(int, fence=2))
    schema.target("t").open(context(int, fence=2)).close()


def test_an_overtaken_run_is_refused(schema: Schema, tmp_path: Path) -> None:
    journal = FakeJournal()
    old = delivery(journal, schema.target("t"), tmp_path)
    new = delivery(journal, schema.target("t"), tmp_path, fence=2)
    old.start()
    old.notify(*journal.commit(1))
    old.join(TIMEOUT)
    assert (old.overtaken, values(schema), last(schema)) == (True, [], [(None, None, None, 0)])
    ((identity,),) = schema.rows("millstream_deliveries", "identity")
    with pytest.raises(ms.Fenced, match="a newer run delivers there"):
        schema.target("t").open(context(int, fence=1, identity=identity))
    new.notify(1, journal.places(1))
    new.start()
    new.stop(1, TIMEOUT)
    assert (new.error, values(schema)) == (None, [1])


def test_a_table_whose_ledger_was_emptied_is_refused(schema: Schema, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.commit(1)
    deliver_all(journal, schema.target("t"), tmp_path)
    schema.execute(f"TRUNCATE {schema.name}.millstream_deliveries")
    with pytest.raises(ms.LogError, match=r"has nothing of what delivery 'out' has delivered, up to epoch 1.*--deliver-anew"):
        delivery(journal, schema.target("t"), tmp_path, fence=2)
