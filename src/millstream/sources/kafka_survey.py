"""What a Kafka cluster has of the topics that a source reads: asked with bounded waits, by one client."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from millstream.clients.kafka_clients import UNANSWERED, KafkaClients
from millstream.errors import LogError, Unreachable
from millstream.source import Position
from millstream.timestamp import Timestamp

if TYPE_CHECKING:
    from millstream.sources.kafka import KafkaSource

DESCRIBE_EVERY = 3.0  # seconds until topics and partitions are looked for again
LATEST, EARLIEST = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]
TOPIC, NUMBER = operator.methodcaller("topic"), operator.methodcaller("partition")
BEGUN = "#begun"  # stands beside the positions of a source that was opened when there was no topic for it
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of a topic, where brokers are too old to have one

REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "allow this user to read and describe the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "allow this user to describe the cluster",
}
# What a consumer must be like for positions to mean what they say.
READING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
}


class KafkaPartition(NamedTuple):
    """A partition of a topic; its name is what positions are kept under."""

    topic: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.number}"

    @classmethod
    def of(cls, message: Fetched) -> KafkaPartition:
        return cls(message.topic(), message.partition())

    def at(self, offset: int) -> TopicPartition:
        return TopicPartition(self.topic, self.number, offset)

    def __str__(self) -> str:
        return f"partition {self.number} of topic {self.topic!r}"


class Fetched(Protocol):
    """What a consumer gives: a record, or an event of a partition that has an `error`. Places are always known here, though the types
    of the client say that they may not be."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | str | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def error(self) -> KafkaError | None: ...
    def __len__(self) -> int: ...


def fetched(consumer: Consumer, at_most: int, wait: float) -> list[Fetched]:
    """What has come, so many at most; if nothing has, the next thing to come within so many seconds. Does not wait for more."""
    found = consumer.consume(at_most, 0) if at_most > 1 else []
    if not found:
        first = consumer.poll(wait)
        found = [] if first is None else [first, *(consumer.consume(at_most - 1, 0) if at_most > 1 else [])]
    return cast(list[Fetched], found)


def by_partition(messages: Sequence[Fetched]) -> dict[KafkaPartition, list[Fetched]]:
    """Each in its order: 0.2 µs a record."""
    found: dict[tuple[str, int], list[Fetched]] = {}
    for place, message in zip(zip(map(TOPIC, messages), map(NUMBER, messages), strict=True), messages, strict=True):
        those = found.get(place)
        if those is None:
            found[place] = [message]
        else:
            those.append(message)
    return {KafkaPartition(*place): those for place, those in found.items()}


def named(name: str) -> KafkaPartition | None:
    """The partition that a position is of; None if it is of something else."""
    topic, _, number = name.rpartition("/")
    return KafkaPartition(topic, int(number)) if topic and number.isdecimal() else None


def id_name(topic: str) -> str:
    """What the id of a topic is kept under, beside the positions: no topic can be called so."""
    return f"{topic}#id"


def end_name(partition: KafkaPartition) -> str:
    """What the end of a partition is kept under, as far as it was known: it tells whether all was read of one that is gone."""
    return f"{partition.name}#end"


def place(partition: KafkaPartition, upto: int, known: int) -> dict[str, Position]:
    """How far a partition is read, and where it is known to end if there is more."""
    return {partition.name: upto, end_name(partition): known} if known > upto else {partition.name: upto}


@dataclass(frozen=True)
class Survey:
    """What the cluster has at a moment. The end of a partition is where its last transaction that is still open begins."""

    ids: Mapping[str, str | None]  # by topic; None where the cluster has no ids
    starts: Mapping[KafkaPartition, int]  # the first offset, as it was when the partition was first seen
    ends: Mapping[KafkaPartition, int]
    silent: Mapping[KafkaPartition, str] = field(default_factory=dict)  # why it has no end: it has no leader now
    number: int = 0


