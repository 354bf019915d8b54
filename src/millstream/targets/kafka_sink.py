"""A Kafka topic that is open: records in transactions with the step, or without."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from millstream.change import Change
from millstream.clients.kafka_clients import bounded
from millstream.core.codec import value_encoder
from millstream.errors import Fenced, MillstreamError, RecordError, Unreachable
from millstream.record import Record, in_order
from millstream.target import DeliveryContext, Sink, Step
from millstream.targets.kafka_cluster import Cluster, KafkaPosition

FLUSH_INTERVAL = 0.5  # seconds
ABORT_TIMEOUT = 5.0
OFFSET_TIMEOUT = 10.0  # of one small record; shorter than for others, since this is the call that may never return
GRACE = 1.0  # seconds after its timeout, until a call counts as one that never returns
EARLIEST = 1  # millisecond: Kafka knows nothing before 1970, and librdkafka takes 0 for the present

# A record that no broker of the cluster will ever take, with what can be done.
UNWANTED = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "is too large; raise max.message.bytes of the topic, and the option message.max.bytes of the target, or lower its option "
        "batch.size if many small records make a batch that is too large"
    ),
    KafkaError.INVALID_TIMESTAMP: (
        "has a timestamp that the topic does not take; change message.timestamp.after.max.ms or message.timestamp.before.max.ms of "
        "the topic, or set its message.timestamp.type to LogAppendTime"
    ),
    KafkaError.INVALID_RECORD: "is not valid for this topic",
}
FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}


@dataclass
class Failures:
    """The records that did not arrive, as librdkafka tells of them. Apart from the sink, so that a closed one is freed at once."""

    found: list[tuple[KafkaError, bytes, bytes | None]] = field(default_factory=list)

    def add(self, error: KafkaError, message: Any) -> None:
        if len(self.found) < 10:  # one is enough to say why; a broker that is gone fails all of them
            self.found.append((error, message.key(), message.value()))


class KafkaSink(Sink):
    """Without transactions: every record of a step is with the brokers when `write` returns, and a repeated step repeats them."""

    def __init__(self, cluster: Cluster, context: DeliveryContext, **settings: Any) -> None:
        self._cluster, self._context, self._failures = cluster, context, Failures()
        self._encode = value_encoder(context.value_type)
        self._open: Producer | None = cluster.producer(self._failures.add, **settings)

    def write(self, step: Step, records: Sequence[Record[Any]]) -> None:
        with self._explained(records):
            self._send(records)

    def close(self) -> None:
        """Whatever is still on its way is given up; of a transaction, the next opening aborts the rest."""
        producer, self._open = self._open, None
        if producer is not None:
            producer.purge()
        # librdkafka ends with the last reference. Its own close() would wait for brokers that may be gone.

    @property
    def _producer(self) -> Producer:
        assert self._open is not None, "it is closed"
        return self._open

    def _send(self, records: Sequence[Record[Any]]) -> None:
        """Until the brokers have all of them."""
        produce, topic = self._producer.produce, self._cluster.topic
        for record in sorted(records, key=in_order):  # the last of a key is the same however epochs fall into steps
            key, value = record.key.encode(), self._value(record)
            headers: Any = [("millstream-id", record.id), ("millstream-timestamp", str(int(record.timestamp)))]
            at = max(EARLIEST, int(record.timestamp) // 1000)
            deadline = None
            while True:
                try:
                    produce(topic, value, key, timestamp=at, headers=headers)
                    break
                except BufferError:  # librdkafka holds as much as it may
                    deadline = deadline or time.monotonic() + self._cluster.timeout
                    self._producer.poll(FLUSH_INTERVAL)
                    self._check_progress(deadline)
                except KafkaException as error:
                    self._failures.found.append((error.args[0], key, value))
                    raise
        self._flush()

    def _value(self, record: Record[Any]) -> bytes | None:
        """None stands for a record that deletes its key: where a topic is compacted, nothing is left of it. So does a change that
        leaves no row."""
        value = record.value
        leaves_nothing = value is None or (isinstance(value, Change) and value.after is None)
        return None if leaves_nothing else self._encode(value)

    def _flush(self) -> None:
        """As long as something arrives now and then."""
        before, deadline = len(self._producer), time.monotonic() + self._cluster.timeout
        while left := self._producer.flush(FLUSH_INTERVAL):
            if left < before:
                before, deadline = left, time.monotonic() + self._cluster.timeout
            self._check_progress(deadline)
        self._check_progress(None)

    def _check_progress(self, deadline: float | None) -> None:
        if self._failures.found:
            raise KafkaException(self._failures.found[0][0])
        if deadline is not None and time.monotonic() > deadline:
            raise self._cluster.failure(KafkaError(KafkaError._TIMED_OUT))

    @contextmanager
    def _explained(self, records: Sequence[Record[Any]] = ()) -> Iterator[None]:
        """Errors of librdkafka as those of a target."""
        try:
            yield
        except (KafkaException, SystemError) as raised:
            raise self._explain(self._meant_by(raised), records) from None

    def _meant_by(self, raised: KafkaException | SystemError) -> KafkaError:
        """A fatal error that is raised while failed records are reported comes out as the cause of a SystemError, or as one without a
        cause; the records say it then."""
        error = raised if isinstance(raised, KafkaException) else raised.__cause__
        if isinstance(error, KafkaException):
            return cast(KafkaError, error.args[0])
        if self._failures.found:
            return self._failures.found[0][0]
        raise raised

    def _explain(self, error: KafkaError, records: Sequence[Record[Any]]) -> MillstreamError:
        for failed, key, value in self._failures.found:
            if failed.code() in UNWANTED:
                ids = [record.id for record in records if record.key.encode() == key and self._value(record) == value]
                return RecordError(
                    f"delivery {self._context.delivery!r}: record {ids[0] if ids else ''} with key {key.decode()!r}",
                    f"{len(value or b''):,} bytes for topic {self._cluster.topic!r}: it {UNWANTED[failed.code()]}",
                )
        return self._cluster.failure(error)


class TransactionalKafkaSink(KafkaSink):
    """With transactions: the records of a step, and as the offset of a group of this delivery the step itself.

    The id of the transactions is that of the group, so the broker lets one run write at a time: the one that was opened last.
    That this is also the newest one is what the fence beside the offset says.
    """

    def __init__(self, cluster: Cluster, context: DeliveryContext) -> None:
        self._id = f"millstream-{context.identity}"
        self._cluster, self._context = cluster, context
        self._last_known(stable=False)  # before it keeps others out: an older run that comes late must not stop a newer one
        super().__init__(cluster, context, **{"transactional.id": self._id})
        try:
            self._group = cluster.group(self._id)
            with self._explained():
                self._producer.init_transactions(self._cluster.timeout)  # aborts what an older run had begun
                self._last = self._last_known(stable=True)
                # From now on an older run is refused even if this one writes nothing; and the offset is kept for another while.
                self._commit(self._last, ())
        except BaseException:
            self.close()
            raise

    def last_step(self) -> Step | None:
        return self._last

    def write(self, step: Step, records: Sequence[Record[Any]]) -> None:
        if self._last is None and step.number > 0:
            raise Fenced(f"topic {self._cluster.topic!r} has no step of delivery {self._context.delivery!r}, and this is not the first")
        if self._last is not None and self._last.upto != step.after:
            raise Fenced(f"topic {self._cluster.topic!r} is at epoch {self._last.upto}, and the step begins after {step.after}")
        try:
            with self._explained(records):
                self._commit(step, records)
        except Unreachable:
            raise  # it is opened anew, and that aborts what was begun
        except MillstreamError:
            with suppress(KafkaException, SystemError):  # else readers wait until it times out
                self._producer.abort_transaction(ABORT_TIMEOUT)
            raise
        self._last = step

    def _commit(self, step: Step | None, records: Sequence[Record[Any]]) -> None:
        fence, producer = self._context.fence, self._producer
        mark = KafkaPosition(fence) if step is None else KafkaPosition(fence, step.number, step.after)
        upto = 0 if step is None else step.upto
        position = TopicPartition(self._cluster.topic, 0, upto, metadata=msgspec.json.encode(mark).decode())
        producer.begin_transaction()
        # Records first. A step finds the one before it not quite ended: with the offset first, that is known only after an answer, and
        # a transaction took 6.5 ms (p50, 200 records/s) instead of 4.5. What a fenced run sends is refused, or aborted with the rest.
        self._send(records)
        bounded(partial(producer.send_offsets_to_transaction, [position], self._group, OFFSET_TIMEOUT), OFFSET_TIMEOUT + GRACE)
        producer.commit_transaction(self._cluster.timeout)

    def _last_known(self, *, stable: bool) -> Step | None:
        """The newest step of this delivery, unless a newer run was there."""
        found = self._cluster.committed(self._id, stable=stable)
        if found is None:
            return None
        mark, step = found
        if mark.fence > self._context.fence:
            raise Fenced(f"run {mark.fence} delivers to topic {self._cluster.topic!r}, and this is run {self._context.fence}")
        return step

    def _explain(self, error: KafkaError, records: Sequence[Record[Any]]) -> MillstreamError:
        """The broker also fences a run whose transaction has timed out, or when an older run has just come and gone.

        Records that were not yet sent then are said to be purged, and nothing else is said."""
        if error.fatal() or error.code() in FENCED | PURGED:
            try:
                self._last_known(stable=True)
            except MillstreamError as found:
                return found
        return super()._explain(error, records)
