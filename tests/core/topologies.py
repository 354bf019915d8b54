"""Generated topologies with generated scripts, as data: played on any stage, and folded by hand.

A node adds up what comes in a window, and says it once the window is complete; or it passes on what comes; or it sends a
record round a few times first. While the promises in the script are kept, what it says depends on the input alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st

import millstream as ms
from tests.invariants import Entry, Logged

START = 10**15
SECOND = 1_000_000
LONG_AFTER = 10**12  # on the wall clock: after all naps
KEYS = ("a", "b", "ключ", "")
NAP = 2 * SECOND


# The case.


@dataclass(frozen=True)
class Item:
    """What flows. Of several, the numbers and the weights are added up."""

    key: str
    number: int
    weight: int
    at: int


@dataclass(frozen=True)
class Read:
    """A stream as a node reads it: under its own key, or under the number modulo `by`."""

    stream: str
    by: int = 0

    def key(self, key: str, item: Item) -> str:
        return f"{item.number % self.by}" if self.by else key


@dataclass(frozen=True)
class Node:
    """A computation of the topology, called n0, n1, ... by its place."""

    reads: tuple[Read, ...]
    window: int = 1  # seconds; 0 passes on what comes
    early: bool = False  # says a window at the time of its first record, and holds that; else at its end
    laps: int = 0  # how often a record goes round before it counts
    lap_by: int = 0  # and under which key it comes back
    naps: bool = False  # sets, replaces and cancels timers on both clocks beside
    late: str = "process"


@dataclass(frozen=True)
class Send:
    injector: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Promise:
    injector: int
    upto: int


@dataclass(frozen=True)
class Finish:
    injector: int


@dataclass(frozen=True)
class Tick:
    """What the wall clock says now, be it earlier."""

    now: int


@dataclass(frozen=True)
class Crash:
    """The next epoch is run twice, or the whole query is torn down: as the stage has it."""


Step = Send | Promise | Finish | Tick | Crash


@dataclass(frozen=True)
class Case:
    """A topology and what happens to it. After the script, all input ends and a long time goes by.

    `limit`, `pace` and `crashes` are for a driver: the records of an epoch, the most epochs after each step, and, bit by
    bit, which of its epochs crash.
    """

    injectors: int
    nodes: tuple[Node, ...]
    script: tuple[Step, ...]
    limit: int = 1_000_000
    pace: tuple[int, ...] = ()
    crashes: int = 0


Said = Counter[tuple[str, int, int, int]]  # key, number, weight and timestamp


# The same by hand.


def fold(case: Case) -> dict[str, Said]:
    """What each node must say, computed from lists alone."""
    streams: dict[str, list[tuple[str, Item, int]]] = {f"in{number}": [] for number in range(case.injectors)}
    for step in case.script:
        if isinstance(step, Send):
            streams[f"in{step.injector}"] += [(item.key, item, item.at) for item in step.items]
    for number, node in enumerate(case.nodes):
        streams[f"n{number}"] = _fold_node(
            node, [(read.key(key, item), item, at) for read in node.reads for key, item, at in streams[read.stream]]
        )
    return {
        f"n{number}": Counter((key, item.number, item.weight, at) for key, item, at in streams[f"n{number}"])
        for number in range(len(case.nodes))
    }


def _fold_node(node: Node, came: list[tuple[str, Item, int]]) -> list[tuple[str, Item, int]]:
    if node.laps and node.lap_by:
        came = [(f"{item.number % node.lap_by}", item, at) for _, item, at in came]
    if not node.window:
        return [(key, Item(key, item.number, item.weight + 1, at), at) for key, item, at in came]
    said = []
    size = node.window * SECOND
    for key, start in {(key, at - at % size) for key, _, at in came}:
        within = [(item, at) for other, item, at in came if (other, at - at % size) == (key, start)]
        when = min(at for _, at in within) if node.early else start + size
        item = Item(key, sum(item.number for item, _ in within), sum(item.weight for item, _ in within), when)
        said.append((key, item, when))
    return said


# The computations.


@dataclass(frozen=True)
class Lap:
    """An item on its way round."""

    item: Item
    left: int


@dataclass(frozen=True)
class Note:
    """A line of a diary; `told` is what the state says of a timer that fires."""

    does: str
    tag: str
    at: int
    wall: bool
    told: int | None
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

    def process_record(self, record: ms.Record[Item]) -> None:
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
        self.note("fire", timer.tag, int(timer.at), wall, stamp, told=self.state.pending.pop(timer.tag, None))
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

    def note(self, does: str, tag: str, at: int, wall: bool, stamp: Any, told: int | None = None) -> None:
        self.diary.produce(Note(does, tag, at, wall, told, int(self.low_watermark), int(self.now)), timestamp=stamp)


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
    injected = tuple(_inject(topology, f"in{number}") for number in range(case.injectors))
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


def _inject(topology: ms.Topology, name: str) -> ms.Stream[Item]:
    return topology.inject(
        name,
        ms.values([], Item),
        key=lambda item: item.key,
        timestamp=lambda item: ms.Timestamp(item.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
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
    for record in sorted((record for record in made if record.stream.endswith(".diary")), key=lambda record: record.id):
        note = _decode_note(record.value)
        name = record.stream.removesuffix(".diary")
        does: Any = note.does
        found.append((Entry(name, record.key, does, note.tag, note.at, note.wall, note.low_watermark, note.now), note.told))
    return found


# Making one up. Few draws and small ones: an integer is taken apart where several choices would do.


@st.composite
def cases(draw: st.DrawFn, *, honest: bool = True) -> Case:
    """Any topology and any script; an honest one keeps its promises."""
    injectors = draw(st.integers(1, 3))
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 5))):
        streams = [f"in{n}" for n in range(injectors)] + [f"n{n}" for n in range(number)]
        nodes.append(_node(draw(st.integers(0, 2**24 - 1)), streams, honest=honest))
    rounds = draw(st.lists(st.tuples(st.integers(0, 2**12 - 1), st.lists(st.integers(0, 2**9 - 1), max_size=5)), max_size=7))
    return Case(
        injectors,
        tuple(nodes),
        _script(rounds, injectors, honest=honest),
        limit=draw(st.sampled_from([1, 2, 4, 1_000_000])),
        pace=tuple(draw(st.lists(st.integers(0, 4), max_size=8))),
        crashes=draw(st.integers(0, 2**16 - 1)) & draw(st.integers(0, 2**16 - 1)),
    )


def case_of(chance: random.Random) -> Case:
    """An honest case from a seed, none of its parts small: for a stage on which few can be played."""
    injectors = chance.randint(1, 3)
    nodes: list[Node] = []
    for number in range(chance.randint(2, 4)):
        streams = [f"in{n}" for n in range(injectors)] + [f"n{n}" for n in range(number)]
        nodes.append(_node(chance.randrange(2**24), streams, honest=True))
    rounds = [(chance.randrange(2**12), [chance.randrange(2**9) for _ in range(chance.randint(2, 6))]) for _ in range(chance.randint(3, 6))]
    return Case(injectors, tuple(nodes), _script(rounds, injectors, honest=True))


def _node(choice: int, streams: list[str], *, honest: bool) -> Node:
    choice, mask = divmod(choice, 2 ** len(streams))
    choice, bys = divmod(choice, 3 ** min(len(streams), 5))
    reads = tuple(
        Read(stream, (0, 2, 3)[bys // 3**place % 3])
        for place, stream in enumerate(streams)
        if mask >> place & 1 or (not mask and place == 0)
    )
    choice, shape = divmod(choice, 4 * 2 * 2)
    window, early, naps = shape % 4, shape // 4 % 2, shape // 8
    laps = (0, 0, 0, 1, 3)[choice % 5]
    late = ("process", "drop", "divert")[choice % 3] if not honest else "drop"
    return Node(reads, window, bool(early) and not laps, laps, (0, 2)[choice % 2] if laps else 0, bool(naps), late)


def _script(rounds: list[tuple[int, list[int]]], injectors: int, *, honest: bool) -> tuple[Step, ...]:
    """Each round sends some items to one injector, and may promise, tick or crash."""
    sends: list[Send] = []
    for number, (choice, items) in enumerate(rounds):
        made = tuple(Item(KEYS[n % 4], n // 4 % 8, 1 + 10 * number + place, START + n // 32 * SECOND // 2) for place, n in enumerate(items))
        sends.append(Send(choice % injectors, made))
    script: list[Step] = []
    for number, (send, (choice, _)) in enumerate(zip(sends, rounds, strict=True)):
        choice //= 3
        choice, crashes = divmod(choice, 6)
        choice, ticks = divmod(choice, 3)
        script += [Crash()] if crashes == 0 else []
        script.append(send)
        script += [Tick((number + 1) * 3 * SECOND * (1 - choice % 2))] if ticks == 0 else []
        script += _promise(choice % 7, send.injector, sends[number + 1 :], honest=honest)
    return tuple(script)


def _promise(choice: int, injector: int, rest: list[Send], *, honest: bool) -> list[Step]:
    """Nothing, or a promise that the rest keeps (sometimes just so), or the end if nothing follows."""
    ahead = [item.at for send in rest if send.injector == injector for item in send.items]
    slack = (None, 0, 1, SECOND // 2, 2 * SECOND, 0, 0)[choice]
    if slack is None:
        return []
    if not ahead and choice == 6:
        return [Finish(injector)]
    if not honest and choice in (1, 2):
        slack = -3 * SECOND
    return [Promise(injector, min(ahead, default=START + 9 * SECOND) - slack)]
