"""The topology of a generated case, played on any stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

import millstream as ms
from tests.core.cases import SECOND, START, Case, Crash, Finish, Item, Node, Promise, Said, Send, Tick
from tests.observed import Entry, Logged

LONG_AFTER = 10**12  # on the wall clock: after all naps
NAP = 2 * SECOND


# The computations.


@dataclass(frozen=True)
class Lap:
    """An item on its way round."""

    item: Item
    left: int


@dataclass(frozen=True)
class Note:
    """A line of a diary; `in_state` is what the state says of a timer that fires."""

    does: str
    tag: str
    at: int
    wall: bool
    in_state: int | None
    low_watermark: int
    now: int


@dataclass
class Sum:
    number: int
    weight: int
    first: int


@dataclass
class Kept:
    """The sums of open windows by their start, and the times of all pending timers by tag."""

    sums: dict[int, Sum] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)


class Adding(ms.Computation[Kept]):
    """Keeps a diary of all that it does with timers, and their times in its state."""

    sums: ms.Output[Item]
    late: ms.Output[Item | Lap]
    diary: ms.Output[Note]

    def __init__(self, node: Node) -> None:
        self.node = node
        self.order = ms.Order.EVENT_TIME if node.in_order else ms.Order.ARRIVAL

    def process_record(self, record: ms.Record[Item]) -> None:
        if self.node.in_order and not record.late:
            self.note("record", record.id.partition("/")[0], int(record.timestamp), False, record.timestamp)
        self.add(record.value, record.timestamp)

    def add(self, item: Item, timestamp: Any) -> None:
        if self.node.naps:
            self.nap(item, timestamp)
        if not self.node.window:
            self.sums.produce(Item(self.key, item.number, item.weight + 1, timestamp), timestamp=timestamp)
            return
        size = self.node.window * SECOND
        start = timestamp - timestamp % size
        found = self.state.sums.setdefault(start, Sum(0, 0, timestamp))
        found.number, found.weight, found.first = found.number + item.number, found.weight + item.weight, min(found.first, timestamp)
        self.begin(f"{start}", start + size, hold=found.first if self.node.early else None, stamp=timestamp)

    def nap(self, item: Item, timestamp: Any) -> None:
        """Timers that say nothing but in the diary: replaced by every record, cancelled by some."""
        self.begin("next", timestamp + 2 * SECOND, stamp=timestamp)
        if item.number % 3:
            self.begin("nap", self.now + NAP, wall=True, stamp=timestamp)  # type: ignore[operator]
        elif "nap" in self.state.pending:
            self.cancel_timer("nap")
            self.note("cancel", "nap", self.state.pending.pop("nap"), True, timestamp)

    def process_timer(self, timer: ms.Timer) -> None:
        wall = timer.clock is ms.Clock.WALL
        stamp = timer.at if timer.hold is None else timer.hold
        self.note("fire", timer.tag, int(timer.at), wall, stamp, in_state=self.state.pending.pop(timer.tag, None))
        if timer.tag == "next":
            self.begin("again", self.now + NAP, wall=True, stamp=stamp)  # type: ignore[operator]
        elif timer.tag == "nap" and self.low_watermark < ms.END_OF_TIME:
            self.begin("wake", max(int(self.low_watermark), START) + SECOND, stamp=stamp)
        elif timer.tag.isdecimal():
            found = self.state.sums.pop(int(timer.tag))
            when = found.first if self.node.early else timer.at
            self.sums.produce(Item(self.key, found.number, found.weight, int(when)), timestamp=when)  # type: ignore[arg-type]
            if "next" in self.state.pending:  # put off, be it due
                self.begin("next", self.state.pending["next"] + SECOND, stamp=stamp)

    def begin(self, tag: str, at: Any, *, stamp: Any, wall: bool = False, hold: Any = None) -> None:
        self.set_timer(tag, at, clock=ms.Clock.WALL if wall else ms.Clock.LOW_WATERMARK, hold=hold)
        self.state.pending[tag] = int(at)
        self.note("set", tag, int(at), wall, stamp)

    def note(self, does: str, tag: str, at: int, wall: bool, stamp: Any, in_state: int | None = None) -> None:
        self.diary.produce(Note(does, tag, at, wall, in_state, int(self.low_watermark), int(self.now)), timestamp=stamp)


class Rounds(Adding):
    """Sends what comes round by way of its own stream before it adds it up."""

    again: ms.Output[Lap]

    def process_record(self, record: ms.Record[Item | Lap]) -> None:
        left = self.node.laps + 1 if isinstance(record.value, Item) else record.value.left
        item = record.value if isinstance(record.value, Item) else record.value.item
        if left > 1:
            self.again.produce(Lap(item, left - 1), timestamp=record.timestamp)
        else:
            self.add(item, record.timestamp)


@dataclass(frozen=True)
class Built:
    """A case made ready to run. Its computations are called n0, n1, ...; their streams n0.sums, n0.diary, ..."""

    topology: ms.Topology
    injected: tuple[ms.Stream[Item], ...]
    computations: dict[str, Adding]


def build(case: Case) -> Built:
    topology = ms.Topology("generated")
    injected = tuple(_inject(topology, case, number) for number in range(case.injectors))
    streams: dict[str, ms.Stream[Any]] = {f"in{number}": stream for number, stream in enumerate(injected)}
    computations: dict[str, Adding] = {}
    for number, node in enumerate(case.nodes):
        it = Rounds(node) if node.laps else Adding(node)
        reads = [_by(streams[read.stream], read.by, lambda item: item.number) for read in node.reads]
        if isinstance(it, Rounds):
            reads.append(_by(it.again, node.lap_by, lambda lap: lap.item.number))
        late: Any = {"process": ms.Late.PROCESS, "drop": ms.Late.DROP, "divert": ms.Divert(it.late)}[node.late]
        topology.compute(f"n{number}", it).reads(*reads, late=late)
        computations[f"n{number}"] = it
        streams[f"n{number}"] = it.sums
    return Built(topology, injected, computations)


def _inject(topology: ms.Topology, case: Case, number: int) -> ms.Stream[Item]:
    idle_after = dict(enumerate(case.idle)).get(number, 0) * ms.SECOND
    timed = ms.BoundedDisorder(ms.SECOND, idle_after=idle_after if idle_after > 0 * ms.SECOND else None)
    return topology.inject(
        f"in{number}",
        ms.values([], Item),
        key=lambda item: item.key,
        timestamp=lambda item: ms.Timestamp(item.at),
        low_watermark=ms.Timeless() if dict(enumerate(case.timeless)).get(number, False) else timed,
    )


def _by(stream: ms.Stream[Any], by: int, number: Callable[[Any], int]) -> ms.Stream[Any]:
    return stream.by(lambda value: f"{number(value) % by}") if by else stream


# Playing it.


@dataclass(frozen=True)
class Played:
    """A stage after the last step, and what was said on it."""

    built: Built
    stage: Any
    said: dict[str, Said]


def play(case: Case, perform: Callable[[ms.Topology], Any]) -> Played:
    """The whole script on the stage that `perform` makes, then the end of all input, then a long time."""
    built = build(case)
    stage = perform(built.topology)
    for step in case.script:
        match step:
            case Send(injector, items):
                stage.send(built.injected[injector], *items)
            case Promise(injector, upto):
                if not dict(enumerate(case.timeless)).get(injector, False):
                    stage.advance(low_watermark=ms.Timestamp(upto), of=built.injected[injector])
            case Finish(injector):
                stage.finish(of=built.injected[injector])
            case Tick(now):
                stage.jump(ms.Timestamp(now))
            case Crash():
                stage.crash()
    stage.finish()
    stage.advance(now=ms.Timestamp(LONG_AFTER))
    return Played(built, stage, {name: _said(stage.read(it.sums)) for name, it in built.computations.items()})


def _said(records: Iterable[ms.Record[Item]]) -> Said:
    return Counter((record.key, record.value.number, record.value.weight, int(record.timestamp)) for record in records)


_decode_note = msgspec.json.Decoder(Note).decode


def diary_of(made: Iterable[Logged]) -> list[tuple[Entry, int | None]]:
    """The diaries among the records of an epoch, in the order of production: what was done, and what the state told of it."""
    found = []
    for record in sorted((record for record in made if record.stream.endswith(".diary")), key=lambda record: record.id[1:]):
        note = _decode_note(record.value)
        name = record.stream.removesuffix(".diary")
        does: Any = note.does
        found.append((Entry(name, record.key, does, note.tag, note.at, note.wall, note.low_watermark, note.now), note.in_state))
    return found
