"""How far each partition was given, and what of it lanes are to read. No client in here: offsets in, pieces out."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from millstream.source import Piece, Position
from millstream.sources.kafka_survey import KafkaPartition

MAX_GIVEN = 64  # pieces that no commit has yet
LEAST_AHEAD = 2  # of one partition, however many there are
RECORDS_PER_PIECE = 50_000
# In between it stays as it is. The driver can read 20,000 records in some tenths of a second; lanes take longer to begin.
PIECES_ABOVE, TAIL_UPTO = 20_000, 5_000  # records that were not given
BYTES_ABOVE = 16  # times the bytes of a piece
SAMPLE_EVERY = 64  # pieces: until the size of records is looked at again
WEIGHT = 0.2  # of new records in the average size

encode_piece = msgspec.msgpack.Encoder().encode


class KafkaPiece(msgspec.Struct, array_like=True, frozen=True):
    """The offsets from `start` up to, not including `end`. `known` is where the partition was known to end."""

    topic: str
    partition: int
    start: int
    end: int
    known: int

    @property
    def more(self) -> bool:
        """Whether the piece after it was known to be there."""
        return self.known > self.end


decode_piece = msgspec.msgpack.Decoder(KafkaPiece).decode


class Track:
    """One partition: `given` is the next offset to give, `end` where it is known to end, `stop` where reading ends for good."""

    __slots__ = ("ahead", "committed", "end", "given", "partition", "stop", "to_pin")

    def __init__(self, partition: KafkaPartition, given: int, end: int, *, to_pin: bool) -> None:
        self.partition, self.given, self.end = partition, given, end
        self.to_pin = to_pin  # no commit has where it begins, or that it has something to read
        self.committed = given  # as far as was confirmed
        self.stop: int | None = None
        self.ahead: deque[int] = deque()  # where the pieces end that no commit has yet

    @property
    def known(self) -> int:
        """Where what is to be read of it is known to end."""
        return self.end if self.stop is None else min(self.end, self.stop)

    @property
    def unread(self) -> int:
        """Offsets that are known and that nobody has read, at most: pieces that no commit has count too."""
        return max(0, self.known - (self.committed if self.ahead else self.given))

    @property
    def lag(self) -> int:
        return self.lag_to(self.end)

    def lag_to(self, end: int) -> int:
        """Offsets up to there that were not given: at least as many as records."""
        return max(0, (end if self.stop is None else min(end, self.stop)) - self.given)

    @property
    def done(self) -> bool:
        return self.stop is not None and self.given >= self.stop


class Sizes:
    """The average bytes of a record, by topic, as the driver saw them."""

    def __init__(self) -> None:
        self._average: dict[str, float] = {}
        self._pieces: dict[str, int] = {}

    def learn(self, topic: str, records: int, size: int) -> None:
        if records:
            new = max(1.0, size / records)
            known = self._average.get(topic, new)
            share = max(WEIGHT, min(1.0, records / 1000))
            self._average[topic] = known + share * (new - known)
        self._pieces[topic] = 0

    def of(self, topic: str) -> float | None:
        return self._average.get(topic)

    def guess(self, topic: str, size: float) -> None:
        """Where there was no record to look at."""
        self._average.setdefault(topic, size)
        self._pieces[topic] = 0

    def count(self, topic: str) -> None:
        """A piece of it was given."""
        self._pieces[topic] = self._pieces.get(topic, 0) + 1

    def is_stale(self, topic: str) -> bool:
        return topic not in self._average or self._pieces.get(topic, 0) >= SAMPLE_EVERY


class Tracks:
    """All partitions of a source, and which way they are read now."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_partition: dict[KafkaPartition, Track] = {}
        self._turn = 0  # whose turn it is to give the next piece
        self.sizes = Sizes()
        self.by_pieces = False

    def __contains__(self, partition: object) -> bool:
        return partition in self._by_partition

    def __iter__(self) -> Iterator[Track]:
        """Over all of them, as they are now: other threads ask too."""
        return iter(list(self._by_partition.values()))

    def get(self, partition: KafkaPartition) -> Track | None:
        return self._by_partition.get(partition)

    def add(self, track: Track) -> None:
        self._by_partition[track.partition] = track

    def drop(self, topic: str) -> None:
        for partition in [each for each in self._by_partition if each.topic == topic]:
            del self._by_partition[partition]

    def unread(self, topic: str) -> int:
        return sum(track.unread for track in self if track.partition.topic == topic)

    def note(self, ends: Mapping[KafkaPartition, int]) -> None:
        """An end never moves back: what was known to be there is read, or refused."""
        for partition, end in ends.items():
            track = self._by_partition.get(partition)
            if track is not None and end > track.end:
                track.end = end

    def stop(self, ends: Mapping[KafkaPartition, int]) -> None:
        """Nothing is read beyond what there is now; a partition that ends already ends where it did."""
        for track in self:
            if track.stop is None:
                track.stop = max(track.given, ends.get(track.partition, track.end))

    def confirm(self, positions: Mapping[str, Position]) -> dict[KafkaPartition, int]:
        """Which of them are of partitions that are read here."""
        found = {track.partition: int(upto) for track in self if (upto := positions.get(track.partition.name)) is not None}
        for partition, upto in found.items():
            track = self._by_partition[partition]
            track.committed, ahead = upto, track.ahead
            while ahead and ahead[0] <= upto:
                ahead.popleft()
        return found

    def lags(self, ends: Mapping[KafkaPartition, int]) -> dict[str, int]:
        """By the name of each partition that has something to give; `ends` may be newer than what was noted. For any thread."""
        found = ((track, max(track.end, ends.get(track.partition, 0))) for track in self)
        return {track.partition.name: lag for track, end in found if (lag := track.lag_to(end))}

    def choose(self) -> bool:
        """Which way to read from now on: whether by pieces. What was given stays given, so it may change at any time."""
        lag, size = 0, 0.0
        for track in self._by_partition.values():
            lag += track.lag
            size += track.lag * (self.sizes.of(track.partition.topic) or 0)
        if self.by_pieces:
            self.by_pieces = lag > TAIL_UPTO or size > BYTES_ABOVE * self._max_bytes / 2
        else:
            self.by_pieces = lag > PIECES_ABOVE or size > BYTES_ABOVE * self._max_bytes
        return self.by_pieces

    def unknown(self) -> KafkaPartition | None:
        """A partition to look into, for how large its records are."""
        for track in self._by_partition.values():
            if track.lag and self.sizes.is_stale(track.partition.topic):
                return track.partition
        return None

    def pieces(self) -> list[Piece]:
        """As many as may be given now, of all partitions in turn. A small one only where nothing else of its partition is under way."""
        waiting = [track for track in self if track.lag and self.sizes.of(track.partition.topic) is not None]
        room = MAX_GIVEN - sum(len(track.ahead) for track in self)
        share = max(LEAST_AHEAD, MAX_GIVEN // max(1, len(waiting)))
        found: list[Piece] = []
        self._turn = self._turn % len(waiting) if waiting else 0
        turns = deque(waiting[self._turn :] + waiting[: self._turn])
        while turns and len(found) < room:
            track = turns.popleft()
            most = self._records(track.partition.topic)
            if len(track.ahead) < share and (track.lag >= most or (track.lag and not track.ahead)):
                found.append(self._piece(track, min(most, track.lag)))
                turns.append(track)
                self._turn += 1
        return found

    def _records(self, topic: str) -> int:
        """That a piece may have."""
        return max(1, min(RECORDS_PER_PIECE, int(self._max_bytes / (self.sizes.of(topic) or self._max_bytes))))

    def _piece(self, track: Track, records: int) -> Piece:
        partition, start = track.partition, track.given
        track.given = start + records
        track.ahead.append(track.given)
        self.sizes.count(partition.topic)
        content = encode_piece(KafkaPiece(partition.topic, partition.number, start, track.given, track.known))
        return Piece(content, int(records * (self.sizes.of(partition.topic) or 1)), partition.name, lane_of(partition))


def lane_of(partition: KafkaPartition) -> int:
    """One lane reads a partition, and goes on where it was; partitions of a topic go to lanes next to each other."""
    return zlib.crc32(partition.topic.encode()) + partition.number
