"""Kafka topics as a source. What reads them is loaded when it is used."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar

from millstream import arguments
from millstream.clients import kafka_options
from millstream.clients.kafka_options import KafkaOptions, OptionValue
from millstream.errors import TopologyError
from millstream.source import PieceReader, Position, Source, SourceContext, SourceReader
from millstream.timestamp import END_OF_TIME, Timestamp, to_timestamp

if TYPE_CHECKING:
    from millstream.sources.kafka_survey import KafkaPartition

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

MISSING = 'kafka needs the package confluent-kafka; install it: pip install "millstream[kafka]"'
# What the promise of the source rests on, with what to do instead.
OWNED = {
    "group.id": "give group=; it is for people to see, and positions are in the commits of the run",
    "isolation.level": "it is read_committed: what a transaction has aborted is not read",
    "enable.auto.commit": "offsets are committed when the run has them",
    "enable.auto.offset.store": "offsets are committed when the run has them",
    "auto.offset.reset": "give since= or latest=; a position that the topic does not have is refused",
    "enable.partition.eof": "it is always on, and says what was read",
    "allow.auto.create.topics": "a source creates nothing",
    "on_commit": "callbacks of librdkafka are Millstream's own",
}


@dataclass(frozen=True)
class KafkaSource(Source[V_co]):
    """`kafka` makes one."""

    gives_pieces = True
    has_columns = True
    topics: tuple[str, ...]  # none where there is a pattern
    pattern: re.Pattern[str] | None
    value_type: Any
    servers: str
    options: KafkaOptions
    bounded: bool = False
    since: Timestamp | None = None
    latest: bool = False
    group: str | None = None
    decode: Callable[[bytes], Any] | None = field(default=None, repr=False)

    def describe(self) -> str:
        if self.pattern is not None:
            return f"Kafka topics like {self.pattern.pattern!r}"
        return f"Kafka topic{'s' if len(self.topics) > 1 else ''} {', '.join(map(repr, self.topics))}"

    def identity(self) -> str:
        """Positions are kept by topic, and the id of a topic tells it from another one of its name: neither where the brokers are
        counts, nor which other topics there are."""
        return "Kafka topics"

    def reads(self, partition: KafkaPartition) -> bool:
        return partition.topic in self.topics if self.pattern is None else self.pattern.fullmatch(partition.topic) is not None

    def check(self, context: SourceContext) -> None:
        from millstream.sources import kafka_opening

        kafka_opening.check(self, context)

    def open(self, context: SourceContext) -> SourceReader:
        from millstream.sources.kafka_reader import KafkaReader

        return KafkaReader(self, context)

    def piece_reader(self, context: SourceContext) -> PieceReader:
        from millstream.sources.kafka_pieces import KafkaPieceReader

        return KafkaPieceReader(self, context)

    def left_over(self, context: SourceContext) -> str | None:
        from millstream.sources import kafka_opening

        return kafka_opening.left_over(self, context)

    def position(self, of: object) -> Mapping[str, Position] | None:
        """After a record: a `confluent_kafka.Message` as a producer is told of, or its topic, partition and offset."""
        import confluent_kafka

        from millstream.sources.kafka_survey import KafkaPartition

        if isinstance(of, confluent_kafka.Message):
            of = (of.topic(), of.partition(), of.offset()) if of.error() is None else None
        match of:
            case (str(topic), int(number), int(offset)) if offset >= 0 and self.reads(partition := KafkaPartition(topic, number)):
                return {partition.name: offset + 1}
        return None


def kafka(
    topic: str | Sequence[str] | re.Pattern[str],
    value: type[V] | UnionType,
    *,
    servers: str | Sequence[str],
    since: datetime | Timestamp | None = None,
    latest: bool = False,
    bounded: bool = False,
    decode: Callable[[bytes], Any] | None = None,
    group: str | None = None,
    options: Mapping[str, OptionValue] | None = None,
) -> Source[V]:
    """Kafka topics: one, some, or all whose whole name fits a pattern, with partitions and topics that come later.

    Values are JSON of the type `value`; `ms.Message[Order]` has key, timestamp and headers beside them. What is not JSON, `decode`
    makes a value of: it is called with the bytes of each. A run that was never started begins with the oldest record, or with the
    first one `since` a time, or with what comes from now on (`latest`); from then on its own commits say where it is. With
    `bounded=True` it ends where the topics ended when it was opened. The consumer group `group` only shows people how far it is.
    `options` are those of librdkafka; a secret among them is given by `ms.secret`.

    ms.kafka("orders", Order, servers="kafka-1:9092,kafka-2:9092", options={"sasl.password": ms.secret(env="KAFKA_PASSWORD")})
    """
    try:
        importlib.import_module("confluent_kafka")
    except ImportError:
        raise TopologyError(MISSING) from None
    call = "kafka"
    names, pattern = _topics(call, topic)
    if decode is not None:
        if not callable(decode):
            raise TopologyError(f"{call}(decode={decode!r}): give a function of the bytes of a value")
        arguments.function(f"{call}(decode=...)", decode, "bytes")
    if group is not None and (not isinstance(group, str) or not group.strip()):
        raise TopologyError(f"{call}(group={group!r}): give the name of a consumer group")
    begin = _moment(call, since)
    if arguments.flag(call, "latest", latest) and begin is not None:
        raise TopologyError(f"{call}(since=..., latest=True): give one of them")
    if arguments.flag(call, "bounded", bounded) and latest:
        raise TopologyError(f"{call}(latest=True, bounded=True): it would end where it begins, and read nothing; give one of them")
    return KafkaSource(
        names,
        pattern,
        _value_type(call, value),
        kafka_options.servers(call, servers),
        kafka_options.options(call, {} if options is None else options, OWNED, '"client.id": "orders"'),
        bounded,
        begin,
        latest,
        group,
        decode,
    )


def _topics(call: str, given: Any) -> tuple[tuple[str, ...], re.Pattern[str] | None]:
    if isinstance(given, re.Pattern):
        if not isinstance(given.pattern, str):
            raise TopologyError(f"{call}({given!r}): give a pattern of text, such as re.compile('orders-.*')")
        if not given.pattern:
            raise TopologyError(
                f"{call}({given!r}): no topic has an empty name; give a pattern of whole names, such as re.compile('orders-.*')"
            )
        return (), given
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if several and not given:
        raise TopologyError(f"{call}({given!r}): give at least one topic")
    try:
        return tuple(sorted({kafka_options.topic(call, each) for each in (given if several else [given])})), None
    except TopologyError as error:
        raise TopologyError(f"{error}; or a pattern, in place of names: re.compile('orders-.*')") from None


def _value_type(call: str, given: Any) -> Any:
    """One that can be decoded. A class that names others which are not defined yet is looked at when the run starts."""
    from millstream.core.codec import settle, value_decoder

    kind = arguments.value_type(call, given)
    try:
        settle(kind)
    except (TopologyError, NameError):
        return kind
    try:
        value_decoder(kind)
    except TopologyError as error:
        raise TopologyError(f"{call}: {error}") from None
    return kind


def _moment(call: str, since: Any) -> Timestamp | None:
    if since is None:
        return None
    if type(since) is int and 0 <= since <= int(END_OF_TIME):
        return Timestamp(since)
    try:
        return to_timestamp(since)
    except (TypeError, ValueError):
        raise TopologyError(f"{call}(since={since!r}): give a datetime with a time zone, or a ms.Timestamp") from None
