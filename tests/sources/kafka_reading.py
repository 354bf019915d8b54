"""What an engine does with a Kafka source, as far as tests of the source need it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import msgspec
from confluent_kafka import Producer

import millstream as ms
from millstream.sources.kafka_reader import KafkaReader
from tests.services.kafka import Broker

TIMEOUT = 60.0  # seconds; a bound, never an expectation


def context(**given: Any) -> ms.SourceContext:
    return ms.SourceContext(**{"injector": "orders", "value_type": int, "positions": {}, **given})


def produce(broker: Broker, topic: str, values: Iterable[Any], partition: int = 0, **more: Any) -> None:
    """As JSON, until the broker has them; bytes and None are sent as they are."""
    with producing(broker) as producer:
        for value in values:
            producer.produce(topic, as_sent(value), partition=partition, **more)


def as_sent(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else msgspec.json.encode(value)


@contextmanager
def producing(broker: Broker, **settings: Any) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 1, "log_level": 0, **settings})
    yield producer
    assert producer.flush(TIMEOUT) == 0


@contextmanager
def transactions(broker: Broker) -> Iterator[Producer]:
    with producing(broker, **{"transactional.id": uuid.uuid4().hex}) as producer:
        producer.init_transactions(TIMEOUT)
        yield producer


def transact(producer: Producer, topic: str, values: Iterable[Any], *, commit: bool, partition: int = 0) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, as_sent(value), partition=partition)
    producer.flush(TIMEOUT)
    if commit:
        producer.commit_transaction(TIMEOUT)
    else:
        producer.abort_transaction(TIMEOUT)


class Engine:
    """Takes what a reader gives, in order, and lets a lane read the pieces: so it knows every record and the positions after it."""

    def __init__(self, source: ms.Source[Any], *, at_most: int = 1000, **given: Any) -> None:
        self._context, self._at_most = context(**given), at_most
        self.positions: dict[str, ms.Position] = dict(self._context.positions)
        self.records: dict[str, list[tuple[int, bytes]]] = {}  # by partition: offsets and values
        self.batches: list[ms.Batch] = []
        self.pieces: list[ms.Piece] = []
        self.reader = source.open(self._context)
        self.lane = source.piece_reader(self._context)

    def poll(self, timeout: float = 0.05) -> bool:
        """Whether there was anything."""
        given = self.reader.poll(self._at_most, timeout)
        for each in given:
            if isinstance(each, ms.Piece):
                self.pieces.append(each)
            for batch in self.lane.read(each, self._at_most) if isinstance(each, ms.Piece) else [each]:
                self.take(batch)
        self.reader.confirm(self.positions)
        return bool(given)

    def take(self, batch: ms.Batch) -> None:
        assert len(batch.values) == len(batch.numbers)
        self.batches.append(batch)
        for name, upto in batch.positions.items():
            known = self.positions.get(name)
            assert not isinstance(upto, int) or known is None or upto >= int(known)
        self.positions.update(batch.positions)
        if batch.values:
            assert batch.partition == f"{batch.origin}/{batch.major}"
            self.records.setdefault(batch.partition, []).extend(zip(batch.numbers, batch.values, strict=True))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            self.poll()

    def until_ended(self) -> None:
        self.until(lambda: not self.poll() and self.reader.ended())

    def values(self, partition: str | None = None) -> list[Any]:
        found = self.records if partition is None else {partition: self.records.get(partition, [])}
        return [msgspec.json.decode(value) for name in sorted(found) for _, value in found[name]]

    def offsets(self) -> Mapping[str, list[int]]:
        return {name: [offset for offset, _ in found] for name, found in sorted(self.records.items())}

    def count(self) -> int:
        return sum(map(len, self.records.values()))

    def close(self) -> None:
        self.reader.close()
        self.lane.close()

    @property
    def by_pieces(self) -> bool:
        assert isinstance(self.reader, KafkaReader)
        return self.reader._tracks.by_pieces


def open_engine(source: ms.Source[Any], **given: Any) -> closing[Engine]:
    """As soon as that can be: a broker that has just started may not lead all its partitions yet."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return closing(Engine(source, **given))
        except ms.Unreachable:
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)


def read_all(source: ms.Source[Any], **given: Any) -> Engine:
    """All that there is now."""
    with open_engine(source, **given) as engine:
        engine.reader.finish()
        engine.until_ended()
    return engine
