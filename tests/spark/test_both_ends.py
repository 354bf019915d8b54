"""A run between Kafka and PostgreSQL on both sides, while it, the broker and the server are killed: nothing lost, nothing twice."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from confluent_kafka import Producer

from millstream.log.status import status_of
from tests.ends_program import ACCOUNTS, DSN, INCOMING, MIRROR, NUMBERED, SERVERS, Item, Numbered
from tests.kills import kill_tree
from tests.services.deaths import Process, Steps, kill_in_steps, kill_in_turn
from tests.services.kafka import Broker
from tests.services.postgres import PostgresServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

KEYS, ROWS = 40, 60
BACKLOG = 30_000  # messages: more than the driver reads by itself


class Outside:
    """What writes to both, whoever of them is there."""

    def __init__(self, broker: Broker, server: PostgresServer, seed: int) -> None:
        self._server, self._chance, self._over = server, random.Random(seed), threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": broker.servers, "enable.idempotence": True, "partitioner": "murmur2", "log_level": 0}
        )
        self._counts: defaultdict[str, int] = defaultdict(int)
        self.transactions = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            key = f"k{self._chance.randrange(KEYS)}"
            self._counts[key] += 1
            item = Item(key, self._counts[key], time.time_ns() // 1000)
            self._producer.produce(INCOMING, msgspec.json.encode(item), key)
            self._producer.poll(0)

    def change(self) -> None:
        """A transaction of a few rows; one that fails may have been committed or not, and the table says which."""
        with contextlib.suppress(psycopg.OperationalError), self._server.connect() as connection, connection.transaction():
            for _ in range(self._chance.randrange(1, 4)):
                row, cents = self._chance.randrange(ROWS), self._chance.randrange(10_000)
                if self._chance.random() < 0.2:
                    connection.execute(f"DELETE FROM {ACCOUNTS} WHERE id = %s", (row,))
                else:
                    connection.execute(
                        f"INSERT INTO {ACCOUNTS} VALUES (%s, 'anna', %s) ON CONFLICT (id) DO UPDATE SET cents = excluded.cents",
                        (row, cents),
                    )
            self.transactions += 1

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        def write() -> None:
            while not self._over.wait(0.02):
                self.send(10)
                self.change()

        thread = threading.Thread(target=write, name="writes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            assert self._producer.flush(120) == 0, "all messages arrived"


def start(base: Path, *, last: bool = False) -> Process:
    with (base / "run.log").open("ab") as into:
        words = [sys.executable, "-m", "tests.ends_program", str(base), *(["--last"] if last else [])]
        return subprocess.Popen(words, stdout=into, stderr=into)


def answers(base: Path, process: Process, server: PostgresServer) -> None:
    """Until both tables have gone on."""

    def counts() -> list[int]:
        with contextlib.suppress(psycopg.Error), server.connect() as connection:
            # By table: other programs of these tests have deliveries of the same names in the same server.
            asked = "SELECT records FROM millstream_deliveries WHERE table_name = ANY(%s) ORDER BY table_name"
            return [count for (count,) in connection.execute(asked, ([NUMBERED, MIRROR],)).fetchall()]
        return []

    before = counts() or [-1, -1]

    def went_on() -> bool:
        assert process.poll() is None, (base / "run.log").read_text()[-4000:]
        now = counts()
        return len(now) == 2 and all(there > then for there, then in zip(now, before, strict=True))

    wait_until(went_on, 240)


Killer = Callable[[Callable[[], Process], Callable[[Process], None]], None]


def kill_all_of_it(base: Path, broker: Broker, server: PostgresServer, *, seed: int, killer: Killer) -> None:
    outside = Outside(broker, server, seed)
    outside.send(BACKLOG)
    with outside.writing():
        killer(lambda: start(base), lambda process: answers(base, process, server))
    last = start(base, last=True)
    try:
        assert last.wait(300) == 0, (base / "run.log").read_text()[-4000:]
    finally:
        if last.poll() is None:
            kill_tree(last)
    check(base, broker, server, outside)


def check(base: Path, broker: Broker, server: PostgresServer, outside: Outside) -> None:
    given: dict[str, list[int]] = defaultdict(list)
    for message in broker.read(INCOMING):
        item = msgspec.json.decode(message.value() or b"", type=Item)
        given[item.key].append(item.number)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in given.values()), "the test wrote what it meant to"
    want = {key: [Numbered(n, n) for n in numbers] for key, numbers in given.items()}
    found: dict[str, list[Numbered]] = defaultdict(list)
    for message in broker.read(NUMBERED):
        found[(message.key() or b"").decode()].append(msgspec.json.decode(message.value() or b"", type=Numbered))  # type: ignore[union-attr]
    assert found == want
    with server.connect() as connection:
        rows = connection.execute(f"SELECT key, number, so_far FROM {NUMBERED} ORDER BY key, number").fetchall()
        assert rows == [(key, each.number, each.so_far) for key in sorted(want) for each in want[key]]
        accounts = connection.execute(f"SELECT id, owner, cents FROM {ACCOUNTS} ORDER BY id").fetchall()
        assert connection.execute(f"SELECT id, owner, cents FROM {MIRROR} ORDER BY id").fetchall() == accounts
        assert outside.transactions > 10
    status = status_of(base / "run")
    assert status.injectors["items"].injected == sum(map(len, given.values()))
    assert all(computation.tally.late == 0 for computation in status.computations.values()), "a backlog makes nothing late"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, kafka: Broker, postgres: PostgresServer) -> Iterator[None]:
    """Where the program finds them, and what it reads."""
    monkeypatch.setenv(SERVERS, kafka.servers)
    monkeypatch.setenv(DSN, postgres.dsn)
    kafka.create_topic(3, name=INCOMING)
    with postgres.connect() as connection:
        connection.execute(f"CREATE TABLE {ACCOUNTS} (id bigint PRIMARY KEY, owner text NOT NULL, cents bigint NOT NULL)")
        connection.execute(f"ALTER TABLE {ACCOUNTS} REPLICA IDENTITY FULL")
        connection.execute(f"INSERT INTO {ACCOUNTS} SELECT n, 'bert', n FROM generate_series(1, {ROWS // 2}) n")
    yield
    kafka.remove_topics(INCOMING, NUMBERED)
    with postgres.connect() as connection:
        connection.execute(f"DROP TABLE IF EXISTS {ACCOUNTS}, {NUMBERED}, {MIRROR}")
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
        connection.execute("DROP TABLE IF EXISTS millstream_deliveries")


@pytest.mark.usefixtures("told")
def test_runs_brokers_and_servers_that_die_at_either_end(tmp_path: Path, kafka: Broker, postgres: PostgresServer) -> None:
    def killer(start: Callable[[], Process], answers: Callable[[Process], None]) -> None:
        kill_in_turn(start, answers, kafka, postgres, each=2, chance=random.Random(31), how=signal.SIGTERM)

    kill_all_of_it(tmp_path, kafka, postgres, seed=31, killer=killer)


@pytest.mark.usefixtures("told")
def test_ten_of_each_in_the_middle_of_a_step(tmp_path: Path, kafka: Broker, postgres: PostgresServer) -> None:
    hits = dict[str, int]()

    def killer(start: Callable[[], Process], answers: Callable[[Process], None]) -> None:
        steps = Steps(tmp_path / "steps")
        hits.update(kill_in_steps(start, answers, kafka, postgres, steps, each=10, chance=random.Random(32), how=signal.SIGKILL))

    kill_all_of_it(tmp_path, kafka, postgres, seed=32, killer=killer)
    assert hits == {"run": 10, "broker": 10, "server": 10}
