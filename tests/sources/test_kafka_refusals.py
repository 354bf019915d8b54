"""What a Kafka source refuses, and how it says so: never with a secret in it, and never by passing records over."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

import millstream as ms
from millstream.sources import kafka_opening, kafka_pieces, kafka_reader, kafka_survey
from millstream.sources.kafka_survey import KafkaPartition
from millstream.sources.kafka_tracks import KafkaPiece, encode_piece
from tests.services.kafka import PASSWORD, USER, Broker, free_ports
from tests.sources.kafka_reading import TIMEOUT, context, open_engine, produce, read_all
from tests.waiting import wait_until

SERVERS = "kafka-1:9092"
CANARY = "canary-in-the-mill"


async def later(raw: bytes) -> int:
    return 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ms.kafka("a b", int, servers=SERVERS), "give the name of a topic"),
        (lambda: ms.kafka("orders-.*", int, servers=SERVERS), r"or a pattern, in place of names: re.compile\('orders-\.\*'\)"),
        (lambda: ms.kafka(b"ab", int, servers=SERVERS), r"kafka\(b'ab'\): give the name of a topic"),  # type: ignore[arg-type]
        (lambda: ms.kafka(re.compile(""), int, servers=SERVERS), "give a pattern of whole names"),
        (lambda: ms.kafka([], int, servers=SERVERS), "give at least one topic"),
        (lambda: ms.kafka(["a", ".."], int, servers=SERVERS), "give the name of a topic"),
        (lambda: ms.kafka(7, int, servers=SERVERS), "give the name of a topic"),  # type: ignore[arg-type]
        (lambda: ms.kafka(re.compile(b"a"), int, servers=SERVERS), "give a pattern of text"),  # type: ignore[arg-type]
        (lambda: ms.kafka("t", 7, servers=SERVERS), "7 is not a type"),  # type: ignore[arg-type]
        (lambda: ms.kafka("t", Path, servers=SERVERS), "kafka: values of Path cannot be carried in a stream.*use a dict"),
        (lambda: ms.kafka("t", ms.Message[Path], servers=SERVERS), "cannot be carried in a stream: values of Path"),
        (lambda: ms.kafka("t", int, servers=""), "give one or more brokers by host and port"),
        (lambda: ms.kafka("t", int, servers="kafka-1"), "give one or more brokers by host and port"),
        (lambda: ms.kafka("t", int, servers="kafka-1:99999"), "give one or more brokers by host and port"),
        (lambda: ms.kafka("t", int, servers="http://kafka-1:9092"), "give one or more brokers by host and port"),
        (lambda: ms.kafka("t", int, servers=f"user:{CANARY}@kafka:9092"), "give one or more brokers by host and port"),
        (lambda: ms.kafka("t", int, servers=SERVERS, bounded=1), r"kafka\(bounded=1\): give True or False"),  # type: ignore[arg-type]
        (lambda: ms.kafka("t", int, servers=SERVERS, latest=0), r"kafka\(latest=0\): give True or False"),  # type: ignore[arg-type]
        (lambda: ms.kafka("t", int, servers=SERVERS, since=datetime(2024, 1, 1)), "give a datetime with a time zone"),
        (lambda: ms.kafka("t", int, servers=SERVERS, since="today"), "give a datetime with a time zone"),  # type: ignore[arg-type]
        (lambda: ms.kafka("t", int, servers=SERVERS, since=ms.Timestamp(-1)), "give a datetime with a time zone"),
        (lambda: ms.kafka("t", int, servers=SERVERS, since=ms.Timestamp(1), latest=True), "give one of them"),
        (lambda: ms.kafka("t", int, servers=SERVERS, since=ms.Timestamp(1 << 70)), "give a datetime with a time zone"),
        (lambda: ms.kafka("t", int, servers=SERVERS, latest=True, bounded=True), "it would end where it begins.* give one of them"),
        (lambda: ms.kafka("t", int, servers=SERVERS, group=" "), "give the name of a consumer group"),
        (lambda: ms.kafka("t", int, servers=SERVERS, decode=7), "give a function of the bytes"),  # type: ignore[arg-type]
        (lambda: ms.kafka("t", int, servers=SERVERS, decode=lambda: 1), "cannot be called with bytes alone"),  # type: ignore[arg-type,misc]
        (lambda: ms.kafka("t", int, servers=SERVERS, decode=later), "an async function, which nobody would wait for"),
        (lambda: ms.kafka("t", int, servers=SERVERS, options=["a"]), "give a dictionary of options"),  # type: ignore[arg-type]
        (lambda: ms.kafka("t", int, servers=SERVERS, options={"group.id": "x"}), "group.id is not yours to set: give group="),
        (lambda: ms.kafka("t", int, servers=SERVERS, options={"isolation.level": "x"}), "isolation.level is not yours"),
        (lambda: ms.kafka("t", int, servers=SERVERS, options={"auto.offset.reset": "x"}), "give since= or latest="),
        (lambda: ms.kafka("t", int, servers=SERVERS, options={"enable.auto.commit": True}), "enable.auto.commit is not yours"),
        (lambda: ms.kafka("t", int, servers=SERVERS, options={"bootstrap.servers": "x"}), "not yours to set: give servers="),
        (lambda: ms.kafka("t", int, servers=SERVERS, options={"stats_cb": "x"}), "the option stats_cb is not yours"),
        (lambda: ms.kafka("t", int, servers=SERVERS, options={"nonsense": 1}), r"kafka\(options=\.\.\.\): .*nonsense.*CONFIGURATION\.md"),
        (lambda: ms.kafka("t", int, servers=SERVERS, options={"fetch.wait.max.ms": "abc"}), r"kafka\(options=\.\.\.\): Invalid value"),
        (lambda: ms.kafka("t", int, servers=SERVERS, options={"sasl.password": CANARY}), r"is a secret.*ms\.secret\(env="),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_given(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ms.TopologyError, match=message) as refused:
        make()
    assert CANARY not in str(refused.value)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ms.TopologyError, match=r'pip install "millstream\[kafka\]"'):
        ms.kafka("t", int, servers=SERVERS)


def test_a_source_says_what_its_positions_depend_on_and_no_more() -> None:
    source = ms.kafka("orders", int, servers=["b:1", "a:1"], options={"sasl.password": ms.secret(env="NOWHERE"), "client.id": CANARY})
    assert source.describe() == ms.kafka("orders", int, servers="c:1").describe() == "Kafka topic 'orders'"
    assert ms.kafka(["b", "a", "b"], int, servers="c:1").describe() == "Kafka topics 'a', 'b'"
    assert ms.kafka(re.compile("orders-.*"), int, servers="c:1").describe() == "Kafka topics like 'orders-.*'"
    assert CANARY not in repr(source)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"security.protocol": "SASL_SSL", "sasl.mechanism": "FOO"}, "FOO"), ({"nonsense": ms.secret(env="HOME")}, "nonsense")],
)
def test_options_that_no_client_is_made_with_are_refused_before_anything_runs(options: dict[str, Any], message: str) -> None:
    source = ms.kafka("t", int, servers=SERVERS, options=options)
    with pytest.raises(ms.TopologyError, match=rf"kafka\(options=\.\.\.\): .*{message}"):
        source.check(context())


@dataclass
class Early:
    """Names a class that comes later."""

    of: Later


EARLY = ms.kafka("t", Early, servers=SERVERS)


@dataclass
class Later:
    number: int


def test_a_class_that_names_others_which_come_later_is_taken() -> None:
    assert EARLY.value_type is Early


def test_an_option_that_a_user_gives_is_taken(kafka: Broker) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, [1])
    assert read_all(ms.kafka(topic, int, servers=kafka.servers, options={"fetch.wait.max.ms": 20})).values() == [1]


def test_no_secret_is_told(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The broker wants a password. With another one it is refused by `check`, and with it records are read."""
    caplog.set_level(logging.DEBUG, "millstream")
    monkeypatch.setattr(kafka_opening, "CHECK_TIMEOUT", 2.0)
    options: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": ms.secret(env="KAFKA_CANARY"),
        "debug": "security,conf",
    }
    topic = kafka.create_topic()
    produce(kafka, topic, [1])
    source = ms.kafka(topic, int, servers=kafka.login_servers, options=options)
    monkeypatch.setenv("KAFKA_CANARY", CANARY)
    with pytest.raises(ms.TopologyError, match=r"does not accept the credentials: .*Authentication failed") as refused:
        source.check(context())
    monkeypatch.setenv("KAFKA_CANARY", PASSWORD)
    source.check(context())
    assert read_all(source).values() == [1]
    told = [str(refused.value), repr(source), source.describe(), *(line.getMessage() for line in caplog.records), *capfd.readouterr()]
    assert any("librdkafka: " in line for line in told)
    assert not [line for line in told if CANARY in line or PASSWORD in line]


