"""What is played: a generated topology with its input, and programs that differ from start to start."""

from __future__ import annotations

import copy
import enum
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import millstream as ms
from millstream.core.graph import Graph, compile_topology
from tests.core.cases import KEYS, SECOND, START, Case, Finish, Item, Promise, Send, Step, case_of, fold
from tests.core.topologies import Adding, Rounds
from tests.simulation.profile import Profile

LONG_AFTER = 10**12
QUIET = "quiet"  # an injector that says little


class Chance:
    """What makes code differ from one run of it to the next: a number that nobody gets twice. A world begins at 0."""

    drawn = 0

    @classmethod
    def draw(cls) -> int:
        cls.drawn += 1
        return cls.drawn


@dataclass(frozen=True)
class Seen:
    """What a probe says of a record: the how manieth of its key it was, and the draws of the one before and of this one."""

    number: int
    weight: int
    at: int
    count: int
    before: int
    drawn: int


@dataclass
class Counted:
    count: int = 0
    drawn: int = 0


class Probe(ms.Computation[Counted]):
    """Counts the records of each key and passes on each of them. Comes and goes with the program, and does not repeat itself.

    One that forgets keeps nothing of a key after a record with an odd number: its rows come and go. One in order sees them in
    that of event time: what waits for it is there still when it comes back.
    """

    seen: ms.Output[Seen]

    def __init__(self, *, forgets: bool = False, poisoned: bool = False, in_order: bool = False) -> None:
        self.forgets, self.poisoned = forgets, poisoned
        self.order = ms.Order.EVENT_TIME if in_order else ms.Order.ARRIVAL

    def process_record(self, record: ms.Record[Item]) -> None:
        if self.poisoned and record.value.number % 3 == 1:
            raise ValueError("this program is not right yet")
        item, before, drawn = record.value, self.state.drawn, Chance.draw()
        self.state.count += 1
        self.state.drawn = drawn
        self.seen.produce(Seen(item.number, item.weight, item.at, self.state.count, before, drawn), timestamp=record.timestamp)
        if self.forgets and item.number % 2:
            self.state.count = self.state.drawn = 0


@dataclass(frozen=True)
class ProbeAt:
    """A probe in a program: what it reads, and under which keys."""

    name: str
    stream: str  # in0, n1 …
    by: int
    forgets: bool = False
    poisoned: bool = False
    in_order: bool = False


class Kind(enum.Enum):
    """Who delivers, and to what."""

    FUNCTION = "function"  # in the driver, in numbered steps
    TABLE = "table"  # by the writer, with a position of its own in the table
    FILES = "files"  # by the writer, in numbered steps


@dataclass(frozen=True)
class DeliveryOf:
    name: str
    stream: str
    kind: Kind = Kind.FUNCTION


@dataclass(frozen=True)
class Program:
    """The code of a run: all nodes of the case, probes before and after them, deliveries, streams that are not kept."""

    before: tuple[ProbeAt, ...] = ()
    after: tuple[ProbeAt, ...] = ()
    deliveries: tuple[DeliveryOf, ...] = ()
    unkept: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Entry:
    """One thing that a source gives: an item, or how far it is complete."""

    item: Item | None = None
    complete: int | None = None


