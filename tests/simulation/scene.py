"""What is played: a generated topology with its input, and programs that differ from start to start."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import millstream as ms
from millstream.core.graph import Graph, compile_topology
from tests.core.cases import SECOND, Case, Finish, Item, Promise, Send, case_of, fold
from tests.core.topologies import Adding, Rounds

LONG_AFTER = 10**12


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
    """Counts the records of each key and passes on each of them. Comes and goes with the program, and does not repeat itself."""

    seen: ms.Output[Seen]

    def __init__(self, *, poisoned: bool = False) -> None:
        self.poisoned = poisoned

    def process_record(self, record: ms.Record[Item]) -> None:
        if self.poisoned and record.value.number % 3 == 1:
            raise ValueError("this program is not right yet")
        item, before, drawn = record.value, self.state.drawn, Chance.draw()
        self.state.count += 1
        self.state.drawn = drawn
        self.seen.produce(Seen(item.number, item.weight, item.at, self.state.count, before, drawn), timestamp=record.timestamp)


@dataclass(frozen=True)
class ProbeAt:
    """A probe in a program: what it reads, and under which keys."""

    name: str
    stream: str  # in0, n1 …
    by: int
    poisoned: bool = False


@dataclass(frozen=True)
class Program:
    """The code of a run: all nodes of the case, probes before and after them, deliveries."""

    before: tuple[ProbeAt, ...] = ()
    after: tuple[ProbeAt, ...] = ()
    deliveries: tuple[tuple[str, str], ...] = ()  # name and stream
    unkept: tuple[str, ...] = ()  # streams that the log leaves out


@dataclass(frozen=True)
class Entry:
    """One thing that a source gives: an item, or how far it is complete."""

    item: Item | None = None
    complete: int | None = None


class Scene:
    """The case, the sources by injector, and the programs in the order in which they are started. The last one has no error."""

    def __init__(self, rng: random.Random, keeping: random.Random) -> None:
        """`keeping` draws what the log leaves out: half of all scenes change their mind about that from start to start."""
        self.case = _small(rng)
        self._graphs: dict[int, Graph] = {}
        self.said = {f"{name}.sums": said for name, said in fold(self.case).items()}
        self.sources = {f"in{n}": _entries(self.case, n) for n in range(self.case.injectors)}
        streams = [*self.sources, *(f"n{n}" for n in range(len(self.case.nodes)))]
        known = [ProbeAt(f"p{n}", rng.choice(streams), rng.choice((0, 0, 2, 3))) for n in range(rng.randint(1, 3))]
        deliveries = [(f"d{n}", stream_name(rng.choice(streams))) for n in range(rng.randint(0, 2))]
        self.programs: list[Program] = []
        for _ in range(rng.randint(1, 4)):
            chosen = [p for p in known if rng.random() < 0.75]
            chosen = [ProbeAt(p.name, p.stream, rng.choice((2, 3)) if p.by else 0, rng.random() < 0.15) for p in chosen]
            rng.shuffle(chosen)
            cut = rng.randint(0, len(chosen))
            delivered = tuple(d for d in deliveries if rng.random() < 0.8)
            self.programs.append(Program(tuple(chosen[:cut]), tuple(chosen[cut:]), delivered))
        self.programs.append(Program((), tuple(known), tuple(deliveries)))
        if keeping.random() < 0.5:
            self._keep([stream_name(stream) for stream in streams], dict(deliveries), keeping)

    def _keep(self, streams: list[str], deliveries: dict[str, str], rng: random.Random) -> None:
        """A delivery may come later than its stream, but does not go: what the log leaves out does not wait for whoever is away."""
        begins = {name: rng.choice((0, 0, rng.randint(0, self.last))) for name in deliveries}
        for n, program in enumerate(self.programs):
            there = tuple((name, stream) for name, stream in deliveries.items() if n >= begins[name])
            self.programs[n] = replace(program, deliveries=there, unkept=tuple(s for s in streams if rng.random() < 0.5))

    @property
    def last(self) -> int:
        return len(self.programs) - 1

    def graph(self, program: int) -> Graph:
        graph = self._graphs.get(program)
        if graph is None:
            graph = self._graphs[program] = build(self.case, self.programs[program])
        return graph

    def unpacked(self, program: int) -> Graph:
        """With computations of its own, as the process of a lane has them; compiled once, for that takes longest."""
        graph = self.graph(program)
        nodes = {name: replace(node, computation=copy.copy(node.computation)) for name, node in graph.nodes.items()}
        return replace(graph, nodes=nodes)

    def stream_of(self, program: int, delivery: str) -> str:
        return dict(self.programs[program].deliveries)[delivery]


def stream_name(short: str) -> str:
    return short if short.startswith("in") else f"{short}.sums"


def build(case: Case, program: Program) -> Graph:
    topology = ms.Topology("simulated")
    streams: dict[str, ms.Stream[Any]] = {}
    for number in range(case.injectors):
        streams[f"in{number}"] = topology.inject(
            f"in{number}",
            ms.values([], Item),
            key=lambda item: item.key,
            timestamp=lambda item: ms.Timestamp(item.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
    nodes: list[tuple[str, Adding]] = []
    for number, node in enumerate(case.nodes):
        it = Rounds(node) if node.laps else Adding(node)
        nodes.append((f"n{number}", it))
        streams[f"n{number}"] = it.sums
    for probe in program.before:
        _place(topology, probe, streams)
    for (name, it), node in zip(nodes, case.nodes, strict=True):
        reads = [_by(streams[read.stream], read.by, lambda item: item.number) for read in node.reads]
        if isinstance(it, Rounds):
            reads.append(_by(it.again, node.lap_by, lambda lap: lap.item.number))
        topology.compute(name, it).reads(*reads, late=ms.Late.DROP)
    for probe in program.after:
        _place(topology, probe, streams)
    for name, stream in program.deliveries:
        topology.deliver(name, streams[stream.removesuffix(".sums")], ms.function(_nothing))
    graph = compile_topology(topology)
    return replace(graph, streams={name: replace(plan, kept=name not in program.unkept) for name, plan in graph.streams.items()})


def _nothing(step: int, records: list[Any]) -> None:
    raise AssertionError("the simulation calls its own targets")


def _place(topology: ms.Topology, probe: ProbeAt, streams: dict[str, ms.Stream[Any]]) -> None:
    read = _by(streams[probe.stream], probe.by, lambda item: item.number)
    topology.compute(probe.name, Probe(poisoned=probe.poisoned)).reads(read, late=ms.Late.DROP)


def _by(stream: ms.Stream[Any], by: int, number: Any) -> ms.Stream[Any]:
    return stream.by(lambda value: f"{number(value) % by}") if by else stream


def _small(rng: random.Random) -> Case:
    case = case_of(rng)
    return Case(case.injectors, case.nodes[: rng.choice((1, 2, 3, 4))], case.script)


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


__all__ = ["LONG_AFTER", "SECOND", "Chance", "Entry", "Probe", "Program", "Scene", "Seen", "build", "injected", "stream_name"]