# What the cluster says.


def test_a_topic_that_is_not_there_is_refused_and_not_created(kafka: Broker) -> None:
    source = ms.kafka("never-there", int, servers=kafka.servers)
    with pytest.raises(ms.TopologyError, match=r"injector 'orders': topic 'never-there' does not exist.*kafka-topics\.sh .* --create"):
        source.check(context())
    with pytest.raises(ms.LogError, match="topic 'never-there' does not exist"):
        source.open(context())
    assert "never-there" not in kafka.topics()


def test_a_broker_that_does_not_answer_is_unreachable_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_opening, "CHECK_TIMEOUT", 0.5)
    monkeypatch.setattr(kafka_reader, "ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(kafka_pieces, "READ_TIMEOUT", 0.5)
    (port,) = free_ports(1)
    for topic in ("t", re.compile("t")):
        source = ms.kafka(topic, int, servers=f"127.0.0.1:{port}")  # type: ignore[arg-type]
        piece = ms.Piece(encode_piece(KafkaPiece("t", 0, 0, 10, 10)), 10, "t/0")
        with closing(source.piece_reader(context())) as lane:
            asked: list[Callable[[ms.SourceContext], Any]] = [source.check, source.open, partial(read_piece, lane, piece)]
            for ask in asked:
                begun = time.monotonic()
                with pytest.raises(ms.Unreachable, match=rf"no answer from 127\.0\.0\.1:{port} within 0\.5 s.*"):
                    ask(context())
                assert time.monotonic() - begun < 20
    assert capfd.readouterr().err == ""


def read_piece(lane: ms.PieceReader, piece: ms.Piece, _: Any = None) -> list[ms.Batch]:
    return list(lane.read(piece, 100))


@pytest.mark.parametrize("way", ["open", "lane", "running"])
def test_what_retention_has_removed_is_refused(kafka: Broker, way: str) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, range(10))
    source = ms.kafka(topic, int, servers=kafka.servers)
    positions, piece = {f"{topic}/0": 2}, ms.Piece(encode_piece(KafkaPiece(topic, 0, 2, 8, 10)), 10, f"{topic}/0")
    with open_engine(source, positions=positions) as engine:  # its consumer begins with the first poll
        kafka._admin.delete_records([TopicPartition(topic, 0, 6)])[TopicPartition(topic, 0)].result(TIMEOUT)
        ways: dict[str, Callable[[], Any]] = {
            "open": lambda: source.open(context(positions=positions)),
            "lane": lambda: read_piece(engine.lane, piece),
            "running": lambda: engine.until(lambda: False),
        }
        with pytest.raises(ms.LogError) as refused:
            ways[way]()
    assert str(refused.value).startswith(
        f"partition 0 of topic '{topic}' is to be read from offset 2, and the topic has offsets from 6 up to 10: what comes next was"
    )


