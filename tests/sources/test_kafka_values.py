"""What an injector sees of a Kafka record: its JSON, a message with all that is beside it, what a function makes of it, columns."""

from __future__ import annotations

import pickle
import re
import struct
from typing import Any

import cloudpickle
import msgspec
import pytest

import millstream as ms
from millstream.core.codec import value_decoder
from millstream.sources import kafka_tracks
from tests.services.kafka import Broker
from tests.sources.kafka_reading import Engine, produce, read_all

AT = 1_700_000_000_123  # milliseconds


class Order(msgspec.Struct, frozen=True):
    customer: str
    total: int


def made(kafka: Broker, topic: str, value: Any, **given: Any) -> ms.Source[Any]:
    return ms.kafka(topic, value, servers=kafka.servers, **given)


def decoded(engine: Engine, kind: Any) -> list[Any]:
    decode = value_decoder(kind)
    return [decode(value) for batch in engine.batches for value in batch.values]


def test_values_are_the_json_that_was_sent_and_null_where_there_is_none(kafka: Broker) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, [b' {"customer": "a", "total": 1} ', None, b"not json"])
    engine = read_all(made(kafka, topic, Order))
    (batch,) = [batch for batch in engine.batches if batch.values]
    assert (batch.values, batch.columns, batch.reasons) == ([b' {"customer": "a", "total": 1} ', b"null", b"not json"], None, {})


def test_a_message_has_what_is_beside_the_value(kafka: Broker) -> None:
    topic = kafka.create_topic()
    headers = [("trace", b"\x00\xff"), ("trace", None), ("source", b"web")]
    produce(kafka, topic, [{"customer": "a", "total": 1}], key="clé", headers=headers, timestamp=AT)
    produce(kafka, topic, [{"customer": "b", "total": 2}], timestamp=AT)
    produce(kafka, topic, [None], key="a", timestamp=AT)
    found = decoded(read_all(made(kafka, topic, ms.Message[Order | None])), ms.Message[Order | None])
    at = ms.Timestamp(AT * 1000)
    assert found == [
        ms.Message(Order("a", 1), "clé", at, topic, 0, 0, tuple(headers)),
        ms.Message(Order("b", 2), None, at, topic, 0, 1),
        ms.Message(None, "a", at, topic, 0, 2),
    ]
    assert (found[0].header("source"), found[0].header("trace"), found[1].header("source")) == (b"web", None, None)


def test_a_message_whose_value_is_not_json_is_refused_and_not_mistaken(kafka: Broker) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, [b'1,"offset":7', b"", b'{"customer": "a", "total": 1}'])
    (batch,) = [batch for batch in read_all(made(kafka, topic, ms.Message[Any])).batches if batch.values]
    assert batch.reasons.keys() == {0, 1}
    assert "it cannot be decoded: JSON is malformed" in batch.reasons[0]
    assert batch.values[:2] == [b'1,"offset":7', b""]


def test_a_key_that_is_not_text_is_refused_where_it_is_asked_for(kafka: Broker) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, [1], key=b"\xff")
    produce(kafka, topic, [2], key=b"a")
    (plain,) = [batch for batch in read_all(made(kafka, topic, int)).batches if batch.values]
    assert (plain.values, plain.reasons) == ([b"1", b"2"], {})
    for value, columns in ((ms.Message[int], frozenset[str]()), (int, frozenset({"key"}))):
        (batch,) = [batch for batch in read_all(made(kafka, topic, value), value_type=value, columns=columns).batches if batch.values]
        assert batch.reasons == {0: r"its key is b'\xff', which is not UTF-8; a key is text"}
        assert batch.values[0] == b"1"


def test_columns_are_there_if_they_are_asked_for(kafka: Broker) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, [1], key="a", timestamp=AT)
    produce(kafka, topic, [2], timestamp=AT)
    source = made(kafka, topic, int)
    assert source.has_columns
    (batch,) = [batch for batch in read_all(source, columns=frozenset({"key", "timestamp"})).batches if batch.values]
    assert batch.columns == [{"key": "a", "timestamp": AT * 1000}, {"key": None, "timestamp": AT * 1000}]
    every = frozenset({"key", "timestamp", "topic", "partition", "offset"})
    (batch,) = [batch for batch in read_all(source, columns=every).batches if batch.values]
    assert batch.columns is not None
    assert batch.columns[0] == {"key": "a", "timestamp": AT * 1000, "topic": topic, "partition": 0, "offset": 0}


def test_a_column_that_there_is_not_is_refused_before_anything_runs(kafka: Broker) -> None:
    source = made(kafka, kafka.create_topic(), int)
    with pytest.raises(ms.TopologyError, match="Kafka has no column 'customer'; it has key, offset, partition, timestamp, topic"):
        source.check(ms.SourceContext("orders", int, {}, columns=frozenset({"customer", "key"})))


def unpacked(raw: bytes) -> Order:
    (total,) = struct.unpack(">i", raw[:4])
    return Order(raw[4:].decode(), total)


@pytest.mark.parametrize("message", [False, True])
def test_a_function_decodes_what_is_not_json(kafka: Broker, message: bool) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, [struct.pack(">i", 5) + b"ann", b"\xff", None])
    kind: Any = ms.Message[Order | None] if message else Order | None
    engine = read_all(made(kafka, topic, ms.Message[Order | None] if message else Order, decode=unpacked), value_type=kind)
    (batch,) = [batch for batch in engine.batches if batch.values]
    assert batch.values[1] == b"\xff"
    assert list(batch.reasons) == [1]
    assert batch.reasons[1].startswith("decode raised error: unpack requires a buffer of 4 bytes")
    found = [value_decoder(kind)(batch.values[place]) for place in (0, 2)]
    assert [each.value if message else each for each in found] == [Order("ann", 5), None]


def test_what_a_function_makes_must_be_json(kafka: Broker) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, [1])
    (batch,) = [batch for batch in read_all(made(kafka, topic, int, decode=lambda raw: object())).batches if batch.values]
    assert batch.reasons[0].startswith("decode raised TypeError: ")


def test_a_source_travels_with_its_function() -> None:
    source = ms.kafka("t", Order, servers="b:1,a:1", decode=unpacked, options={"sasl.password": ms.secret(env="NOWHERE")})
    assert pickle.loads(cloudpickle.dumps(source)) == source
    with_pattern = ms.kafka(re.compile("a.*"), ms.Message[Order], servers="a:1")
    assert pickle.loads(pickle.dumps(with_pattern)) == with_pattern


@pytest.mark.parametrize("above", [0, 10_000])
def test_records_of_any_size_are_read(kafka: Broker, above: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though they are larger than what is fetched at once, and than a piece."""
    monkeypatch.setattr(kafka_tracks, "PIECES_ABOVE", above)
    monkeypatch.setattr(kafka_tracks, "BYTES_ABOVE", 1000)
    topic, sizes = kafka.create_topic(), [10, 900_000, 10, 700_000, 300_000, 10]
    for size in sizes:
        produce(kafka, topic, ["x" * size])
    engine = read_all(made(kafka, topic, str), max_bytes=100_000)
    assert [len(value) for value in engine.values()] == sizes
    assert bool(engine.pieces) == (above == 0)
