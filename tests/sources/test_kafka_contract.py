"""Kafka topics against the contract that holds for every source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import millstream as ms
from millstream.sources import kafka_opening, kafka_pieces, kafka_reader, kafka_scout
from millstream.testing import SourceContract
from tests.services.kafka import Broker
from tests.sources.kafka_reading import produce


class TestKafka(SourceContract):
    partitions = 3
    tells_lag = True
    backlog = 24_000
    max_bytes = 20_000

    @pytest.fixture(autouse=True)
    def at(self, kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for module, name in (
            (kafka_opening, "CHECK_TIMEOUT"),
            (kafka_reader, "ANSWER_TIMEOUT"),
            (kafka_pieces, "READ_TIMEOUT"),
            (kafka_scout, "SILENCE"),
        ):
            monkeypatch.setattr(module, name, 1.0)
        self.kafka, self.topic = kafka, kafka.create_topic(self.partitions)
        yield
        if kafka.pid is None:
            kafka.start()

    def make(self) -> ms.Source[Any]:
        return ms.kafka(self.topic, self.value_type, servers=self.kafka.servers, bounded=self.bounded)

    def add(self, values: Sequence[Any], partition: int) -> None:
        produce(self.kafka, self.topic, values, partition)

    def add_bad(self, partition: int) -> None:
        produce(self.kafka, self.topic, [b"not json"], partition)

    def cut_off(self) -> None:
        self.kafka.kill()

    def reconnect(self) -> None:
        self.kafka.start()


class TestBoundedKafka(TestKafka):
    bounded = True
