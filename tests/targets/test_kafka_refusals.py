"""What a Kafka target refuses, and how it says so: never with a secret in it."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import millstream as ms
from millstream.targets import kafka as kafka_target
from tests.services.kafka import PASSWORD, USER, Broker, free_ports
from tests.targets.test_kafka import context, record, values

SERVERS = "kafka-1:9092"
CANARY = "canary-in-the-mill"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ms.to_kafka("a b", servers=SERVERS), "give the name of a topic"),
        (lambda: ms.to_kafka("..", servers=SERVERS), "give the name of a topic"),
        (lambda: ms.to_kafka("t", servers=""), "give one or more brokers by host and port"),
        (lambda: ms.to_kafka("t", servers="kafka-1"), "give one or more brokers by host and port"),
        (lambda: ms.to_kafka("t", servers=SERVERS, options={"linger": 1}), r"to_kafka\(options=\.\.\.\): .*linger.*CONFIGURATION\.md"),
        (lambda: ms.to_kafka("t", servers=[]), "give one or more brokers by host and port"),
        (lambda: ms.to_kafka("t", servers=f"user:{CANARY}@kafka:9092"), "give one or more brokers by host and port"),
        (lambda: ms.to_kafka("t", servers=SERVERS, transactions=1), r"to_kafka\(transactions=1\): give True or False"),  # type: ignore[arg-type]
        (lambda: ms.to_kafka("t", servers=SERVERS, create_partitions=0), r"to_kafka\(create_partitions=0\): give a whole number"),
        (lambda: ms.to_kafka("t", servers=SERVERS, options=["a"]), "give a dictionary of options"),  # type: ignore[arg-type]
        (lambda: ms.to_kafka("t", servers=SERVERS, options={"linger.ms": None}), "the option linger.ms is a NoneType; give text"),  # type: ignore[dict-item]
        (
            lambda: ms.to_kafka("t", servers=SERVERS, options={"transactional.id": "x"}),
            "the option transactional.id is not yours to set: it is",
        ),
        (lambda: ms.to_kafka("t", servers=SERVERS, options={"acks": 1}), "the option acks is not yours"),
        (lambda: ms.to_kafka("t", servers=SERVERS, options={"enable.idempotence": False}), "the option enable.idempotence is not yours"),
        (lambda: ms.to_kafka("t", servers=SERVERS, options={"group.id": "x"}), "the option group.id is not yours"),
        (
            lambda: ms.to_kafka("t", servers=SERVERS, options={"bootstrap.servers": "x"}),
            "bootstrap.servers is not yours to set: give servers=",
        ),
        (lambda: ms.to_kafka("t", servers=SERVERS, options={"error_cb": "x"}), "the option error_cb is not yours"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_given(make: Callable[[], ms.Target], message: str) -> None:
    with pytest.raises(ms.TopologyError, match=message) as refused:
        make()
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"]
)
def test_a_secret_in_the_program_is_refused(name: str) -> None:
    with pytest.raises(ms.TopologyError, match=rf"the option {name} is a secret.*ms\.secret\(env=") as refused:
        ms.to_kafka("t", servers=SERVERS, options={name: CANARY})
    assert CANARY not in str(refused.value)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ms.TopologyError, match=r'pip install "millstream\[kafka\]"'):
        ms.to_kafka("t", servers=SERVERS)


def test_a_target_says_where_it_is_and_no_more() -> None:
    options = {"sasl.password": ms.secret(env="NOWHERE"), "client.id": CANARY}
    target = ms.to_kafka("orders", servers=["b:1", "a:1"], options=options)
    assert target.describe() == "Kafka topic 'orders' at a:1,b:1"
    assert target.describe() == ms.to_kafka("orders", servers="a:1, b:1").describe()
    assert CANARY not in repr(target)
    assert pickle.loads(pickle.dumps(target)) == copy.copy(target) == target


@pytest.mark.parametrize(
    ("options", "message"),
    [({"nonsense": 1}, "nonsense"), ({"linger.ms": "abc"}, "Invalid value"), ({"max.in.flight": 7}, "must be set <= 5")],
)
def test_options_that_librdkafka_does_not_know_are_refused_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ms.TopologyError, match=rf"to_kafka\(options=\.\.\.\): .*{message}"):
        ms.to_kafka("t", servers=SERVERS, options=options).check(context())


def test_a_secret_that_is_not_there_is_refused(kafka: Broker) -> None:
    with pytest.raises(ms.TopologyError, match="the environment variable NOWHERE is not set"):
        ms.to_kafka("t", servers=kafka.servers, options={"sasl.password": ms.secret(env="NOWHERE")}).check(context())


def test_no_secret_is_told(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The broker wants a password. With another one it is refused by `check`, and with it records arrive."""
    caplog.set_level(logging.DEBUG, "millstream")
    monkeypatch.setattr(kafka_target, "CHECK_TIMEOUT", 2.0)
    options: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "debug": "security,conf",
    }
    topic = kafka.create_topic()
    target = ms.to_kafka(topic, servers=kafka.login_servers, options={**options, "sasl.password": ms.secret(env="KAFKA_CANARY")})
    monkeypatch.setenv("KAFKA_CANARY", CANARY)
    with pytest.raises(ms.TopologyError, match=r"does not accept the credentials: .*Authentication failed") as refused:
        target.check(context())
    monkeypatch.setenv("KAFKA_CANARY", PASSWORD)
    target.check(context())
    with closing(target.open(context())) as sink:
        sink.write(ms.Step(0, 0, 1), [record("a", 1)])
    assert values(kafka, topic) == [1]
    told = [str(refused.value), repr(target), target.describe(), *(line.getMessage() for line in caplog.records), *capfd.readouterr()]
    assert any("librdkafka: " in line for line in told)
    assert not [line for line in told if CANARY in line or PASSWORD in line]


