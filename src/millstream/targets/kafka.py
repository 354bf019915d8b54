"""A Kafka topic as a target."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream import arguments
from millstream.clients import kafka_options
from millstream.clients.kafka_options import KafkaOptions, OptionValue
from millstream.errors import LogError, TopologyError
from millstream.target import DeliveryContext, Sink, Target

if TYPE_CHECKING:
    from millstream.targets.kafka_cluster import Cluster

CHECK_TIMEOUT, ANSWER_TIMEOUT = 10.0, 30.0  # seconds that a broker may take, before anything runs and later
MISSING = 'to_kafka needs the package confluent-kafka; install it: pip install "millstream[kafka]"'

# What the promise of the target rests on, with what to do instead.
OWNED = {
    "transactional.id": "it is made of the identity of the delivery, and keeps older runs out",
    "group.id": "it is made of the identity of the delivery, and says how far that is",
    "enable.idempotence": "it is always on, and keeps the order of a key",
    "acks": "every replica in sync must have a record",
    "request.required.acks": "every replica in sync must have a record",
    "partitioner": "it is murmur2, the one of Java clients: a key is in the same partition whoever writes it",
    "isolation.level": "the target reads nothing but its own position",
    "enable.auto.commit": "the position is committed with the records",
    "delivery.report.only.error": "only what failed is reported",
    "on_delivery": "only what failed is reported",
}


@dataclass(frozen=True)
class KafkaTarget(Target):
    """Exactly once for those who read committed records only. `to_kafka` makes one."""

    transactional = True
    topic: str
    servers: str
    options: KafkaOptions
    create_partitions: int | None

    def describe(self) -> str:
        return f"Kafka topic {self.topic!r} at {self.servers}"

    def check(self, context: DeliveryContext) -> None:
        cluster = self._cluster(CHECK_TIMEOUT)
        cluster.producer(lambda error, message: None)  # for options that only a producer looks at
        with cluster.checking(f"delivery {context.delivery!r}"):
            found = cluster.partitions()
        if not found and self.create_partitions is None:
            raise TopologyError(f"delivery {context.delivery!r}: {self._missing()}")

    def open(self, context: DeliveryContext) -> Sink:
        from millstream.targets.kafka_sink import TransactionalKafkaSink

        return TransactionalKafkaSink(self._with_topic(), context)

    def _with_topic(self) -> Cluster:
        cluster = self._cluster(ANSWER_TIMEOUT)
        if not cluster.partitions():
            if self.create_partitions is None:
                raise LogError(self._missing())
            cluster.create_topic(self.create_partitions)
        return cluster

    def _cluster(self, timeout: float) -> Cluster:
        from millstream.targets.kafka_cluster import Cluster

        return Cluster(self.topic, self.servers, self.options.revealed(), self.options.secrets(), timeout)

    def _missing(self) -> str:
        return (
            f"topic {self.topic!r} does not exist at {self.servers}; create it: kafka-topics.sh --bootstrap-server "
            f"{self.servers} --create --topic {self.topic} --partitions 6, or say to_kafka(..., create_partitions=6)"
        )


@dataclass(frozen=True)
class RepeatingKafkaTarget(KafkaTarget):
    """At least once: what is in a step that is repeated is there again, under the ids that it had."""

    transactional = False

    def open(self, context: DeliveryContext) -> Sink:
        from millstream.targets.kafka_sink import KafkaSink

        return KafkaSink(self._with_topic(), context)


def to_kafka(
    topic: str,
    *,
    servers: str | Sequence[str],
    transactions: bool = True,
    create_partitions: int | None = None,
    options: Mapping[str, OptionValue] | None = None,
) -> Target:
    """A Kafka topic. Exactly once for readers with `isolation.level=read_committed`: each step is a transaction that says which it is.

    The key of a record is its key, the value is JSON; None, or a `ms.Change` that leaves no row, deletes its key. The headers
    `millstream-id` and `millstream-timestamp` hold its id and its time in microseconds. With `transactions=False`: at least once.
    With `create_partitions` a topic that does not exist is created. `options` are those of librdkafka; a secret among them is
    given by `ms.secret`.

    ms.to_kafka("orders", servers="kafka-1:9092,kafka-2:9092", options={"sasl.password": ms.secret(env="KAFKA_PASSWORD")})
    """
    try:
        importlib.import_module("confluent_kafka")
    except ImportError:
        raise TopologyError(MISSING) from None
    call = "to_kafka"
    kind = KafkaTarget if arguments.flag(call, "transactions", transactions) else RepeatingKafkaTarget
    return kind(
        kafka_options.topic(call, topic),
        kafka_options.servers(call, servers),
        kafka_options.options(call, {} if options is None else options, OWNED, '"linger.ms": 20'),
        None if create_partitions is None else arguments.number(call, "create_partitions", create_partitions, least=1, most=100_000),
    )
