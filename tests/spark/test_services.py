"""A run that delivers to Kafka and PostgreSQL, while it, the broker and the server are killed: topic and table are as the model says."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

import millstream as ms
from tests.kills import Input, answers, check, expected, feeding, kill_tree, run_to_the_end, start
from tests.program import KAFKA, POSTGRES, TOPIC, Seen
from tests.services.kafka import Broker
from tests.services.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

LONGEST = 2.0  # seconds that all is left alone after an answer


def in_table(server: PostgresServer) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    with server.connect() as connection:
        rows = connection.execute('select id, key, page, number, "timestamp" from seen order by key, number').fetchall()
    assert len({id_ for id_, *_ in rows}) == len(rows), "a record is there twice"
    for _, key, page, number, at in rows:
        found[key].append(text(Seen(page, number), int(ms.to_timestamp(at))))
    return found


def in_topic(broker: Broker, topic: str) -> dict[str, list[str]]:
    """In the order of each key."""
    found: dict[str, list[str]] = defaultdict(list)
    messages = broker.read(topic)
    ids = [dict(message.headers() or [])["millstream-id"] for message in messages]
    assert len(set(ids)) == len(ids), "a record is there twice"
    for message in messages:
        key, headers = message.key(), dict(message.headers() or [])
        assert isinstance(key, bytes)
        value = msgspec.json.decode(message.value() or b"", type=Seen)
        found[key.decode()].append(text(value, int(headers["millstream-timestamp"])))
    return found


def text(seen: Seen, at: int) -> str:
    return f"{msgspec.json.encode(seen).decode()} {at}"


def kill_all_of_it(base: Path, broker: Broker, server: PostgresServer, *, each: int, seed: int, how: signal.Signals) -> None:
    """`how` the broker goes: one that is the only one, and is killed in the millisecond after it has taken a commit, may forget to end
    the transaction, and its readers wait from then on (tests/targets/test_kafka_faults.py has what a delivery says then)."""
    chance, given = random.Random(seed), Input(base, seed=seed)
    victims = ["run", "broker", "server"] * each
    chance.shuffle(victims)
    process: subprocess.Popen[bytes] | None = None
    with feeding(given):
        try:
            for victim in victims:
                process = process or start(base)
                answers(base, process, seconds=240)
                time.sleep(chance.uniform(0, LONGEST))
                if victim == "run":
                    assert kill_tree(process) > 1, "it was there to be killed"
                    process = None
                elif victim == "broker":
                    assert broker.pid is not None
                    broker.kill(how)
                    broker.start()
                else:
                    server.stop(signal.SIGQUIT)  # backends go in the middle of what they do; recovery when it starts
                    server.start()
        finally:
            if process is not None:
                kill_tree(process)
    run_to_the_end(base, seconds=300)
    check(base)
    want = expected(base).seen
    assert in_table(server) == want
    assert in_topic(broker, TOPIC) == want


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, kafka: Broker, postgres: PostgresServer) -> None:
    """Where the program finds them."""
    monkeypatch.setenv(KAFKA, kafka.servers)
    monkeypatch.setenv(POSTGRES, postgres.dsn)
    with postgres.connect() as connection:
        connection.execute("drop table if exists seen")


@pytest.mark.usefixtures("told")
def test_runs_brokers_and_servers_that_die_lose_nothing_and_double_nothing(tmp_path: Path, kafka: Broker, postgres: PostgresServer) -> None:
    kill_all_of_it(tmp_path, kafka, postgres, each=2, seed=21, how=signal.SIGTERM)


@pytest.mark.usefixtures("told")
def test_ten_of_each(tmp_path: Path, kafka: Broker, postgres: PostgresServer) -> None:
    kill_all_of_it(tmp_path, kafka, postgres, each=10, seed=22, how=signal.SIGKILL)
