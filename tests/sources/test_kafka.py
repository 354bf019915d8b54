"""Kafka topics as a source: every committed record once, by its offset, whichever way it is read."""

from __future__ import annotations

import random
import re
import uuid
from contextlib import closing
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import millstream as ms
from millstream.sources import kafka_survey, kafka_tracks
from tests.services.kafka import Broker
from tests.sources.kafka_reading import TIMEOUT, open_engine, produce, producing, read_all, transact, transactions
from tests.waiting import wait_until


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """New topics and partitions are looked for often."""
    monkeypatch.setattr(kafka_survey, "DESCRIBE_EVERY", 0.1)


@pytest.fixture
def by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is read in pieces, and these are small."""
    monkeypatch.setattr(kafka_tracks, "PIECES_ABOVE", 0)
    monkeypatch.setattr(kafka_tracks, "TAIL_UPTO", -1)


def admin(kafka: Broker) -> AdminClient:
    return kafka._admin


def kafka_source(kafka: Broker, topic: Any, value: Any = int, **given: Any) -> ms.Source[Any]:
    return ms.kafka(topic, value, servers=kafka.servers, **given)


def test_records_come_with_their_offsets_and_the_positions_after_them(kafka: Broker) -> None:
    topic = kafka.create_topic(2)
    produce(kafka, topic, range(3), 0)
    produce(kafka, topic, range(10, 12), 1)
    with open_engine(kafka_source(kafka, topic)) as engine:
        assert engine.reader.lag() == {f"{topic}/0": 3, f"{topic}/1": 2}  # before the first poll
        engine.until(lambda: engine.count() == 5)
        assert engine.reader.lag() == {}
        assert (engine.values(f"{topic}/0"), engine.values(f"{topic}/1")) == ([0, 1, 2], [10, 11])
        assert engine.offsets() == {f"{topic}/0": [0, 1, 2], f"{topic}/1": [0, 1]}
        assert {(batch.origin, batch.major, batch.partition) for batch in engine.batches} == {
            (topic, 0, f"{topic}/0"),
            (topic, 1, f"{topic}/1"),
        }
        produce(kafka, topic, [3], 0)
        engine.until(lambda: engine.count() == 6)
        assert set(engine.positions) == {f"{topic}#id", *(f"{topic}/{n}{more}" for n in (0, 1) for more in ("", "#end"))}
        assert (engine.positions[f"{topic}/0"], engine.positions[f"{topic}/1"]) == (4, 2)
        assert not engine.pieces


def test_a_backlog_is_given_in_pieces_and_the_end_of_it_by_the_driver(kafka: Broker) -> None:
    topic = kafka.create_topic(3)
    for partition in range(3):
        produce(kafka, topic, range(20_000), partition)
    with open_engine(kafka_source(kafka, topic), max_bytes=4 << 10) as engine:
        engine.until(lambda: engine.count() == 60_000)
        assert len(engine.pieces) > 10
        assert [len(engine.records[f"{topic}/{n}"]) for n in range(3)] == [20_000] * 3
        in_turn = [piece.partition for piece in engine.pieces[:6]]
        assert sorted(in_turn) == sorted(2 * [f"{topic}/{n}" for n in range(3)])
        assert len({piece.lane % 3 for piece in engine.pieces}) == 3
        wait_until(lambda: not engine.poll() and not engine.by_pieces, TIMEOUT)
        before = len(engine.pieces)
        produce(kafka, topic, [1], 2)
        engine.until(lambda: engine.count() == 60_001)
        assert len(engine.pieces) == before
        assert engine.offsets() == {f"{topic}/{n}": list(range(20_000 + (n == 2))) for n in range(3)}


def test_no_more_pieces_are_given_than_may_be_outstanding(kafka: Broker, by_pieces: None) -> None:
    topic = kafka.create_topic(1)
    produce(kafka, topic, range(5_000))
    with open_engine(kafka_source(kafka, topic), max_bytes=64) as engine:
        given: list[Any] = []
        wait_until(lambda: bool(given.extend(engine.reader.poll(100, 0.1)) or len(given) > 1), TIMEOUT)
        for _ in range(5):
            given += engine.reader.poll(100, 0.0)
        assert sum(isinstance(each, ms.Piece) for each in given) == kafka_tracks.MAX_GIVEN
        pieces = [each for each in given if isinstance(each, ms.Piece)]
        for batch in engine.lane.read(pieces[0], 10_000):
            engine.take(batch)
        engine.reader.confirm(engine.positions)
        assert len(engine.reader.poll(100, 0.0)) == 1


@pytest.mark.usefixtures("by_pieces")
def test_a_piece_that_is_read_again_is_the_same(kafka: Broker) -> None:
    topic = kafka.create_topic(1)
    produce(kafka, topic, range(500))
    source = kafka_source(kafka, topic)
    with open_engine(source, max_bytes=200) as engine:
        engine.until(lambda: engine.count() == 500)
        assert len(engine.pieces) > 3
        for piece in [*engine.pieces[::-1], engine.pieces[0], engine.pieces[0]]:
            (once, again) = ([*engine.lane.read(piece, 7)], [*engine.lane.read(piece, 7)])
            assert once == again
            assert all(len(batch.values) <= 7 for batch in once)
        reading = engine.lane.read(engine.pieces[1], 3)
        half = next(reading)
        reading.close()
        assert next(engine.lane.read(engine.pieces[1], 3)) == half


@pytest.mark.parametrize("seed", range(3))
def test_from_any_position_exactly_the_rest_is_read(kafka: Broker, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions that were aborted, control records, sizes of all kinds: by the driver, by lanes, and by both in turns."""
    chance, topic, partitions = random.Random(seed), kafka.create_topic(3), range(3)
    sent: dict[str, list[int]] = {f"{topic}/{n}": [] for n in partitions}
    with transactions(kafka) as producer:
        for number in range(40):
            partition, values = chance.choice(partitions), range(number * 100, number * 100 + chance.randrange(1, 60))
            commit = chance.random() < 0.7
            transact(producer, topic, values, commit=commit, partition=partition)
            if commit:
                sent[f"{topic}/{partition}"] += values
    source = kafka_source(kafka, topic)
    whole = read_all(source)
    assert {name: whole.values(name) for name in sent} == sent
    ends = dict(whole.positions.items())
    for _ in range(4):
        positions: dict[str, ms.Position] = {}
        got: dict[str, list[int]] = {name: [] for name in sent}
        for _ in range(6):  # openings
            piecewise = chance.random() < 0.5
            monkeypatch.setattr(kafka_tracks, "PIECES_ABOVE", 0 if piecewise else chance.choice([10, 10_000]))
            monkeypatch.setattr(kafka_tracks, "TAIL_UPTO", -1 if piecewise else chance.choice([5, 100]))
            with open_engine(
                source, positions=positions, at_most=chance.choice([1, 7, 1000]), max_bytes=chance.choice([1, 100, 5000])
            ) as engine:
                engine.reader.finish()
                for _ in range(chance.randrange(1, 12)):
                    engine.poll()
            for name in sent:
                got[name] += engine.values(name)
            positions = engine.positions
        with open_engine(source, positions=positions) as engine:
            engine.reader.finish()
            engine.until_ended()
        for name in sent:
            got[name] += engine.values(name)
        assert got == sent
        assert engine.positions == ends