class Surveyor(KafkaClients):
    """Asks the cluster, with the secrets as they were when it was made."""

    purpose = "what is to be read"
    refused = REFUSED

    def __init__(self, source: KafkaSource[Any], timeout: float) -> None:
        super().__init__("kafka", source.servers, source.options.revealed(), source.options.secrets(), timeout)
        self._source = source
        self._described: dict[str, Any] = {}
        self._described_at = float("-inf")
        self._starts: dict[KafkaPartition, int] = {}

    @property
    def _admin(self) -> AdminClient:
        return self.shared_admin()

    def consumer(self, group: str, tuned: Mapping[str, Any], on_commit: Callable[..., None] | None = None) -> Consumer:
        """One that reads committed records, and says when it is at the end. What is `tuned`, a user may set otherwise."""
        ours: dict[str, Any] = {name: value for name, value in tuned.items() if name not in self._settings}
        if on_commit is not None:
            ours["on_commit"] = on_commit
        return self.made(Consumer, {**ours, **READING, "group.id": group})

    def survey(self, number: int = 0, *, anew: bool = False) -> Survey:
        """Topics and partitions are looked for now and then, or `anew`; ends are always as they are now."""
        now = time.monotonic()
        if anew or now - self._described_at >= DESCRIBE_EVERY:
            self._described, self._described_at = self.described(self._admin, self._topics()), now
        found = [KafkaPartition(topic, each.id) for topic, known in self._described.items() for each in known.partitions]
        ends, silent = self._offsets(found, LATEST)
        fresh = [partition for partition in ends if partition not in self._starts]
        starts, unheard = self._offsets(fresh, EARLIEST)
        self._starts.update(starts)
        for partition in unheard:
            del ends[partition]
        ids = {topic: _id(known) for topic, known in self._described.items()}
        return Survey(ids, dict(self._starts), ends, {**silent, **unheard}, number)

    def id_of(self, topic: str) -> str | None:
        """As it is now; None where there is no topic, or where the cluster has no ids."""
        return _id(self.described(self._admin, [topic]).get(topic))

    def bounds(self, partition: KafkaPartition) -> tuple[int, int]:
        """The first offset that is there now, and where the log ends."""
        return self._all([partition], EARLIEST)[partition], self.ends_of_all([partition])[partition]

    def ends_of_all(self, partitions: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
        """Where the log ends, with transactions that are still open."""
        return self._all(partitions, LATEST, committed=False)

    def since(self, partitions: Iterable[KafkaPartition], moment: Timestamp) -> dict[KafkaPartition, int]:
        """The first offsets at or after a time; without those partitions that have nothing since then."""
        spec = OffsetSpec.for_timestamp(max(0, -(-int(moment) // 1000)))
        return {partition: offset for partition, offset in self._all(partitions, spec).items() if offset >= 0}

    def _topics(self) -> list[str]:
        pattern = self._source.pattern
        if pattern is None:
            return list(self._source.topics)
        try:
            known = self._admin.list_topics(timeout=self.timeout).topics
        except KafkaException as error:
            raise self.failure(error.args[0]) from None
        finally:
            self._admin.poll(0)
        return sorted(topic for topic in known if pattern.fullmatch(topic) and not topic.startswith("__"))

    def _all(self, partitions: Iterable[KafkaPartition], spec: Any, *, committed: bool = True) -> dict[KafkaPartition, int]:
        found, silent = self._offsets(partitions, spec, committed=committed)
        for partition, why in silent.items():
            raise Unreachable(f"{self.servers}: {partition} does not answer: {why}")
        return found

    def _offsets(
        self, partitions: Iterable[KafkaPartition], spec: Any, *, committed: bool = True
    ) -> tuple[dict[KafkaPartition, int], dict[KafkaPartition, str]]:
        """Of all in one request to each broker; and why some were not told."""
        asked = {partition.at(0): spec for partition in partitions}
        found, silent = dict[KafkaPartition, int](), dict[KafkaPartition, str]()
        if not asked:
            return found, silent
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        try:
            answers = self._admin.list_offsets(asked, isolation_level=level, request_timeout=self.timeout)
        except KafkaException as error:
            raise self.failure(error.args[0]) from None
        for each, future in answers.items():
            partition = KafkaPartition(each.topic, each.partition)
            try:
                found[partition] = self.answer(self._admin, future).offset
            except KafkaException as error:
                if error.args[0].code() in UNANSWERED or error.args[0].code() in self.refused:
                    raise self.failure(error.args[0]) from None
                silent[partition] = self.clean(error.args[0].str())
        return found, silent


def _id(described: Any) -> str | None:
    found = NO_ID if described is None else str(described.topic_id)
    return None if found == NO_ID else found


# What is refused.


def missing(source: KafkaSource[Any], topic: str) -> str:
    return (
        f"topic {topic!r} does not exist at {source.servers}; create it: kafka-topics.sh --bootstrap-server {source.servers} "
        f"--create --topic {topic} --partitions 6"
    )


def gone(source: KafkaSource[Any], topic: str, unread: int | None) -> LogError:
    """Of a topic that was read; `unread` is how many records were known to be left, if that is known."""
    left = ", and nobody knows whether all of it was read" if unread is None else ""
    if unread:
        left = f", with {unread:,} records that were known and not read"
    if source.pattern is not None:
        without = f"(?!{re.escape(topic)}$)(?:{source.pattern.pattern})"
        way_out = f'leave it out of the pattern, and the others are read on: re.compile(r"{without}")'
    elif len(source.topics) > 1:
        way_out = "leave it out of the topics, and the others are read on"
    else:
        way_out = "give the injector another name, and it begins at the beginning of the topic that is made anew"
    return LogError(
        f"topic {topic!r} was read and is not there any more{left}: it was deleted, or this user may not describe it now. If it "
        f"does not come back, {way_out}"
    )


def made_anew(topic: str) -> LogError:
    return LogError(
        f"topic {topic!r} was deleted and made anew, or is that of another cluster: offsets of the old one mean nothing in it. Give the "
        f"injector another name, and it begins at the beginning of the new one"
    )


def lost(partition: KafkaPartition, wanted: int, bounds: tuple[int, int] | None) -> LogError:
    """Of a position that the topic does not have; `bounds` is what it has, if that is known."""
    has = "which the topic does not have" if bounds is None else f"and the topic has offsets from {bounds[0]} up to {bounds[1]}"
    if bounds is not None and wanted > bounds[1]:
        why = "the topic was cut, or deleted and made anew"
    else:
        why = "what comes next was removed before it was read, by retention or by hand; keep it for longer (retention.ms, retention.bytes)"
    return LogError(
        f"{partition} is to be read from offset {wanted}, {has}: {why}. To go on with what is there, give the injector another name: "
        f"it begins anew there"
    )
