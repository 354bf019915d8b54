"""What the stages on a journal have in common: a source that gives again what no commit has, and readers of what is committed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import millstream as ms
from millstream.core.codec import value_decoder
from millstream.core.epoch import Tally
from millstream.core.graph import DEAD_LETTERS, compile_topology
from millstream.core.lanes import Lanes
from millstream.core.ledger import Ledger
from millstream.core.parts import NO_LANE
from millstream.core.route import Dealer
from millstream.injector import InjectedStream
from millstream.journal.commits import Commits
from millstream.journal.disk import Disk
from millstream.journal.segments import SegmentReader, SegmentWriter
from millstream.log.status import Status, status_from
from millstream.mill.actions import Fed
from millstream.sources.dealing import Intake

V = TypeVar("V")


@dataclass(frozen=True)
class Given:
    """What a scene gave to an injector at once. The source counts these: its position is how many a commit has."""

    values: tuple[Any, ...] = ()
    marks: dict[str, ms.Timestamp] = field(default_factory=dict)
    finished: bool = False


class JournaledStage(ABC):
    """A mill on a journal, in whichever process its lanes are. The clock stands still until a scene moves it."""

    def __init__(self, topology: ms.Topology, *, buckets: int, lanes: int) -> None:
        self.graph = compile_topology(topology)
        self.lanes = Lanes(buckets, lanes)
        self.now = ms.Timestamp(0)
        dealer = Dealer(self.graph, self.lanes)
        self._intakes = {name: Intake(injection, dealer) for name, injection in self.graph.injections.items()}
        self._given: dict[str, list[Given]] = {name: [] for name in self.graph.injections}

    # What the mill is.

    @property
    @abstractmethod
    def disk(self) -> Disk: ...

    @abstractmethod
    def unique(self) -> str: ...

    @abstractmethod
    def feed(self, fed: Fed) -> None: ...

    @abstractmethod
    def tell_unread(self, injector: str, partitions: list[str]) -> None: ...

    @abstractmethod
    def settle(self) -> None:
        """Until nothing is due."""

    @abstractmethod
    def ledger(self) -> Ledger: ...

    @abstractmethod
    def take_over(self, while_away: Callable[[], None]) -> None:
        """The run ends wherever it is, without a checkpoint; `while_away` happens; a new one takes over."""

    # What a scene does.

    def send(self, stream: ms.Stream[V], *values: V) -> None:
        assert isinstance(stream, InjectedStream)
        self._give(stream.name, Given(values))
        self.settle()

    def advance(
        self,
        *,
        low_watermark: ms.Timestamp | None = None,
        now: ms.Timestamp | None = None,
        of: ms.Stream[Any] | None = None,
        partition: str = "",
    ) -> None:
        if now is not None:
            self.now = max(now, self.now)
        if low_watermark is not None:
            for name in self._named(of):
                self._give(name, Given(marks={partition: low_watermark}))
        self.settle()

    def jump(self, now: ms.Timestamp) -> None:
        self.now = now
        self.settle()

    def finish(self, of: ms.Stream[Any] | None = None) -> None:
        for name in self._named(of):
            self._give(name, Given(finished=True))
        self.settle()

    def crash(self, *, low_watermark: ms.Timestamp | None = None, now: ms.Timestamp | None = None) -> None:
        """The clocks move while nothing runs."""

        def move() -> None:
            if now is not None:
                self.now = max(now, self.now)
            if low_watermark is not None:
                for given in self._given.values():
                    given.append(Given(marks={"": low_watermark}))

        self.take_over(move)
        self.settle()

    def read(self, stream: ms.Stream[V]) -> list[ms.Record[V]]:
        plan = self.graph.stream_of(stream)
        decode = value_decoder(plan.value_type)
        return [ms.Record(key, decode(value), timestamp) for key, value, timestamp in self._records(plan.name)]

    def dead_letters(self) -> list[ms.DeadLetter]:
        decode = value_decoder(ms.DeadLetter)
        return [decode(value) for _, value, _ in self._records(DEAD_LETTERS)]

    def low_watermark(self, name: str) -> ms.Timestamp:
        status = self._status()
        if name in status.computations:
            return status.computations[name].low_watermark
        return status.streams[name].low_watermark

    def tally(self, computation: str) -> Tally:
        return self._status().computations[computation].tally

    def keys(self, computation: str) -> int:
        return self._status().computations[computation].keys

    def timers(self, computation: str) -> int:
        return self._status().computations[computation].timers

    # The source.

    def open_source(self, ledger: Ledger) -> None:
        """A run has begun: its source writes to a segment of its own, and gives again what no commit has."""
        self._writer = SegmentWriter(self.disk, "scene", self.unique)
        for name, given in self._given.items():
            known = ledger.sources.get(name)
            self.tell_unread(name, [])  # as a source's thread does: nothing is promised before
            for place in range(0 if known is None else int(known.positions.get("", 0)), len(given)):
                self.feed(self._fed(name, place))

    def close_source(self) -> None:
        self._writer.close()

    def _give(self, injector: str, given: Given) -> None:
        self._given[injector].append(given)
        self.feed(self._fed(injector, len(self._given[injector]) - 1))

    def _fed(self, injector: str, place: int) -> Fed:
        given = self._given[injector][place]
        first = sum(len(earlier.values) for earlier in self._given[injector][:place])
        found = self._intakes[injector].take(ms.Batch.of(given.values, first), now=ms.END_OF_TIME, arrived=self.now)
        frames = [self._writer.append(found.dealt, lane=NO_LANE)] if found.dealt else []
        return Fed(
            injector,
            frames,
            given.marks,
            found.injected,
            found.dead,
            positions={"": place + 1},
            finished=given.finished or None,
            open_segments=[frame.segment for frame in frames],
        )

    def _named(self, of: ms.Stream[Any] | None) -> list[str]:
        return [of.name] if isinstance(of, InjectedStream) else list(self._given)

    # What is committed.

    def _status(self) -> Status:
        return status_from(self.ledger(), self.graph.name, running=True, now=self.now)

    def _records(self, stream: str) -> list[tuple[str, bytes, ms.Timestamp]]:
        """Commit by commit, in each in the order of ids. Nothing is ever logged here, so the journal keeps it all."""
        reader = SegmentReader(self.disk, sleep=time.sleep)
        found: list[tuple[str, bytes, ms.Timestamp]] = []
        for commit in Commits(self.disk).span(1, self.ledger().number):
            parts = [(frame.segment, part) for frame in commit.frames for part in frame.parts if part.stream == stream and not part.reader]
            records: list[tuple[tuple[int, int], tuple[str, bytes, ms.Timestamp]]] = []
            for segment, part in parts:
                columns = reader.part(segment, part)
                rows = zip(columns.minors, columns.keys, columns.values, columns.timestamps, strict=True)
                records += [((part.major, minor), (key, value, timestamp)) for minor, key, value, timestamp in rows]
            found += [record for _, record in sorted(records)]
        return found