class Scene:
    """The case, the sources by injector, and the programs in the order in which they are started. The last one has no error."""

    def __init__(
        self, rng: random.Random, profile: Profile, *, keys: int, idle_after: ms.Duration | None, quiet: ms.Duration | None = None
    ) -> None:
        """`quiet`: all computations of the case read one more injector, which says little, and is idle after so long."""
        self.case, self.idle_after, self.quiet = _small(rng, keys, in_order=profile.in_order), idle_after, quiet
        self.unheard: frozenset[str] = frozenset()  # injectors of which nobody says what is unread: they may not be idle
        self._graphs: dict[int, Graph] = {}
        self.said = {f"{name}.sums": said for name, said in fold(self.case).items()}
        self.sources = {f"in{n}": _entries(self.case, n) for n in range(self.case.injectors)}
        streams = [*self.sources, *(f"n{n}" for n in range(len(self.case.nodes)))]
        known = [ProbeAt(f"p{n}", rng.choice(streams), rng.choice((0, 0, 2, 3)), rng.random() < 0.4) for n in range(rng.randint(1, 3))]
        if keys > len(KEYS):  # rows come and go while anything comes in
            known = [replace(probe, stream=rng.choice([*self.sources]), by=0, forgets=True) for probe in known]
        if profile.in_order:  # a probe that waits for what comes from a computation that waits, too
            known = [replace(probe, in_order=(number + self.case.injectors) % 2 == 1) for number, probe in enumerate(known)]
        self.forgets = {f"{probe.name}.seen": probe.forgets for probe in known}
        self.in_order = {f"{probe.name}.seen": probe.in_order for probe in known}
        kinds = tuple(map(Kind, profile.kinds)) or rng.choice(((Kind.FUNCTION,), (Kind.FUNCTION,), tuple(Kind)))
        fewest, most = bool(profile.kinds), len(kinds) + 1
        deliveries = [DeliveryOf(f"d{n}", stream_name(rng.choice(streams)), rng.choice(kinds)) for n in range(rng.randint(fewest, most))]
        passes = rng.random() < 0.4 if profile.unkept is None else profile.unkept
        # Where some are not kept, those that are delivered are likeliest: the journal waits for them.
        passing = [*map(stream_name, streams), *[delivery.stream for delivery in deliveries] * 2] if passes else []
        self.programs: list[Program] = []
        for _ in range(rng.randint(1, 4)):
            chosen = [p for p in known if rng.random() < 0.75]
            chosen = [replace(p, by=rng.choice((2, 3)) if p.by else 0, poisoned=rng.random() < 0.15) for p in chosen]
            rng.shuffle(chosen)
            cut = rng.randint(0, len(chosen))
            delivered = tuple(d for d in deliveries if rng.random() < 0.8)
            self.programs.append(Program(tuple(chosen[:cut]), tuple(chosen[cut:]), delivered, _some(rng, passing)))
        self.programs.append(Program((), tuple(known), tuple(deliveries), _some(rng, passing)))
        if quiet is not None:
            self.sources[QUIET] = [Entry(complete=START - 60 * SECOND)]

    @property
    def last(self) -> int:
        return len(self.programs) - 1

    def graph(self, program: int) -> Graph:
        graph = self._graphs.get(program)
        if graph is None:
            idle_after = {name: self.idle_after for name in self.sources if name not in self.unheard}
            graph = self._graphs[program] = build(self.case, self.programs[program], idle_after=idle_after, quiet=self.quiet)
        return graph

    def unpacked(self, program: int) -> Graph:
        """With computations of its own, as the process of a lane has them; compiled once, for that takes longest."""
        graph = self.graph(program)
        nodes = {name: replace(node, computation=copy.copy(node.computation)) for name, node in graph.nodes.items()}
        return replace(graph, nodes=nodes)

    def deliveries(self, program: int, *kinds: Kind) -> list[DeliveryOf]:
        """Those of a program, of these kinds."""
        return [delivery for delivery in self.programs[program].deliveries if delivery.kind in kinds]


class _PassingAdding(Adding):
    sums: ms.Output[Item] = ms.output(keep=False)


class _PassingRounds(Rounds):
    sums: ms.Output[Item] = ms.output(keep=False)


_KINDS: dict[tuple[bool, bool], type[Adding]] = {
    (False, True): Adding,
    (True, True): Rounds,
    (False, False): _PassingAdding,
    (True, False): _PassingRounds,
}


def _some(rng: random.Random, streams: list[str]) -> frozenset[str]:
    return frozenset(rng.sample(streams, rng.randint(0, len(streams))))


def stream_name(short: str) -> str:
    return short if short.startswith("in") else f"{short}.sums"


