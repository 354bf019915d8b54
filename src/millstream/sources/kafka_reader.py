"""Kafka topics that are open, in the driver: records themselves when it is near the end of them, and pieces for lanes when it is not."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from millstream.clients.kafka_clients import close_consumer
from millstream.source import Batch, Piece, Position, SourceContext, SourceReader
from millstream.sources.kafka_group import ShownGroup
from millstream.sources.kafka_opening import opened
from millstream.sources.kafka_scout import Scout
from millstream.sources.kafka_survey import (
    BEGUN,
    Fetched,
    KafkaPartition,
    Survey,
    Surveyor,
    by_partition,
    end_name,
    fetched,
    gone,
    id_name,
    lost,
    made_anew,
)
from millstream.sources.kafka_tracks import Track, Tracks
from millstream.sources.kafka_values import KafkaValues

if TYPE_CHECKING:
    from millstream.sources.kafka import KafkaSource

log = logging.getLogger("millstream")

ANSWER_TIMEOUT = 5.0  # seconds that an answer of the cluster may take
WAIT = 0.1  # seconds between two looks at what the scout has found
ASK_EVERY = 0.1  # seconds between two surveys while lanes read
GONE_AFTER = 5.0  # seconds until a topic that is not there counts as deleted: brokers may not have heard of it yet
SAMPLE = 200  # records
USUAL_SIZE = 1_000.0  # bytes of a record, where none could be looked at

# A fetch is answered when there is anything; and once a partition is added, the fetch that is under way ends within this time.
TUNED = {
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 2,
    "fetch.error.backoff.ms": 50,
    "fetch.message.max.bytes": 256 << 10,
    "queued.max.messages.kbytes": 16 << 10,
    "queued.min.messages": 20_000,
}
OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
# The scout looks after these: whether a topic is there, and who leads a partition, changes for moments too.
PASSING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
}


class KafkaReader(SourceReader):
    """Reads on from the positions of its context."""

    def __init__(self, source: KafkaSource[Any], context: SourceContext) -> None:
        self._source, self._surveyor = source, Surveyor(source, ANSWER_TIMEOUT)
        self._values = KafkaValues(source.value_type, source.decode, context.columns)
        survey = self._surveyor.survey()
        self._tracks = Tracks(context.max_bytes)
        found = opened(source, self._surveyor, survey, context.positions)
        for track in found.tracks:
            self._tracks.add(track)
        self._ids, self._away = found.ids, found.away
        self._begun = bool(context.positions)  # whether a restart would know that it was opened
        self._noted = survey.number
        self._final = False  # no more partitions: what is read is what there was
        self._stop_at: int | None = None  # the number of the survey whose ends are to be the last
        if source.bounded or context.finished:
            self._stop({track.partition: track.given for track in self._tracks} if context.finished else survey.ends)
        self._group = ShownGroup(source.group or f"millstream-{context.injector}")
        self._consumer = self._surveyor.consumer(self._group.name, TUNED, self._group.answered)
        self._assigned: set[KafkaPartition] = set()
        self._sampling: KafkaPartition | None = None
        self._gone: dict[str, float] = {}  # by topic that is not there: since when
        self._asked = 0.0
        self._closed = False
        self._scout = Scout(self._surveyor, survey)

    # What the thread of the source calls.

    def poll(self, at_most: int, timeout: float) -> Sequence[Batch | Piece]:
        deadline = time.monotonic() + timeout
        while True:
            self._scout.check()
            self._note(self._scout.latest)
            self._group.commit(self._consumer)
            pinned = self._pins()
            wait = 0.0 if pinned else max(0.0, min(WAIT, deadline - time.monotonic()))
            found = self._pieces(wait) if self._tracks.choose() else self._tail(at_most, wait)
            if pinned or found or time.monotonic() >= deadline:
                return [*pinned, *found]

    def confirm(self, positions: Mapping[str, Position]) -> None:
        self._group.confirm(self._tracks.confirm(positions))

    def finish(self) -> None:
        super().finish()
        if not self._final:
            self._stop_at = self._scout.ask()

    def ended(self) -> bool:
        return self._final and all(track.done for track in self._tracks)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._scout.close()
            if self._scout.trouble is None:
                self._group.commit_last(self._consumer)
            close_consumer(self._consumer)

    # What others may call.

    def lag(self) -> Mapping[str, int]:
        return self._tracks.lags(self._scout.latest.ends)

    @property
    def trouble(self) -> str | None:
        if (unheard := self._scout.trouble) is not None:
            return unheard
        for topic in list(self._gone):
            return f"topic {topic!r} is not there any more"
        for partition, why in self._scout.latest.silent.items():
            return f"{partition} does not answer: {why}"
        return None

    # What the scout has found.

    def _note(self, survey: Survey) -> None:
        if survey.number == self._noted:
            return
        self._noted = survey.number
        for topic, known in survey.ids.items():
            if known is not None and self._ids.setdefault(topic, known) != known:
                raise made_anew(topic)
        self._note_gone(survey)
        self._tracks.note(survey.ends)
        if self._final:
            return
        for topic in {partition.topic for partition in self._away if partition in survey.ends}:
            log.info("%s: topic %r is there again, and read on", self._source.describe(), topic)
        for partition, end in survey.ends.items():
            if partition not in self._tracks:
                # Of a topic that was away, with the id that it had, what was read is not read again.
                begin = self._away.pop(partition, survey.starts[partition])
                self._tracks.add(Track(partition, begin, end, to_pin=True))
        if self._stop_at is not None and survey.number >= self._stop_at:
            self._stop(survey.ends)

    def _note_gone(self, survey: Survey) -> None:
        """A topic that is named must be there. One of a pattern may be deleted when it is read."""
        now = time.monotonic()
        for topic in {track.partition.topic for track in self._tracks}:
            if topic in survey.ids:
                self._gone.pop(topic, None)
            elif now - self._gone.setdefault(topic, now) > GONE_AFTER:
                unread = self._tracks.unread(topic)
                if self._source.pattern is None or unread:
                    raise gone(self._source, topic, unread)
                log.warning("%s: topic %r is not there any more; all that was known of it is read", self._source.describe(), topic)
                self._unassign([partition for partition in self._assigned if partition.topic == topic])
                self._away.update({track.partition: track.given for track in self._tracks if track.partition.topic == topic})
                self._tracks.drop(topic)
                del self._gone[topic]

    def _stop(self, ends: Mapping[KafkaPartition, int]) -> None:
        self._tracks.stop(ends)
        self._final = True

    def _pins(self) -> list[Batch]:
        """What a restart must know before the first record: where each partition begins, or that there was none to begin with."""
        found = [self._pin(track) for track in self._tracks if track.to_pin]
        if not self._begun and not found:
            found = [Batch([], [], {BEGUN: 1})]
        self._begun = True
        return found

    def _pin(self, track: Track) -> Batch:
        """Of which topic it is, too, and where it is known to end."""
        track.to_pin = False
        partition, known = track.partition, self._ids.get(track.partition.topic)
        positions: dict[str, Position] = {partition.name: track.given, end_name(partition): max(track.given, track.known)}
        if known is not None:
            positions[id_name(partition.topic)] = known
        return Batch([], [], positions, partition.name, partition.topic, partition.number)

    # Near the end: records themselves.

    def _tail(self, at_most: int, wait: float) -> list[Batch]:
        self._end_sample()
        tracks = [track for track in self._tracks if not track.done]
        self._unassign(self._assigned - {track.partition for track in tracks})
        self._assign([track for track in tracks if track.partition not in self._assigned])
        messages, ends = self._consume(at_most, wait)
        return [
            batch
            for partition in {**messages, **ends}
            if (batch := self._batch(partition, messages.get(partition, []), ends.get(partition, 0))) is not None
        ]

    def _batch(self, partition: KafkaPartition, messages: list[Fetched], end: int) -> Batch | None:
        """What is new in them, up to where reading stops. `end` is where the partition was seen to end: there are no records before it
        that are not among them."""
        track = self._tracks.get(partition)
        if track is None or partition not in self._assigned:
            return None
        offsets = [message.offset() for message in messages]
        upto = max(track.given, end, offsets[-1] + 1 if offsets else 0)
        if track.stop is not None and upto > track.stop:
            upto = track.stop
            messages, offsets = messages[: bisect_left(offsets, upto)], offsets[: bisect_left(offsets, upto)]
        if upto == track.given:
            return None
        self._tracks.sizes.learn(partition.topic, len(messages), sum(map(len, messages)))
        track.given, track.end = upto, max(track.end, upto)
        return self._values.batch(partition, messages, offsets, upto, track.known)

    def _consume(self, at_most: int, wait: float) -> tuple[dict[KafkaPartition, list[Fetched]], dict[KafkaPartition, int]]:
        """What is there, by partition, as soon as there is anything; and where partitions were seen to end."""
        ends: dict[KafkaPartition, int] = {}
        records: list[Fetched] = []
        for message in fetched(self._consumer, at_most, wait):
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[KafkaPartition.of(message)] = message.offset()
            else:
                self._refuse(message, error)
        return by_partition(records), ends

    def _refuse(self, message: Fetched, error: KafkaError) -> None:
        code = error.code()
        if code in OUT_OF_RANGE:
            partition = KafkaPartition.of(message)
            track = self._tracks.get(partition)
            if track is None or partition not in self._assigned:
                return
            if self._surveyor.id_of(partition.topic) not in (None, self._ids.get(partition.topic)):
                raise made_anew(partition.topic)
            raise lost(partition, track.given, self._surveyor.bounds(partition))
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self._group.failed(self._surveyor.clean(error.str()))
        elif code not in PASSING:
            raise self._surveyor.failure(error)

    def _assign(self, tracks: list[Track]) -> None:
        if tracks:
            self._consumer.incremental_assign([track.partition.at(track.given) for track in tracks])
            self._assigned.update(track.partition for track in tracks)

    def _unassign(self, partitions: Iterable[KafkaPartition]) -> None:
        """Those of them that are assigned."""
        if dropped := self._assigned.intersection(partitions):
            self._consumer.incremental_unassign([partition.at(0) for partition in dropped])
            self._assigned -= dropped

    # Far from it: pieces.

    def _pieces(self, wait: float) -> list[Piece]:
        if self._sampling is None:
            self._unassign(self._assigned)
        self._sample(wait)
        now = time.monotonic()
        if now - self._asked > ASK_EVERY:
            self._scout.ask()
            self._asked = now
        found = self._tracks.pieces()
        if not found and wait and self._sampling is None:
            self._scout.wait(self._noted + 1, wait)
        return found

    def _sample(self, wait: float) -> None:
        """Looks at some records that lanes will read, for how large they are. Does not wait where that was known once."""
        sizes = self._tracks.sizes
        if self._sampling is None:
            self._sampling = self._tracks.unknown()
            track = None if self._sampling is None else self._tracks.get(self._sampling)
            if track is None:
                return
            self._assign([track])
        assert self._sampling is not None
        topic = self._sampling.topic
        messages, ends = self._consume(SAMPLE, wait if sizes.of(topic) is None else 0.0)
        looked_at = messages.get(self._sampling, [])
        if looked_at or self._sampling in ends:
            sizes.learn(topic, len(looked_at), sum(map(len, looked_at)))
            sizes.guess(topic, USUAL_SIZE)
            self._end_sample()

    def _end_sample(self) -> None:
        if self._sampling is not None:
            self._unassign([self._sampling])
            self._sampling = None