# Records that nobody sees.


@pytest.mark.parametrize("way", ["driver", "lanes"])
def test_what_a_transaction_left_behind_is_passed(kafka: Broker, way: str, request: pytest.FixtureRequest) -> None:
    if way == "lanes":
        request.getfixturevalue("by_pieces")
    topic = kafka.create_topic(1)
    with transactions(kafka) as producer:
        transact(producer, topic, [1, 2], commit=True)
        transact(producer, topic, [3, 4], commit=False)
        with open_engine(kafka_source(kafka, topic)) as engine:
            engine.until(lambda: engine.positions.get(f"{topic}/0") == 6)  # two, a marker, two and a marker
            assert engine.values() == [1, 2]
            assert engine.reader.lag() == {}
            assert engine.batches[-1].values == [] or way == "lanes"
            transact(producer, topic, [5], commit=False)
            engine.until(lambda: engine.positions[f"{topic}/0"] == 8)
            assert (engine.values(), engine.reader.lag()) == ([1, 2], {})
            transact(producer, topic, [6], commit=True)
            engine.until(lambda: engine.positions[f"{topic}/0"] == 10)
            assert (engine.values(), engine.offsets()) == ([1, 2, 6], {f"{topic}/0": [0, 1, 8]})


def test_an_open_transaction_is_not_waited_for_and_not_passed(kafka: Broker) -> None:
    topic = kafka.create_topic(1)
    with transactions(kafka) as producer, open_engine(kafka_source(kafka, topic)) as engine:
        produce(kafka, topic, [1])
        producer.begin_transaction()
        producer.produce(topic, b"2", partition=0)
        producer.flush(TIMEOUT)
        produce(kafka, topic, [3])
        assert read_all(kafka_source(kafka, topic, bounded=True)).values() == [1]
        engine.until(lambda: engine.count() == 1)
        assert engine.reader.lag() == {}
        producer.commit_transaction(TIMEOUT)
        engine.until(lambda: engine.count() == 3)
        assert engine.values() == [1, 2, 3]


