"""A Kafka cluster as a target sees it: questions with bounded waits, and what its errors mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from millstream.clients.kafka_clients import KafkaClients
from millstream.errors import LogError, Unreachable
from millstream.target import Step

PAUSE = 0.02  # seconds between two looks at what changes by itself
# Milliseconds, at first; librdkafka doubles it from try to try. A step that follows at once finds the transaction before it not quite
# ended, and is tried again: of ten records, with librdkafka's own 100 it took 109 ms, with 10 from 19 to 31, and without transactions 1.
RETRY_BACKOFF = 1

# The coordinator of a group, or an offset in it, that is not there yet; or a transaction whose end has not reached it.
PASSING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "allow this user to write to the topic, and to read it",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "allow this user to read groups that begin with millstream-",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "allow this user to write with transactional ids that begin with millstream-",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "allow this user to write idempotently to the cluster, or to create the topic",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "the option transaction.timeout.ms must not be above transaction.max.timeout.ms of the brokers",
    KafkaError.POLICY_VIOLATION: "change what the cluster demands of topics, or create the topic by hand",
    KafkaError.INVALID_REPLICATION_FACTOR: "create the topic by hand",
    KafkaError.INVALID_PARTITIONS: "give another create_partitions=",
}


class KafkaPosition(msgspec.Struct, frozen=True):
    """What is kept beside the offset of a group, which is the last epoch: the rest of the step, and who was there last."""

    fence: int
    number: int | None = None  # None before the first step
    after: int = 0

    def step(self, upto: int) -> Step | None:
        return None if self.number is None else Step(self.number, self.after, upto)


class Cluster(KafkaClients):
    """As it is for one opening of a target: with the secrets as they were then."""

    def __init__(self, topic: str, servers: str, settings: dict[str, Any], secrets: Sequence[str], timeout: float) -> None:
        """`timeout` is how many seconds each answer may take, with all that librdkafka tries again by itself."""
        super().__init__("to_kafka", servers, {"retry.backoff.ms": RETRY_BACKOFF, **settings}, secrets, timeout)
        self.topic, self.purpose, self.refused = topic, f"what is to be delivered to topic {topic!r}", REFUSED

    def producer(self, on_failed: Callable[[KafkaError, Any], None], **settings: Any) -> Producer:
        """One that keeps the order of a key, and tells of each record that failed."""
        ours = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2", "delivery.report.only.error": True}
        return self.made(Producer, {**ours, "on_delivery": on_failed, **settings})

    def group(self, name: str) -> Any:
        """What a transaction needs to know of a group that nobody is a member of."""
        with closing(self.made(Consumer, {"group.id": name})) as consumer:
            return consumer.consumer_group_metadata()

    # Questions.

    def partitions(self) -> int:
        """Of the topic; 0 if it does not exist. Does not create it, whatever the brokers' settings are."""
        found = self.described(self.admin(), [self.topic]).get(self.topic)
        return 0 if found is None else len(found.partitions)

    def create_topic(self, partitions: int) -> None:
        """Returns when the brokers know of it. Another may have created it meanwhile."""
        admin = self.admin()
        try:
            asked = admin.create_topics([NewTopic(self.topic, partitions)], request_timeout=self.timeout)
            self.answer(admin, asked[self.topic])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self.failure(error.args[0]) from None
        deadline = time.monotonic() + self.timeout
        while not self.partitions():
            if time.monotonic() > deadline:
                raise Unreachable(f"topic {self.topic!r} was created, and brokers of {self.servers} do not know of it yet")
            time.sleep(PAUSE)

    def committed(self, group: str, *, stable: bool) -> tuple[KafkaPosition, Step | None] | None:
        """What the group says of the topic. With `stable`, once no transaction is under way that could change it."""
        # By a consumer: an admin client of librdkafka 2.16 ends the process when it is told that the coordinator is another one.
        level = "read_committed" if stable else "read_uncommitted"
        deadline = time.monotonic() + self.timeout
        with closing(self.made(Consumer, {"group.id": group, "isolation.level": level})) as consumer:
            while True:
                try:
                    (position,) = consumer.committed([TopicPartition(self.topic, 0)], self.timeout)
                    error = position.error
                except KafkaException as raised:
                    error = raised.args[0]
                consumer.poll(0)  # for what it met by itself
                if error is None:
                    break
                if stable and error.code() in (KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT) and time.monotonic() > deadline:
                    self.committed(group, stable=False)  # whether it answers at all
                    raise Unreachable(
                        f"{self.servers}: the last transaction of {group} has not ended for {self.timeout:g} s; if it does not, Kafka has "
                        f"lost its end, and kafka-transactions.sh finds and aborts it"
                    )
                if error.code() not in PASSING or time.monotonic() > deadline:
                    raise self.failure(error)
                time.sleep(PAUSE)
        if position.offset < 0:
            return None
        try:
            mark = msgspec.json.decode(position.metadata or "", type=KafkaPosition)
        except msgspec.MsgspecError:
            raise LogError(
                f"the offset of group {group} for topic {self.topic!r} was not committed by Millstream: let nobody else use this group, "
                f"and restore its offset or begin the delivery anew"
            ) from None
        return mark, mark.step(position.offset)