# What the cluster says.


def test_a_topic_that_is_not_there_is_refused_and_not_created(kafka: Broker) -> None:
    target = ms.to_kafka("not-there", servers=kafka.servers)
    with pytest.raises(ms.TopologyError, match=r"topic 'not-there' does not exist.*kafka-topics\.sh .* --create .*create_partitions=6"):
        target.check(context())
    with pytest.raises(ms.LogError, match="topic 'not-there' does not exist"):
        target.open(context())
    assert "not-there" not in kafka.topics()


def test_a_topic_is_created_when_it_is_opened(kafka: Broker) -> None:
    target = ms.to_kafka("made", servers=kafka.servers, create_partitions=3)
    target.check(context())
    assert "made" not in kafka.topics()
    for fence in (1, 2):
        with closing(target.open(context(fence=fence))) as sink:
            sink.write(ms.Step(0, 0, 1), [record(f"k{n}", n) for n in range(20)])
    assert sorted(values(kafka, "made")) == sorted(2 * list(range(20)))
    assert {message.partition() for message in kafka.read("made")} == {0, 1, 2}


@pytest.mark.parametrize("transactions", [True, False])
def test_a_broker_that_does_not_answer_is_unreachable_in_bounded_time(
    transactions: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_target, "CHECK_TIMEOUT", 0.5)
    monkeypatch.setattr(kafka_target, "ANSWER_TIMEOUT", 0.5)
    (port,) = free_ports(1)
    target = ms.to_kafka("t", servers=f"127.0.0.1:{port}", transactions=transactions)
    for ask in (target.check, target.open):
        begun = time.monotonic()
        with pytest.raises(ms.Unreachable, match=rf"no answer from 127\.0\.0\.1:{port} within 0\.5 s: .*Connection refused"):
            ask(context())
        assert time.monotonic() - begun < 20
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("transactions", [True, False])
@pytest.mark.parametrize(
    ("unwanted", "message"),
    [
        (record("big", "x" * 3000, 7), "3,002 bytes .* is too large; raise max.message.bytes"),
        (record("huge", "x" * 2_000_000, 7), "2,000,002 bytes .* is too large; raise max.message.bytes"),
        (
            ms.Record("then", "x", ms.Timestamp(4_000_000_000_000_000), False, "numbers/1/", 7),
            "has a timestamp that the topic does not take",
        ),
    ],
    ids=["by the broker", "by librdkafka", "timestamp"],
)
def test_a_record_that_the_topic_does_not_take_is_named(kafka: Broker, unwanted: ms.Record[str], message: str, transactions: bool) -> None:
    topic = kafka.create_topic(max_message_bytes=2000)
    with closing(ms.to_kafka(topic, servers=kafka.servers, transactions=transactions).open(context(value_type=str))) as sink:
        sink.write(ms.Step(0, 0, 1), [record("a", "1")])
        with pytest.raises(ms.RecordError, match=rf"delivery 'out': record numbers/1/7 with key '{unwanted.key}': .*{message}"):
            sink.write(ms.Step(1, 1, 2), [unwanted])
        assert values(kafka, topic) == ["1"]  # and no transaction is left open
