"""A run that delivers to Kafka and PostgreSQL, while it, the broker and the server are killed: topic and table are as the model says."""

from __future__ import annotations

import random
import signal
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

import millstream as ms
from tests.kills import Input, answers, check, expected, feeding, run_to_the_end, start
from tests.program import KAFKA, POSTGRES, TOPIC, Seen
from tests.services.deaths import kill_in_turn
from tests.services.kafka import Broker
from tests.services.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]


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
    given = Input(base, seed=seed)
    with feeding(given):
        kill_in_turn(
            lambda: start(base),
            lambda process: answers(base, process, seconds=240),
            broker,
            server,
            each=each,
            chance=random.Random(seed),
            how=how,
        )
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
