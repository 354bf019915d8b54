"""Kafka topics through a whole run: a backlog by the lanes, then record by record, over a restart and a broker that is away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Message, Producer

import millstream as ms
from tests.services.kafka import Broker
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

TIMEOUT = 120.0  # seconds; a bound, never an expectation
BACKLOG = 30_000  # more than the driver reads by itself
PARTITIONS = 3
AT = 1_790_000_000_000_000


@dataclass(frozen=True)
class Step:
    walker: str
    number: int


class Steps(ms.Computation[int]):
    """Counts the steps of a walker, and whether they come in order."""

    last: ms.Output[tuple[int, int]]

    def process_record(self, record: ms.Record[Step]) -> None:
        if record.value.number != self.state:
            raise ValueError(f"step {record.value.number} of {self.key} comes after {self.state}")
        assert record.id.startswith("steps/"), record.id
        self.state += 1
        if self.state % 1000 == 0 or record.value.number >= BACKLOG // 10:
            self.last.produce((record.value.number, self.state), timestamp=record.timestamp)


class Walkers:
    """Ten of them; what one does stands in one partition, in order."""

    def __init__(self, broker: Broker) -> None:
        self.topic = broker.create_topic(PARTITIONS)
        self._producer = Producer({"bootstrap.servers": broker.servers, "partitioner": "murmur2", "log_level": 0})
        self._numbers = Counter[str]()
        self.delivered: Message | None = None

    def walk(self, steps: int) -> Message:
        """Returns the last one, as the broker has it."""

        def heard(error: object, message: Message) -> None:
            assert error is None
            self.delivered = message

        for n in range(steps):
            walker = f"w{n % 10}"
            value = msgspec.json.encode(Step(walker, self._numbers[walker]))
            self._numbers[walker] += 1
            last = n == steps - 1
            self._producer.produce(self.topic, value, walker, timestamp=AT // 1000 + self.total, on_delivery=heard if last else None)
            self._producer.poll(0)
        assert self._producer.flush(TIMEOUT) == 0
        assert self.delivered is not None
        return self.delivered

    @property
    def total(self) -> int:
        return self._numbers.total()


def step_of(message: Message) -> int:
    return msgspec.json.decode(message.value() or b"", type=Step).number


def topology_of(walkers: Walkers, broker: Broker, seen: ms.Target) -> ms.Topology:
    topology, steps = ms.Topology("walkers"), Steps()
    injected = topology.inject(
        "steps",
        ms.kafka(walkers.topic, Step, servers=broker.servers, group="walkers"),
        key="key",
        timestamp="timestamp",
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("count", steps).reads(injected)
    topology.deliver("last", steps.last, seen)
    return topology


def test_a_topic_is_read_once_and_in_order_over_a_restart(kafka: Broker, started: Callable[..., ms.Run], at: Path) -> None:
    walkers, seen = Walkers(kafka), ms.memory()
    walkers.walk(BACKLOG)
    run = started(topology_of(walkers, kafka, seen), lanes=2)
    wait_until(lambda: run.status().injectors["steps"].injected == BACKLOG, TIMEOUT)
    for _ in range(20):
        written = walkers.walk(1)
        assert run.wait_for("last", written, timeout=TIMEOUT)
        assert (step_of(written), step_of(written) + 1) in [record.value for record in seen.records], "it is there when the wait is over"
    kafka.kill()
    wait_until(lambda: any("injector 'steps'" in trouble for trouble in run.status().troubles), TIMEOUT)
    assert run.active, "a broker that is away ends nothing"
    kafka.start()
    written = walkers.walk(100)
    assert run.wait_for("last", (walkers.topic, written.partition(), written.offset()), of="steps", timeout=TIMEOUT)
    wait_until(lambda: not run.status().troubles, TIMEOUT)
    run.stop()
    walkers.walk(500)
    again = started(topology_of(walkers, kafka, ms.memory()), lanes=2)
    wait_until(lambda: again.status().injectors["steps"].injected == walkers.total, TIMEOUT)
    wait_until(lambda: again.status().computations["count"].tally.applied == walkers.total, TIMEOUT)
    assert again.status().computations["count"].tally.late == 0
    assert again.status().injectors["steps"].lag == {}
    again.stop()
    ids = {record.id for record in ms.read(at, "steps")}
    places = {f"steps/{walkers.topic}/{m.partition()}/{m.offset()}" for m in kafka.read(walkers.topic)}
    assert ids == places
