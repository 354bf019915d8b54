"""Pieces of Kafka topics, as lanes read them: one consumer in each process, which goes on where the last piece ended."""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from millstream.clients.kafka_clients import close_consumer
from millstream.source import Batch, Piece, PieceReader, SourceContext
from millstream.sources.kafka_reader import OUT_OF_RANGE, PASSING
from millstream.sources.kafka_survey import Fetched, KafkaPartition, Surveyor, by_partition, fetched, lost
from millstream.sources.kafka_tracks import decode_piece
from millstream.sources.kafka_values import KafkaValues

if TYPE_CHECKING:
    from millstream.sources.kafka import KafkaSource

READ_TIMEOUT = 10.0  # seconds without any record of a piece
WAIT = 0.1  # seconds
AT_ONCE = 2_000  # records that are taken from the client
MAX_OPEN = 16  # partitions that are read on without a new beginning

# With the usual backoff of a second, a queue that was full stays empty for most of it: 90,000 records a second instead of 1,200,000.
TUNED = {
    "fetch.queue.backoff.ms": 2,
    "fetch.error.backoff.ms": 50,
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 8 << 10,
    "queued.min.messages": 50_000,
}


class OpenPartition:
    """A partition that is being read: what has come of it and was not given yet, up to `reach`."""

    __slots__ = ("fetching", "given", "messages", "offsets", "reach")

    def __init__(self, start: int) -> None:
        self.given = self.reach = start
        self.messages: list[Fetched] = []
        self.offsets: list[int] = []
        self.fetching = False

    def add(self, messages: list[Fetched]) -> None:
        offsets = [message.offset() for message in messages]
        if offsets[0] < self.reach:
            messages, offsets = messages[(first := bisect_left(offsets, self.reach)) :], offsets[first:]
        if offsets:
            self.messages += messages
            self.offsets += offsets
            self.reach = offsets[-1] + 1

    def take(self, at_most: int, end: int) -> tuple[list[Fetched], list[int]]:
        """The next ones before `end`."""
        count = min(at_most, bisect_left(self.offsets, end))
        found = self.messages[:count], self.offsets[:count]
        del self.messages[:count], self.offsets[:count]
        return found


class KafkaPieceReader(PieceReader):
    """Reads pieces one after the other. Partitions whose next pieces will come are fetched meanwhile, as far as a piece goes."""

    def __init__(self, source: KafkaSource[Any], context: SourceContext) -> None:
        self._surveyor = Surveyor(source, READ_TIMEOUT)
        self._values = KafkaValues(source.value_type, source.decode, context.columns)
        self._consumer = self._surveyor.consumer(source.group or f"millstream-{context.injector}", TUNED)
        self._open: dict[KafkaPartition, OpenPartition] = {}  # the one that was read last is the last

    def read(self, piece: Piece, at_most: int) -> Iterator[Batch]:
        wanted = decode_piece(piece.content)
        partition, end = KafkaPartition(wanted.topic, wanted.partition), wanted.end
        stretch = self._at(partition, wanted.start)
        # Records of the client are known to Python's garbage collector, and there are many of them for a moment: a fifth of a lane's
        # time went into looking at them, again and again (py-spy, a million records in 12 partitions).
        collects = gc.isenabled()
        gc.disable()
        try:
            while True:
                self._fill(partition, stretch, end, at_most)
                messages, offsets = stretch.take(at_most, end)
                more = bool(stretch.offsets) and stretch.offsets[0] < end
                stretch.given = end if not more and stretch.reach >= end else offsets[-1] + 1
                yield self._values.batch(partition, messages, offsets, stretch.given, wanted.known)
                if stretch.given == end:
                    break
        except BaseException:
            self._forget(partition)
            raise
        finally:
            if collects:
                gc.enable()
        if not wanted.more:
            self._forget(partition)
        self._hold_back(end - wanted.start)

    def close(self) -> None:
        close_consumer(self._consumer)

    def _at(self, partition: KafkaPartition, start: int) -> OpenPartition:
        """From there on; what was fetched before is used if it goes on there."""
        stretch = self._open.get(partition)
        if stretch is not None and stretch.given != start:
            self._forget(partition)
            stretch = None
        stretch = self._open.pop(partition, None) or OpenPartition(start)
        self._open[partition] = stretch
        for oldest in list(self._open)[:-MAX_OPEN]:
            self._forget(oldest)
        return stretch

    def _fill(self, partition: KafkaPartition, stretch: OpenPartition, end: int, at_most: int) -> None:
        """Until there is a batch, or all up to `end`."""
        deadline = time.monotonic() + READ_TIMEOUT
        while stretch.reach < end and len(stretch.offsets) < at_most:
            if not stretch.fetching:
                self._fetch(partition, stretch)
            before = stretch.reach
            self._consume()
            if stretch.reach > before:
                deadline = time.monotonic() + READ_TIMEOUT
            elif time.monotonic() > deadline:
                raise self._surveyor.failure(KafkaError(KafkaError._TIMED_OUT))

    def _consume(self) -> None:
        """What has come, for each partition that is fetched."""
        messages = fetched(self._consumer, AT_ONCE, WAIT)
        events = [message for message in messages if message.error() is not None]
        if events:
            messages = [message for message in messages if message.error() is None]
        for partition, those in by_partition(messages).items():
            if (stretch := self._open.get(partition)) is not None and stretch.fetching:
                stretch.add(those)
        for event in events:
            self._hear(event)

    def _hear(self, event: Fetched) -> None:
        error = event.error()
        assert error is not None
        partition = KafkaPartition.of(event)
        stretch = self._open.get(partition)
        if error.code() == KafkaError._PARTITION_EOF:
            if stretch is not None and stretch.fetching:
                stretch.reach = max(stretch.reach, event.offset())
        elif error.code() in OUT_OF_RANGE:
            if stretch is not None and stretch.fetching:
                raise lost(partition, stretch.reach, self._bounds(partition))
        elif error.code() not in PASSING and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise self._surveyor.failure(error)

    def _bounds(self, partition: KafkaPartition) -> tuple[int, int] | None:
        try:
            return self._consumer.get_watermark_offsets(partition.at(0), READ_TIMEOUT)
        except KafkaException:
            return None

    # What is fetched.

    def _fetch(self, partition: KafkaPartition, stretch: OpenPartition) -> None:
        self._consumer.incremental_assign([partition.at(stretch.reach)])
        stretch.fetching = True

    def _hold_back(self, most: int) -> None:
        """Nothing is fetched further ahead than a piece goes."""
        for partition, stretch in self._open.items():
            if stretch.fetching and len(stretch.offsets) > most:
                self._consumer.incremental_unassign([partition.at(0)])
                stretch.fetching = False

    def _forget(self, partition: KafkaPartition) -> None:
        stretch = self._open.pop(partition, None)
        if stretch is not None and stretch.fetching:
            self._consumer.incremental_unassign([partition.at(0)])