def build(
    case: Case, program: Program, *, idle_after: Mapping[str, ms.Duration | None] = MappingProxyType({}), quiet: ms.Duration | None = None
) -> Graph:
    topology = ms.Topology("simulated")
    streams: dict[str, ms.Stream[Any]] = {}
    silences = {f"in{number}": idle_after.get(f"in{number}") for number in range(case.injectors)}
    for name, silence in (silences | {QUIET: quiet} if quiet is not None else silences).items():
        streams[name] = topology.inject(
            name,
            ms.values([], Item),
            key=lambda item: item.key,
            timestamp=lambda item: ms.Timestamp(item.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=silence),
            keep=name not in program.unkept,
        )
    nodes: list[tuple[str, Adding]] = []
    for number, node in enumerate(case.nodes):
        it = _KINDS[bool(node.laps), f"n{number}.sums" not in program.unkept](node)
        nodes.append((f"n{number}", it))
        streams[f"n{number}"] = it.sums
    for probe in program.before:
        _place(topology, probe, streams)
    for (name, it), node in zip(nodes, case.nodes, strict=True):
        reads = [_by(streams[read.stream], read.by, lambda item: item.number) for read in node.reads]
        if isinstance(it, Rounds):
            reads.append(_by(it.again, node.lap_by, lambda lap: lap.item.number))
        reads += [streams[QUIET]] if quiet is not None else []
        topology.compute(name, it).reads(*reads, late=ms.Late.DROP)
    for probe in program.after:
        _place(topology, probe, streams)
    for delivery in program.deliveries:
        topology.deliver(delivery.name, streams[delivery.stream.removesuffix(".sums")], ms.function(_nothing))
    return compile_topology(topology)


def _nothing(step: int, records: list[Any]) -> None:
    raise AssertionError("the simulation calls its own targets")


def _place(topology: ms.Topology, probe: ProbeAt, streams: dict[str, ms.Stream[Any]]) -> None:
    read = _by(streams[probe.stream], probe.by, lambda item: item.number)
    it = Probe(forgets=probe.forgets, poisoned=probe.poisoned, in_order=probe.in_order)
    topology.compute(probe.name, it).reads(read, late=ms.Late.DROP)


def _by(stream: ms.Stream[Any], by: int, number: Any) -> ms.Stream[Any]:
    return stream.by(lambda value: f"{number(value) % by}") if by else stream


def _small(rng: random.Random, keys: int, *, in_order: bool) -> Case:
    case = case_of(rng)
    nodes = [replace(node, in_order=node.in_order and in_order) for node in case.nodes]
    case = Case(case.injectors, tuple(nodes[: rng.choice((1, 2, 3, 4))]), case.script)
    return _with_keys(case, rng, keys // len(KEYS)) if keys > len(KEYS) else case


def _with_keys(case: Case, rng: random.Random, more: int) -> Case:
    """The same with more keys, and more items: the rows of a computation then take several pages, which grow and shrink with them."""
    script: list[Step] = []
    for step in case.script:
        if isinstance(step, Send):
            items = [replace(item, key=f"{item.key}{key}") for item in step.items for key in rng.sample(range(more), rng.randint(1, more))]
            step = Send(step.injector, tuple(items))
        script.append(step)
    return replace(case, script=tuple(script))


def _entries(case: Case, injector: int) -> list[Entry]:
    entries: list[Entry] = []
    for step in case.script:
        match step:
            case Send(of, items) if of == injector:
                entries += [Entry(item=item) for item in items]
            case Promise(of, upto) if of == injector:
                entries.append(Entry(complete=upto))
            case Finish(_):
                pass  # every source ends after its last entry
    return entries


def injected(case: Case) -> Counter[tuple[str, str, int, int, int]]:
    """What the sources hold: stream, key, number, weight, time."""
    return Counter(
        (f"in{step.injector}", item.key, item.number, item.weight, item.at)
        for step in case.script
        if isinstance(step, Send)
        for item in step.items
    )


__all__ = ["LONG_AFTER", "QUIET", "SECOND", "Chance", "Entry", "Probe", "Program", "Scene", "Seen", "build", "injected", "stream_name"]