@pytest.mark.parametrize("way", ["driver", "lanes"])
def test_offsets_that_compaction_has_removed_are_passed(kafka: Broker, way: str, request: pytest.FixtureRequest) -> None:
    if way == "lanes":
        request.getfixturevalue("by_pieces")
    topic = kafka.create_topic(
        1, cleanup_policy="compact", segment_ms=50, min_cleanable_dirty_ratio=0.001, min_compaction_lag_ms=0, delete_retention_ms=10**9
    )
    with producing(kafka) as producer:
        for value in range(30):
            producer.produce(topic, b"%d" % value, key=b"one", partition=0)
            producer.flush(TIMEOUT)
    total = 30

    def compacted() -> bool:
        nonlocal total
        produce(kafka, topic, [total], key=b"other")  # rolls the segment
        total += 1
        return read_all(kafka_source(kafka, topic)).count() < 20

    wait_until(compacted, 120.0)
    engine = read_all(kafka_source(kafka, topic), at_most=3, max_bytes=10)
    assert engine.positions[f"{topic}/0"] == total
    assert engine.values() == [int(offset) for offset in engine.offsets()[f"{topic}/0"]]
    assert engine.values()[-1] == total - 1


# Topics and partitions that come later.


@pytest.mark.usefixtures("soon")
def test_new_partitions_are_read_from_their_beginning(kafka: Broker) -> None:
    topic = kafka.create_topic(1)
    source = kafka_source(kafka, topic, latest=True)
    with open_engine(source) as engine:
        engine.until(lambda: f"{topic}/0" in engine.positions)
        admin(kafka).create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT)
        wait_until(lambda: len(admin(kafka).list_topics(topic, TIMEOUT).topics[topic].partitions) == 2, TIMEOUT)
        produce(kafka, topic, [1, 2], 1)
        engine.until(lambda: engine.count() == 2)
        positions = engine.positions
    admin(kafka).create_partitions([NewPartitions(topic, 3)])[topic].result(TIMEOUT)  # while it is down
    wait_until(lambda: len(admin(kafka).list_topics(topic, TIMEOUT).topics[topic].partitions) == 3, TIMEOUT)
    produce(kafka, topic, [3], 2)
    assert read_all(source, positions=positions).values() == [3]


@pytest.mark.usefixtures("soon")
def test_a_pattern_finds_topics_that_come_later(kafka: Broker) -> None:
    prefix = uuid.uuid4().hex[:8]

    def make(name: str) -> str:
        admin(kafka).create_topics([NewTopic(name, 1)])[name].result(TIMEOUT)
        wait_until(lambda: name in kafka.topics(), TIMEOUT)
        return name

    source = kafka_source(kafka, re.compile(rf"{prefix}-\d+"))
    source.check(ms.SourceContext("orders", int, {}))  # nothing fits yet
    with open_engine(source) as engine:
        engine.until(lambda: not engine.poll())
        first, other = make(f"{prefix}-1"), make(f"{prefix}-1-other")
        produce(kafka, first, [1])
        produce(kafka, other, [2])
        engine.until(lambda: engine.count() == 1)
        second = make(f"{prefix}-2")
        produce(kafka, second, [3])
        engine.until(lambda: engine.count() == 2)
        assert engine.offsets() == {f"{first}/0": [0], f"{second}/0": [0]}
        admin(kafka).delete_topics([first])[first].result(TIMEOUT)  # all of it was read
        positions = dict(engine.positions)
        engine.until(lambda: f"{first}/0" not in {track.partition.name for track in engine.reader._tracks})  # type: ignore[attr-defined]
        produce(kafka, second, [4])
        engine.until(lambda: engine.count() == 3)
    assert read_all(source, positions=positions).values() == [4]


def test_several_topics_are_one_source(kafka: Broker) -> None:
    topics = [kafka.create_topic(1), kafka.create_topic(2)]
    for number, topic in enumerate(topics):
        produce(kafka, topic, [number])
    engine = read_all(kafka_source(kafka, topics))
    assert {name: engine.values(name) for name in engine.records} == {f"{topics[0]}/0": [0], f"{topics[1]}/0": [1]}


# Where it begins and where it ends.


