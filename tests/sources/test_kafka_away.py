"""Topics of a pattern that are not there for a while, or not any more: nothing is read twice, and nothing is passed over."""

from __future__ import annotations

import logging
import re
import uuid
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError

import millstream as ms
from millstream.sources import kafka_reader, kafka_survey
from millstream.sources.kafka_survey import KafkaPartition, Surveyor
from millstream.sources.kafka_tracks import KafkaPiece, encode_piece
from tests.services.kafka import Broker
from tests.sources.kafka_reading import TIMEOUT, Engine, context, open_engine, produce, read_all
from tests.sources.test_kafka_refusals import make_anew


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_survey, "DESCRIBE_EVERY", 0.1)
    monkeypatch.setattr(kafka_reader, "GONE_AFTER", 0.3)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Topics that a cluster does not show to this user, who may not describe them now."""
    topics, found = Surveyor._topics, set[str]()
    monkeypatch.setattr(Surveyor, "_topics", lambda surveyor: [topic for topic in topics(surveyor) if topic not in found])
    return found


def like(kafka: Broker, topic: str, **given: Any) -> ms.Source[Any]:
    """Topics whose names begin with this one's."""
    return ms.kafka(re.compile(rf"{topic}.*"), int, servers=kafka.servers, **given)


def until_dropped(engine: Engine, topic: str) -> None:
    engine.until(lambda: KafkaPartition(topic, 0) not in engine.reader._tracks)  # type: ignore[attr-defined]


def read_some(kafka: Broker, source: ms.Source[Any], topic: str) -> dict[str, ms.Position]:
    """Positions at which some of the records that are known are not read."""
    produce(kafka, topic, range(3))
    with open_engine(source, at_most=3) as engine:
        engine.until(lambda: engine.count() == 3)
        produce(kafka, topic, range(3, 20))
        scout = engine.reader._scout  # type: ignore[attr-defined]
        scout.wait(scout.ask(), TIMEOUT)
        engine.until(lambda: engine.count() > 3)
        assert engine.count() < 20
    return engine.positions


# For a while.


@pytest.mark.parametrize("when", ["while it is read", "when it is opened"])
def test_a_topic_that_comes_back_is_read_on(kafka: Broker, hidden: set[str], when: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream")
    topic, other = kafka.create_topic(), kafka.create_topic()
    source = ms.kafka(re.compile(f"{topic}|{other}"), int, servers=kafka.servers)
    produce(kafka, topic, range(3))
    with open_engine(source) as engine:
        engine.until(lambda: engine.count() == 3)
        hidden.add(topic)
        if when == "while it is read":
            until_dropped(engine, topic)
            produce(kafka, topic, range(3, 5))
            hidden.clear()
            engine.until(lambda: engine.count() == 5)
            assert engine.offsets() == {f"{topic}/0": [0, 1, 2, 3, 4]}
    if when == "when it is opened":
        produce(kafka, topic, range(3, 5))
        with open_engine(source, positions=engine.positions) as again:
            again.until(lambda: not again.poll())
            hidden.clear()
            again.until(lambda: again.count() == 2)
            assert again.offsets() == {f"{topic}/0": [3, 4]}
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"{source.describe()}: topic '{topic}' is not there any more; all that was known of it is read",
        f"{source.describe()}: topic '{topic}' is there again, and read on",
    ]


def test_one_that_was_made_anew_meanwhile_is_refused(kafka: Broker, hidden: set[str]) -> None:
    topic = kafka.create_topic()
    source = like(kafka, topic)
    produce(kafka, topic, range(3))
    positions = read_all(source).positions
    hidden.add(topic)
    with open_engine(source, positions=positions) as engine:
        make_anew(kafka, topic)
        produce(kafka, topic, range(5))
        hidden.clear()
        with pytest.raises(ms.LogError, match=f"topic '{topic}' was deleted and made anew"):
            engine.until(lambda: engine.count() > 0)


def test_what_was_removed_meanwhile_is_refused(kafka: Broker, hidden: set[str]) -> None:
    from confluent_kafka import TopicPartition

    topic = kafka.create_topic()
    source = like(kafka, topic)
    produce(kafka, topic, range(3))
    with open_engine(source) as engine:
        engine.until(lambda: engine.count() == 3)
        hidden.add(topic)
        until_dropped(engine, topic)
        produce(kafka, topic, range(3, 9))
        kafka._admin.delete_records([TopicPartition(topic, 0, 6)])[TopicPartition(topic, 0)].result(TIMEOUT)
        hidden.clear()
        with pytest.raises(ms.LogError, match=r"is to be read from offset 3, and the topic has offsets from 6 up to 9"):
            engine.until(lambda: engine.count() > 3)


# For good, while nothing ran.


