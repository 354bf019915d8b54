"""A source that gives what a test says, and the door of its thread: all that it said, in its order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.lanes import Lanes
from millstream.core.ledger import Commit, SourceChange, SourceProgress
from millstream.core.route import Dealer
from millstream.mill.messages import Fed, Range
from millstream.source import Batch, Piece, Position, Source, SourceContext, SourceReader
from millstream.sources.dealing import Intake
from millstream.sources.pieces import context_of
from millstream.sources.thread import SourceThread
from tests.sources.test_values import TIMEOUT, Click, Count, FakeWriter, T
from tests.waiting import wait_until

Step = Sequence[Batch | Piece] | Exception


class Scripted(Source[Click]):
    """Gives one step after the other, whoever opens it; then nothing more, and it ends where it may."""

    value_type = Click
    gives_pieces = True

    def __init__(
        self, *steps: Step | Callable[[], Step], opens: Sequence[Exception | None] = (), ends: bool = True, bounded: bool = True
    ) -> None:
        self.steps, self.opens, self.ends, self.bounded = list(steps), list(opens), ends, bounded
        self.opened: list[dict[str, Position]] = []
        self.confirmed: list[dict[str, Position]] = []
        self.lags: dict[str, int] = {}
        self.closed = self.finished = 0
        self.complete = True
        self.left: str | None = None
        self.says: str | None = None
        self.raises: dict[str, Exception] = {}  # by method, once

    def describe(self) -> str:
        return "a script"

    def open(self, context: SourceContext) -> SourceReader:
        if self.opens and (error := self.opens.pop(0)) is not None:
            raise error
        self.opened.append(dict(context.positions))
        return ScriptedReader(self)

    def may(self, method: str) -> None:
        if method in self.raises:
            raise self.raises.pop(method)


class ScriptedReader(SourceReader):
    def __init__(self, source: Scripted) -> None:
        self.source = source

    def poll(self, at_most: int, timeout: float) -> Sequence[Batch | Piece]:
        if not self.source.steps:
            threading.Event().wait(min(timeout, 0.005))
            return []
        step = self.source.steps.pop(0)
        step = step() if callable(step) else step
        if isinstance(step, Exception):
            raise step
        return step

    def confirm(self, positions: Mapping[str, Position]) -> None:
        self.source.may("confirm")
        self.source.confirmed.append(dict(positions))

    def finish(self) -> None:
        super().finish()
        self.source.finished += 1

    def ended(self) -> bool:
        self.source.may("ended")
        return self.source.ends or self.finishing

    def is_complete(self) -> bool:
        return self.source.complete

    def lag(self) -> Mapping[str, int]:
        return self.source.lags

    @property
    def trouble(self) -> str | None:
        return self.source.says

    def close(self) -> None:
        self.source.closed += 1
        self.left_running = self.source.left
        self.source.may("close")


@dataclass
class Door:
    """The door of a thread: all that it said, in its order. Commits are made by hand."""

    source: Scripted
    positions: dict[str, int | str] = field(default_factory=dict)
    said: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        topology = ms.Topology("clicks")
        stream = topology.inject(
            "clicks",
            self.source,
            key=lambda click: click.user,
            timestamp=lambda click: ms.Timestamp(click.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        topology.compute("count", Count()).reads(stream)
        graph = compile_topology(topology)
        injection = graph.injections["clicks"]
        self.writer, self.room = FakeWriter(), threading.Event()
        self.room.set()
        intake = Intake(injection, Dealer(graph, Lanes(16, 1)))
        context = context_of(injection, SourceProgress(positions=self.positions))
        self.thread = SourceThread(injection, context, intake, self.writer, self, clock=lambda: ms.Timestamp(T))

    # The door, for the thread.

    def feed(self, fed: Fed) -> None:
        self.said.append(("end" if fed.finished else "fed", dict(fed.positions)))

    def offer(self, ranges: list[Range]) -> None:
        self.said += [("offered", each.content.decode()) for each in ranges]

    def unread(self, injector: str, partitions: list[str] | None) -> None:
        assert injector == "clicks"
        self.said.append(("unread", partitions))

    def has_room(self, timeout: float) -> bool:
        return self.room.wait(timeout)

    # For tests.

    def commit(self, pieces: int = 0, **positions: int) -> None:
        change = SourceChange(positions=dict(positions), pieces=pieces)
        self.thread.on_commit(Commit(1, "c", "", 1, ms.Timestamp(T), sources={"clicks": change}))

    def start(self) -> Door:
        self.thread.start()
        return self

    def ended(self) -> Door:
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()
        assert self.writer.closed
        return self

    def stopped(self) -> Door:
        self.thread.stop()
        return self.ended()

    def wait_for(self, what: str, about: Any) -> None:
        wait_until(lambda: (what, about) in self.said)

    @property
    def passed_on(self) -> list[tuple[str, Any]]:
        return [each for each in self.said if each[0] != "unread"]


def batch(first: int, count: int = 1, partition: str = "a") -> Batch:
    return Batch.of([Click("anna", T + n) for n in range(first, first + count)], first, partition=partition)


def piece(name: str, partition: str = "a") -> Piece:
    return Piece(name.encode(), 1, partition)


def gone(why: str = "no route") -> ms.Unreachable:
    return ms.Unreachable(why)


def waits_for_lanes(harness: Door) -> bool:
    return harness.thread._pieces > 0 and not harness.source.steps
