"""A journal and a log in memory, as deliveries see them, and records to put there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.core.codec import encode_value
from millstream.core.graph import StreamPlan
from millstream.core.parts import Columns, Dealt, Part
from millstream.delivery import CallSink, Delivery
from millstream.target import DeliveryContext
from millstream.targets.delivery import Stretch
from millstream.targets.driver import DeliveryThread
from millstream.targets.lacking import Epoch, Place, Tail
from millstream.targets.opening import open_delivery
from millstream.targets.records import stretch

STREAM = StreamPlan("numbers", int)
TIMEOUT = 60.0  # seconds; a bound, never an expectation


class Killed(BaseException):
    """The process ends here."""


def part(values: Sequence[Any], *, at: Sequence[int], origin: str = "numbers", major: int, minors: Sequence[int]) -> Dealt:
    columns = Columns([f"k{value}" for value in values], [encode_value(value) for value in values], [ms.Timestamp(t) for t in at], minors)
    return Dealt(0, "numbers", "", origin, major, columns)


@dataclass
class FakeJournal:
    """Commits 1, 2, 3… of one stream. Up to `logged` they are to be had from the log only."""

    epochs: list[list[Dealt]] = field(default_factory=list)
    logged: int = 0
    owner: bool = True
    said: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    histories: list[tuple[int, int, int | None]] = field(default_factory=list)
    reads: int = 0

    @property
    def newest(self) -> int:
        return len(self.epochs)

    def commit(self, *values: int, at: Sequence[int] | None = None) -> tuple[int, list[Place]]:
        """One more epoch with these records, at their values as timestamps if none are given."""
        number = self.newest + 1
        self.epochs.append([part(values, at=at or values, major=number, minors=range(len(values)))] if values else [])
        return number, self.places(number)

    def commit_dealt(self, *dealt: Dealt) -> tuple[int, list[Place]]:
        self.epochs.append(list(dealt))
        return self.newest, self.places(self.newest)

    def places(self, number: int) -> list[Place]:
        return [(f"segment {number}", each.placed(n, 0, 0)) for n, each in enumerate(self.epochs[number - 1])]

    def read_part(self, segment: str, part: Part) -> Columns:
        number = int(segment.split()[1])
        assert number > self.logged, "it was let go"
        self.reads += 1
        return self.epochs[number - 1][part.offset].columns

    def read_tail(self, after: int) -> Tail:
        self.asked.append(after)
        first = max(after, self.logged) + 1
        return Tail(self.logged, self.newest, [Epoch(n, self.places(n)) for n in range(first, self.newest + 1)])

    def read_history(self, after: int, upto: int, at_most: int | None) -> Stretch:
        assert after < upto <= self.logged
        self.histories.append((after, upto, at_most))
        return stretch(((number, self.epochs[number - 1]) for number in range(after + 1, upto + 1)), upto, at_most)

    def still_owner(self) -> bool:
        return self.owner

    def say(self, position: int) -> None:
        self.said.append(position)


@dataclass
class Called(ms.Target):
    """A target that keeps what it was called with."""

    numbered: bool = True  # type: ignore[misc]
    calls: list[tuple[int, list[int]]] = field(default_factory=list)

    def open(self, context: DeliveryContext) -> ms.Sink:
        return CallSink(self.call)

    def call(self, k: int, records: list[ms.Record[Any]]) -> None:
        self.calls.append((k, [record.value for record in records]))


def delivery(
    journal: FakeJournal, target: ms.Target, at: Path, *, fence: int = 1, stream: StreamPlan = STREAM, name: str = "out"
) -> DeliveryThread:
    """A delivery as a run starts it, with what is kept under `at`."""
    context, connection, steps = open_delivery(
        Delivery(name, None, target),  # type: ignore[arg-type]
        stream,
        at / "deliveries" / name,
        fence=fence,
        delivered=max(journal.said, default=0),
        newest=journal.newest,
    )
    return DeliveryThread(context, connection, steps, journal, newest=journal.newest)


def deliver_all(journal: FakeJournal, target: ms.Target, at: Path, *, fence: int = 1, stream: StreamPlan = STREAM) -> DeliveryThread:
    """Start, deliver all that is committed, and stop; or end as it ends."""
    thread = delivery(journal, target, at, fence=fence, stream=stream)
    thread.start()
    thread.stop(journal.newest, TIMEOUT)
    return thread