def test_it_begins_with_the_oldest_record_or_since_a_time_or_with_the_next_one(kafka: Broker) -> None:
    topic, at = kafka.create_topic(2), 1_700_000_000_000
    for number in range(5):
        produce(kafka, topic, [number], 0, timestamp=at + 1000 * number)
    since = ms.Timestamp((at + 1500) * 1000)
    assert read_all(kafka_source(kafka, topic)).values() == [0, 1, 2, 3, 4]
    assert read_all(kafka_source(kafka, topic, since=since)).values() == [2, 3, 4]
    assert read_all(kafka_source(kafka, topic, since=ms.to_datetime(since))).values() == [2, 3, 4]
    assert read_all(kafka_source(kafka, topic, since=ms.Timestamp((at + 2000) * 1000))).values() == [2, 3, 4]
    later = read_all(kafka_source(kafka, topic, since=ms.Timestamp((at + 10**6) * 1000)))
    assert (later.values(), later.positions[f"{topic}/0"], later.positions[f"{topic}/1"]) == ([], 5, 0)
    assert read_all(kafka_source(kafka, topic, latest=True)).values() == []


def test_where_the_latest_was_is_said_at_once(kafka: Broker) -> None:
    """So that a restart before the first record does not move it."""
    topic = kafka.create_topic(1)
    produce(kafka, topic, [1, 2])
    source = kafka_source(kafka, topic, latest=True)
    with open_engine(source) as engine:
        assert engine.poll(0.0)
        assert (engine.positions[f"{topic}/0"], engine.values()) == (2, [])
    produce(kafka, topic, [3])
    assert read_all(source, positions=engine.positions).values() == [3]


@pytest.mark.parametrize("way", ["driver", "lanes"])
def test_a_bounded_source_ends_where_topics_ended_when_it_was_opened(kafka: Broker, way: str, request: pytest.FixtureRequest) -> None:
    if way == "lanes":
        request.getfixturevalue("by_pieces")
    topic = kafka.create_topic(2)
    produce(kafka, topic, range(10), 0)
    source = kafka_source(kafka, topic, bounded=True)
    with open_engine(source) as engine:
        produce(kafka, topic, range(10, 20), 0)
        produce(kafka, topic, range(10, 20), 1)
        engine.until_ended()
        assert (engine.values(), engine.reader.lag(), engine.reader.is_complete()) == (list(range(10)), {}, True)
        assert (engine.positions[f"{topic}/0"], engine.positions[f"{topic}/1"]) == (10, 0)
    ended = ms.SourceContext("orders", int, engine.positions, finished=True)
    assert source.left_over(ended) == (
        "about 20 records that came since are not read; inject them under another name, or leave out bounded=True in a new folder"
    )
    with open_engine(source, positions=engine.positions, finished=True) as engine:
        engine.until_ended()
        assert engine.count() == 0


def test_finish_wants_no_more_than_there_is(kafka: Broker) -> None:
    topic = kafka.create_topic(1)
    with open_engine(kafka_source(kafka, topic)) as engine:
        engine.until(lambda: not engine.poll())
        assert not engine.reader.ended()
        produce(kafka, topic, range(3))
        engine.reader.finish()
        engine.until_ended()
        assert engine.values() == [0, 1, 2]
        produce(kafka, topic, [3])
        assert not engine.poll(0.3)
        assert engine.values() == [0, 1, 2]


# What people see of it.


def test_the_group_shows_how_far_commits_are(kafka: Broker) -> None:
    topic = kafka.create_topic(2)
    produce(kafka, topic, range(5), 0)
    for group in (None, f"group of {topic}"):
        with open_engine(kafka_source(kafka, topic, group=group), injector=f"orders {topic}") as engine:
            engine.until(lambda: engine.count() == 5)

            def committed(group: str = group or f"millstream-orders {topic}") -> list[int]:
                with closing(Consumer({"bootstrap.servers": kafka.servers, "group.id": group, "log_level": 0})) as consumer:
                    try:
                        found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], TIMEOUT)
                    except KafkaException:  # the group moves
                        return []
                return [each.offset for each in found]

            engine.until(lambda: committed() == [5, 0])


def test_a_position_is_that_after_a_record(kafka: Broker) -> None:
    topic, delivered = kafka.create_topic(1), list[Any]()
    with producing(kafka) as producer:
        producer.produce(topic, b"1", on_delivery=lambda error, message: delivered.append(message))
    source = kafka_source(kafka, topic)
    (message,) = delivered
    assert source.position(message) == source.position((topic, 0, 0)) == {f"{topic}/0": 1}
    assert [source.position(of) for of in (("other", 0, 0), (topic, 0), (topic, 0, -1), "x", None, {"offset": 1})] == [None] * 6
    engine = read_all(source)
    assert source.is_past(engine.positions[f"{topic}/0"], 1)


def test_messages_decode_as_json() -> None:
    message = ms.Message({"a": 1}, "k", ms.Timestamp(5), "orders", 1, 2, (("h", b"\x00\xff"), ("h", None)))
    assert msgspec.json.decode(msgspec.json.encode(message), type=ms.Message[dict[str, int]]) == message
    assert (message.header("h"), message.header("i")) == (None, None)
