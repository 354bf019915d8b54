"""A server that dies while it is captured from, and comes back: nothing is missing, and nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import millstream as ms
from tests.services.postgres import PostgresServer
from tests.sources.postgres_captures import TIMEOUT, Account, Captured, Committed, read_all
from tests.waiting import wait_until


@pytest.fixture
def captured(postgres: PostgresServer, tmp_path: Path) -> Iterator[Captured]:
    found = Captured(postgres, tmp_path / "inputs")
    yield found
    found.close()


class Driver:
    """Reads as a run does: what may pass is tried again from what was given; now and then a new run begins, with what is committed."""

    def __init__(self, captured: Captured, source: ms.Source[object], seed: int) -> None:
        self._captured, self._source, self._random = captured, source, random.Random(seed)
        self.committed, self._given = Committed(), list[ms.Batch]()
        self._reader: ms.SourceReader | None = None
        self.unreachable = 0

    def turn(self) -> None:
        try:
            if self._reader is None:
                positions = dict(self.committed.positions)
                for batch in self._given:
                    positions.update(batch.positions)
                self._reader = self._source.open(self._captured.context(positions))
            self._given += [batch for batch in self._reader.poll(self._random.randint(1, 200), 0.05) if isinstance(batch, ms.Batch)]
            if self._random.random() < 0.3:
                for batch in self._given:
                    self.committed.add(batch, ms.Change[Account])
                self._given = []
                if self.committed.positions:
                    self._reader.confirm(self.committed.positions)
        except ms.Unreachable:
            self.unreachable += 1
            self.close()
            time.sleep(0.02)
        if self._random.random() < 0.01:
            self._given = []
            self.close()

    def close(self) -> None:
        if self._reader is not None:
            with suppress(ms.Unreachable):
                self._reader.close()
        self._reader = None


@pytest.mark.parametrize("how", ["killed process", "SIGQUIT", "SIGKILL", "SIGINT"])
def test_a_server_that_dies_again_and_again(captured: Captured, how: str) -> None:
    """In its snapshot and while it streams; a slot may go back then, and what was read is not read twice."""
    server, table = captured.server, captured.table()
    captured.execute(f"INSERT INTO {table} SELECT n, 'o', n FROM generate_series(1, 3000) n")
    driver, stop, deaths = Driver(captured, captured.source(), seed=7), threading.Event(), 0

    def write() -> None:
        chance = random.Random(1)
        while not stop.wait(0.05):
            with suppress(psycopg.OperationalError), server.connect() as connection:
                while not stop.wait(0.002):
                    of = chance.randint(1, 3000)
                    connection.execute(f"UPDATE {table} SET balance = balance + 1 WHERE id BETWEEN {of} AND {of + 3}".encode())
                    connection.execute(f"DELETE FROM {table} WHERE id = {of}".encode())
                    connection.execute(
                        f"INSERT INTO {table} VALUES ({of + 1}, 'again', 0) ON CONFLICT (id) DO UPDATE SET owner = 'x'".encode()
                    )

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        for _ in range(3):
            wanted = len(driver.committed.changes) + 700
            deadline = time.monotonic() + TIMEOUT
            while len(driver.committed.changes) < wanted:
                assert time.monotonic() < deadline
                driver.turn()
            crashes = server.log.count("was terminated by signal 9")
            before = driver.unreachable
            if how == "killed process":
                ((pid,),) = captured.query("SELECT max(pid) FROM pg_stat_activity WHERE application_name LIKE 'millstream %'")
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: server.log.count("was terminated by signal 9") == crashes + 1, TIMEOUT)  # noqa: B023
            elif how == "SIGKILL":
                server.kill()
                server.start()
            else:
                server.stop(signal.Signals[how])
                server.start()
            deaths += 1
            wait_until(server.answers, TIMEOUT)
            while driver.unreachable == before:
                driver.turn()
    finally:
        stop.set()
        writer.join(TIMEOUT)
        driver.close()
    assert (deaths, driver.unreachable >= 3) == (3, True)
    wait_until(server.answers, TIMEOUT)
    seen = driver.committed
    read_all(captured.open(captured.source(), seen), seen)
    assert seen.fold() == captured.rows()
