"""A source with partitions on the desk: what its thread says, and what lanes have read of it."""

from __future__ import annotations

import millstream as ms
from millstream.core.parts import Frame, Part
from millstream.mill.messages import Fed, Range, Work
from millstream.timestamp import START_OF_TIME, Timestamp
from tests.conformance.scenes import at
from tests.mill.desk import Desk, graph_of

IDLE = ms.BoundedDisorder(ms.SECOND, idle_after=10 * ms.SECOND)


def house(ledger: Desk | None = None, **settings: object) -> Desk:
    """Both lanes are there. A partition that is silent for ten seconds is left out."""
    known = None if ledger is None else ledger.planner.ledger
    desk = Desk(graph_of(low_watermark=IDLE), ledger=known, **settings)  # type: ignore[arg-type]
    desk.join(0)
    desk.join(1)
    return desk


def unread(desk: Desk, *partitions: str, injector: str = "events") -> None:
    desk.act(desk.planner.on_unread(injector, list(partitions), desk.now))


def deafen(desk: Desk) -> None:
    desk.act(desk.planner.on_unread("events", None, desk.now))


def speak(desk: Desk, **marks: int) -> None:
    """The driver's thread feeds what has these marks."""
    positions: dict[str, int | str] = dict.fromkeys(marks, 1)
    desk.act(desk.planner.on_fed(Fed("events", [], {name: at(second) for name, second in marks.items()}, positions=positions), desk.now))


def piece(partition: str, content: str, *, lane: int = 0, size: int = 1, injector: str = "events") -> Range:
    return Range(injector, lane, size, content.encode(), partition)


def offer(desk: Desk, *pieces: Range) -> None:
    desk.act(desk.planner.on_offered(list(pieces), desk.now))


def read(partition: str, position: int, *frames: Frame, upto: int | None = None, injector: str = "events") -> Fed:
    marks = {} if upto is None else {partition: at(upto)}
    return Fed(injector, list(frames), marks, 1, positions={partition: position}, pieces=1)


def lost(why: str = "no route", *frames: Frame, injector: str = "events") -> Fed:
    return Fed(injector, list(frames), {}, unreachable=why)


def given(desk: Desk, lane: int = 0) -> list[str]:
    return [each.content.decode() for each in desk.last(lane, Work).ranges]


def promise(desk: Desk) -> Timestamp:
    desk.tick(0.02)  # an epoch that only moves promises waits for its time
    return desk.planner.ledger.promises.get("events", START_OF_TIME)


def frame(segment: str, lane: int = 0, offset: int = 0) -> Frame:
    return Frame(segment, lane, [Part(offset, 10, 0, lane, "events", "", "events", 0, 1, at(1))])