def test_one_that_is_deleted_when_all_was_read_is_left_behind(kafka: Broker) -> None:
    topic = kafka.create_topic()
    other = kafka.create_topic(name=f"{topic}-other")
    source = like(kafka, topic)
    produce(kafka, topic, range(3))
    positions = read_all(source).positions
    kafka.remove_topics(topic)
    produce(kafka, other, [7])
    source.check(context(positions=positions))
    assert read_all(source, positions=positions).values() == [7]


def test_one_that_is_deleted_with_records_unread_is_refused(kafka: Broker) -> None:
    topic = kafka.create_topic()
    other = kafka.create_topic(name=f"{topic}-other")
    source = like(kafka, topic)
    positions = read_some(kafka, source, topic)
    kafka.remove_topics(topic)
    left = 20 - int(positions[f"{topic}/0"])
    message = rf"topic '{topic}' was read and is not there any more, with {left} records that were known and not read: it was deleted"
    with pytest.raises(ms.LogError, match=message) as refused:
        source.open(context(positions=positions))
    with pytest.raises(ms.TopologyError, match=rf"injector 'orders': {message}"):
        source.check(context(positions=positions))
    found = re.search(r'leave it out of the pattern, and the others are read on: re\.compile\(r"(.*)"\)', str(refused.value))
    assert found is not None
    without = ms.kafka(re.compile(found[1]), int, servers=kafka.servers)
    without.check(context(positions=positions))
    produce(kafka, other, [7])
    assert read_all(without, positions=positions).values() == [7]


def test_a_lane_says_what_was_known_too(kafka: Broker) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, range(10))
    with closing(like(kafka, topic).piece_reader(context())) as lane:
        for known, more in ((10, {f"{topic}/0#end": 10}), (8, {})):
            piece = ms.Piece(encode_piece(KafkaPiece(topic, 0, 2, 8, known)), 10, f"{topic}/0")
            assert [batch.positions for batch in lane.read(piece, 100)] == [{f"{topic}/0": 8, **more}]


def test_one_of_which_nobody_knows_the_end_is_refused(kafka: Broker) -> None:
    topic = kafka.create_topic()
    source = like(kafka, topic)
    produce(kafka, topic, range(3))
    positions = {name: upto for name, upto in read_all(source).positions.items() if not name.endswith("#end")}
    with open_engine(source, positions=positions) as engine:  # which knows it again
        assert engine.poll()
        assert (engine.values(), engine.positions[f"{topic}/0#end"]) == ([], 3)
    kafka.remove_topics(topic)
    source.check(context(positions=engine.positions))
    with pytest.raises(ms.LogError, match="is not there any more, and nobody knows whether all of it was read: "):
        source.open(context(positions=positions))


@pytest.mark.parametrize("several", [False, True])
def test_one_that_is_named_is_refused_with_what_to_do(kafka: Broker, several: bool) -> None:
    topics = [kafka.create_topic() for _ in range(1 + several)]
    source = ms.kafka(topics, int, servers=kafka.servers)
    positions = read_all(source).positions
    kafka.remove_topics(topics[0])
    way_out = "leave it out of the topics, and the others are read on" if several else "give the injector another name"
    with pytest.raises(ms.LogError, match=f"topic '{topics[0]}' was read and is not there any more.*{way_out}"):
        source.open(context(positions=positions))
    if several:
        assert read_all(ms.kafka(topics[1], int, servers=kafka.servers), positions=positions).values() == []


# None yet.


@pytest.mark.parametrize("beginning", [{"latest": True}, {"since": ms.Timestamp(1 << 60)}, {}])
def test_topics_that_come_after_the_first_opening_are_read_whole(kafka: Broker, beginning: dict[str, Any]) -> None:
    """Also where nothing was there to begin with, and the run was down when they came."""
    name = f"later-{uuid.uuid4().hex[:8]}"
    source = like(kafka, name, **beginning)
    with open_engine(source) as engine:
        assert engine.poll()
        assert engine.positions
        assert not engine.poll()
    kafka.create_topic(name=name)
    produce(kafka, name, [1, 2])
    again = read_all(source, positions=engine.positions)
    assert again.values() == [1, 2]
    assert read_all(source, positions=again.positions).values() == []


# What is asked of a source that has ended.


def test_what_is_not_known_of_an_ended_source_is_only_said(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.create_topic()
    ended = context(positions={f"{topic}/0": 0}, finished=True)
    secret = ms.kafka(topic, int, servers=kafka.servers, bounded=True, options={"sasl.password": ms.secret(env="NOWHERE")})
    secret.check(ended)
    left = secret.left_over(ended)
    assert left is not None
    assert left.startswith("whether more came since is not known: ")
    assert "the environment variable NOWHERE is not set" in left

    def refused(surveyor: Surveyor) -> None:
        raise surveyor.failure(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr(Surveyor, "survey", refused)
    left = ms.kafka(topic, int, servers=kafka.servers, bounded=True).left_over(ended)
    assert left is not None
    assert "allow this user to read and describe the topic" in left
