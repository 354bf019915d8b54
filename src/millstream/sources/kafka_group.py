"""The consumer group by which people see how far a run is."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.sources.kafka_survey import KafkaPartition

log = logging.getLogger("millstream")

COMMIT_EVERY = 1.0  # seconds
LAST_TIMEOUT = 1.0  # seconds that the last commit may take
PASSING = {
    KafkaError._WAIT_COORD,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


class ShownGroup:
    """The offsets that ordinary tools of Kafka show: how far commits are. Nothing reads them, so nothing waits for them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._confirmed: dict[KafkaPartition, int] = {}
        self._under_way = self._has_failed = False
        self._at = 0.0

    def confirm(self, positions: Mapping[KafkaPartition, int]) -> None:
        self._confirmed.update(positions)

    def commit(self, consumer: Consumer) -> None:
        """What is confirmed since, now and then. Does not wait; the answer comes with a poll."""
        now = time.monotonic()
        if not self._confirmed or self._under_way or now - self._at < COMMIT_EVERY:
            return
        offsets = [partition.at(upto) for partition, upto in self._confirmed.items()]
        self._confirmed, self._under_way, self._at = {}, True, now
        try:
            consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self.answered(error.args[0], offsets)

    def commit_last(self, consumer: Consumer) -> None:
        """All of it, if the broker answers soon. Whatever else the consumer has is passed over."""
        consumer.incremental_unassign(consumer.assignment())
        deadline = time.monotonic() + LAST_TIMEOUT
        while (self._confirmed or self._under_way) and not self._has_failed and time.monotonic() < deadline:
            self._at = 0.0
            self.commit(consumer)
            consumer.poll(0.01)

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Called by the consumer while it is polled."""
        self._under_way = False
        failed = error or next((each.error for each in partitions if each.error is not None), None)
        if failed is None:
            return
        if failed.code() in PASSING:
            for each in partitions:
                self._confirmed.setdefault(KafkaPartition(each.topic, each.partition), each.offset)
        else:
            self.failed(failed.str())

    def failed(self, why: str) -> None:
        """Said once: a run goes on without it."""
        if not self._has_failed:
            self._has_failed = True
            log.warning("group %r does not show how far the run is: %s; positions are in the commits of the run", self.name, why)