def test_a_position_beyond_the_topic_is_refused(kafka: Broker) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, range(3))
    source = ms.kafka(topic, int, servers=kafka.servers)
    message = r"is to be read from offset 9, and the topic has offsets from 0 up to 3: the topic was cut, or deleted and made anew"
    with pytest.raises(ms.LogError, match=message):
        source.open(context(positions={f"{topic}/0": 9}))
    with closing(source.piece_reader(context())) as lane, pytest.raises(ms.LogError, match=message):
        list(lane.read(ms.Piece(encode_piece(KafkaPiece(topic, 0, 9, 12, 13)), 10, f"{topic}/0"), 100))
    with pytest.raises(ms.LogError, match=r"partition 1 of topic .* was read before, and the topic does not have it any more"):
        source.open(context(positions={f"{topic}/1": 0}))


def make_anew(kafka: Broker, topic: str) -> None:
    kafka._admin.delete_topics([topic])[topic].result(TIMEOUT)
    wait_until(lambda: topic not in kafka.topics(), TIMEOUT)
    wait_until(lambda: created(kafka, topic), TIMEOUT)
    wait_until(lambda: topic in kafka.topics(), TIMEOUT)


def created(kafka: Broker, topic: str) -> bool:
    return kafka._admin.create_topics([NewTopic(topic, 1)])[topic].exception(TIMEOUT) is None


@pytest.mark.parametrize("running", [False, True])
def test_a_topic_that_was_made_anew_is_refused(kafka: Broker, running: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it has the offset that comes next."""
    monkeypatch.setattr(kafka_survey, "DESCRIBE_EVERY", 0.1)
    topic = kafka.create_topic()
    source = ms.kafka(topic, int, servers=kafka.servers)
    produce(kafka, topic, range(3))
    with open_engine(source) as engine:
        engine.until(lambda: engine.count() == 3)
        if running:
            make_anew(kafka, topic)
            with pytest.raises(ms.LogError, match=f"topic '{topic}' was deleted and made anew.* Give the injector another name"):
                engine.until(lambda: False)
    if not running:
        make_anew(kafka, topic)
        produce(kafka, topic, range(5))
        with pytest.raises(ms.LogError, match=f"topic '{topic}' was deleted and made anew"):
            source.open(context(positions=engine.positions))


@pytest.mark.parametrize("pattern", [False, True])
def test_a_topic_that_vanishes_with_records_unread_is_refused(kafka: Broker, pattern: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_survey, "DESCRIBE_EVERY", 0.1)
    monkeypatch.setattr(kafka_reader, "GONE_AFTER", 0.5)
    topic = kafka.create_topic()
    source = ms.kafka(re.compile(topic) if pattern else topic, int, servers=kafka.servers)
    with open_engine(source) as engine:
        engine.until(lambda: not engine.poll())
        kafka._admin.delete_topics([topic])[topic].result(TIMEOUT)
        track = engine.reader._tracks.get(KafkaPartition(topic, 0))  # type: ignore[attr-defined]
        track.end += pattern  # one that is known, and was never fetched
        said: list[str | None] = []
        left = ", with 1 records that were known and not read" if pattern else ""
        with pytest.raises(ms.LogError, match=rf"topic '{topic}' was read and is not there any more{left}: it was deleted, or"):
            engine.until(lambda: said.append(engine.reader.trouble) is not None)
        assert f"topic '{topic}' is not there any more" in said
