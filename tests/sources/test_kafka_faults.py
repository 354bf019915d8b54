"""A Kafka source when the broker dies: it says so, waits a bounded time, and reads on without a gap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

import millstream as ms
from millstream.sources import kafka_group, kafka_pieces, kafka_reader, kafka_scout, kafka_tracks
from tests.services.kafka import Broker
from tests.sources.kafka_reading import TIMEOUT, context, open_engine, produce
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def up_again(kafka: Broker) -> Iterator[None]:
    yield
    if kafka.pid is None:
        kafka.start()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_reader, "ANSWER_TIMEOUT", 1.0)
    monkeypatch.setattr(kafka_scout, "SILENCE", 2.0)
    monkeypatch.setattr(kafka_pieces, "READ_TIMEOUT", 2.0)


@pytest.mark.usefixtures("soon")
def test_a_broker_that_is_gone_is_said_and_read_on_when_it_is_back(kafka: Broker) -> None:
    topic = kafka.create_topic(2)
    source = ms.kafka(topic, int, servers=kafka.servers)
    produce(kafka, topic, range(10), 0)
    with open_engine(source) as engine:
        engine.until(lambda: engine.count() == 10)
        kafka.kill()
        begun = time.monotonic()
        with pytest.raises(ms.Unreachable, match=rf"no answer from {kafka.servers} within 1 s"):
            engine.until(lambda: False)
        assert engine.reader.trouble is not None
        assert 1.5 < time.monotonic() - begun < 30
        begun = time.monotonic()
    assert time.monotonic() - begun < 10  # closing did not wait for it
    with pytest.raises(ms.Unreachable, match="no answer"):
        source.open(context(positions=engine.positions))
    kafka.start()
    produce(kafka, topic, range(10, 20), 0)
    with open_engine(source, positions=engine.positions) as again:
        again.until(lambda: again.count() == 10)
        assert again.offsets() == {f"{topic}/0": list(range(10, 20))}
        assert again.values() == list(range(10, 20))


def test_a_short_absence_is_not_even_noticed(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_scout, "SILENCE", TIMEOUT)
    topic = kafka.create_topic(1)
    source = ms.kafka(topic, int, servers=kafka.servers)
    produce(kafka, topic, range(10))
    with open_engine(source) as engine:
        engine.until(lambda: engine.count() == 10)
        first = kafka.pid
        kafka.kill()
        for _ in range(20):
            assert not engine.poll()
        kafka.start()
        assert kafka.pid != first
        produce(kafka, topic, range(10, 20))
        engine.until(lambda: engine.count() == 20)
        assert engine.offsets() == {f"{topic}/0": list(range(20))}
        wait_until(lambda: engine.poll() or engine.reader.trouble is None, TIMEOUT)


@pytest.mark.usefixtures("soon")
def test_a_lane_that_loses_the_broker_reads_the_piece_again(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tracks, "PIECES_ABOVE", 0)
    monkeypatch.setattr(kafka_tracks, "TAIL_UPTO", -1)
    # So little is fetched ahead that the rest of the piece is still with the broker.
    monkeypatch.setattr(kafka_pieces, "TUNED", {**kafka_pieces.TUNED, "fetch.message.max.bytes": 1000, "queued.min.messages": 1})
    topic = kafka.create_topic(1)
    source = ms.kafka(topic, str, servers=kafka.servers)
    for n in range(20):
        produce(kafka, topic, [f"{n:03d} {'x' * 900}"] * 10)
    with open_engine(source) as engine:
        given: list[ms.Batch | ms.Piece] = []
        wait_until(lambda: bool(given.extend(engine.reader.poll(10, 0.1)) or any(isinstance(each, ms.Piece) for each in given)), TIMEOUT)
        (piece,) = [each for each in given if isinstance(each, ms.Piece)]
        reading = engine.lane.read(piece, 10)
        first = next(reading)
        kafka.kill()
        begun = time.monotonic()
        with pytest.raises(ms.Unreachable, match="no answer"):
            list(reading)
        assert time.monotonic() - begun < 30
        kafka.start()
        whole = list(engine.lane.read(piece, 10))
    assert whole[0] == first
    assert [offset for batch in whole for offset in batch.numbers] == list(range(200))


def test_nothing_waits_for_a_broker_that_is_gone_to_close(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though offsets of the group are on their way."""
    monkeypatch.setattr(kafka_group, "COMMIT_EVERY", 0.0)
    topic = kafka.create_topic(1)
    source = ms.kafka(topic, int, servers=kafka.servers)
    produce(kafka, topic, range(10))
    with open_engine(source) as engine:
        engine.until(lambda: engine.count() == 10)
        kafka.kill()
        engine.reader.confirm({f"{topic}/0": 5})
        engine.poll(0.0)
        engine.reader.confirm({f"{topic}/0": 10})
        for each in (engine.reader, engine.lane):
            begun = time.monotonic()
            each.close()
            assert time.monotonic() - begun < 10


def test_a_group_that_cannot_be_written_is_said_once_and_no_more(kafka: Broker, caplog: pytest.LogCaptureFixture) -> None:
    from confluent_kafka import Consumer

    topic = kafka.create_topic(1)
    produce(kafka, topic, range(10))
    settings = {"bootstrap.servers": kafka.servers, "group.id": f"taken {topic}", "log_level": 0}
    with closing(Consumer(settings)) as other:  # a group with a member takes no offsets of others
        other.subscribe([topic])
        wait_until(lambda: other.poll(0.1) is not None or bool(other.assignment()), TIMEOUT)
        with open_engine(ms.kafka(topic, int, servers=kafka.servers, group=f"taken {topic}")) as engine:
            engine.until(lambda: bool(caplog.records))
            engine.until(lambda: engine.count() == 10)
            for _ in range(30):
                engine.reader.confirm(engine.positions)
                engine.poll()
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith(f"group 'taken {topic}' does not show how far the run is: ")
