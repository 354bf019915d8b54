"""A topology made ready to run: streams, inputs and their key extractors, who feeds whom."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import structs

from millstream.computation import Computation
from millstream.core.codec import INSTEAD_OF_CUSTOM, StateCodec, refuse_custom, settle
from millstream.core.outline import Outline, OutlinedHistory, OutlinedInput, OutlinedNode
from millstream.core.unions import shape_of
from millstream.delivery import Delivery
from millstream.errors import TopologyError
from millstream.injector import InjectedStream, Injection
from millstream.record import DeadLetter, Errors, Late, Order, Since
from millstream.stream import DeadLetters, Hop, Output, Stream
from millstream.timestamp import Duration
from millstream.topology import Divert, Topology, streams_of

DEAD_LETTERS = DeadLetters.name


@dataclass(frozen=True)
class Retention:
    """How long the log keeps a stream; None: for good."""

    for_: Duration | None


@dataclass(frozen=True)
class StreamPlan:
    """A stream and what it carries."""

    name: str
    value_type: Any
    kept: bool = True  # in the log
    retention: Retention | None = None  # where one was asked for this stream
    compact_after: Duration | None = None

    @property
    def is_kept_otherwise(self) -> bool:
        """Whether the log keeps it otherwise than the options of a run say."""
        return self.retention is not None or self.compact_after is not None


@dataclass(frozen=True)
class InputPlan:
    """One stream as one computation reads it."""

    index: int
    computation: str
    stream: StreamPlan
    changes: tuple[Hop, ...]
    nth: int = 0  # of the inputs of this computation that are this stream
    timeless: bool = False  # the stream has no event time: no record of it is late
    from_oldest: bool = False  # it begins with the history of the stream

    @property
    def reader(self) -> str:
        """What the ledger knows it by."""
        return f"{self.computation} ← {self.place}"

    @property
    def history(self) -> str:
        """What the ledger knows its history by."""
        return f"{self.reader} (history)"

    @property
    def place(self) -> str:
        """What it is among the inputs of its computation; has no stroke in it, for no name has."""
        return self.stream.name + (f" #{self.nth + 1}" if self.nth else "")

    @property
    def rekeyed(self) -> bool:
        return any(change.is_key for change in self.changes)

    @property
    def shows_records(self) -> bool:
        """Whether its code sees records whole, under their own keys."""
        return any(change.whole for change in self.changes)


@dataclass(frozen=True)
class NodePlan:
    """A computation with all that the engine needs to know of it."""

    name: str
    computation: Computation[Any]
    errors: Errors
    late: Late | str  # the name of the stream that late records are diverted to
    inputs: tuple[InputPlan, ...]
    outputs: dict[str, str]  # attribute → stream
    producers: tuple[str, ...]
    injectors: tuple[str, ...]
    on_cycle: bool
    timed: bool = True  # something that it reads, near or far, has event time

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Of each input, its rank among records of one time: the place in `reads`, so that names decide nothing. The streams of
        one computation have one rank, that of the first of them: what it produced stays in the order of production."""
        first: dict[str, int] = {}
        for place, read in enumerate(self.inputs):
            first.setdefault(self._maker(read), place)
        return tuple(first[self._maker(read)] for read in self.inputs)

    def _maker(self, read: InputPlan) -> str:
        stream = read.stream.name
        return f"injector {stream}" if stream in self.injectors else f"computation {stream.rpartition('.')[0]}"

    @property
    def in_event_time(self) -> bool:
        """Whether records wait for the low watermark."""
        return self.computation.order is Order.EVENT_TIME


@dataclass(frozen=True)
class Graph:
    """The whole topology, compiled. Travels to Spark's workers."""

    name: str
    streams: dict[str, StreamPlan]
    injections: dict[str, Injection]
    nodes: dict[str, NodePlan]
    deliveries: dict[str, Delivery]
    inputs: tuple[InputPlan, ...]

    def readers(self, stream: str) -> list[InputPlan]:
        return [read for read in self.inputs if read.stream.name == stream]

    def stream_of(self, stream: Stream[Any]) -> StreamPlan:
        """The plan of a stream that stands in the topology."""
        return self.streams[_name_of(self.injections, self.nodes, stream)]

    @cached_property
    def outline(self) -> Outline:
        """Without the user's code."""
        old = [read for read in self.inputs if read.from_oldest]
        return Outline(
            injectors={
                **{name: injection.idle_after for name, injection in self.injections.items()},
                **{read.history: None for read in old},
            },
            nodes={
                name: OutlinedNode(node.producers, (*node.injectors, *(read.history for read in node.inputs if read.from_oldest)))
                for name, node in self.nodes.items()
            },
            inputs=[*map(self._outlined, self.inputs), *map(self._outlined_history, old)],
            deliveries={name: self.stream_of(delivery.stream).name for name, delivery in self.deliveries.items()},
            unkept=[name for name, stream in self.streams.items() if not stream.kept],
            timeless=[
                *(name for name, injection in self.injections.items() if injection.is_timeless),
                *(read.history for read in old if not self.nodes[read.computation].timed),
            ],
            untimed=[name for name, node in self.nodes.items() if not node.timed],
            histories={read.history: OutlinedHistory(read.reader, read.stream.name, read.rekeyed) for read in old},
        )

    def _outlined(self, read: InputPlan) -> OutlinedInput:
        aside = read.timeless and self.nodes[read.computation].timed
        return OutlinedInput(read.index, read.computation, read.stream.name, read.reader, read.rekeyed, aside)

    def _outlined_history(self, read: InputPlan) -> OutlinedInput:
        """Comes by the same input, in parts of its own."""
        return structs.replace(self._outlined(read), reader=read.history, rekeyed=True)


def compile_topology(topology: Topology) -> Graph:
    """Check what can only be seen when all is placed, and lay out the graph."""
    streams = _streams(topology)
    names = {id(node.computation): name for name, node in topology.nodes.items()}
    _settle_keeping(topology, names, streams)
    inputs: list[InputPlan] = []
    feeds: dict[str, tuple[list[str], list[str]]] = {}
    for name, node in topology.nodes.items():
        if not node.inputs:
            raise TopologyError(f"{name!r} reads nothing; add .reads(stream) where it is placed")
        producers: list[str] = []
        injectors: list[str] = []
        for stream in node.inputs:
            found = _find(topology, names, streams, stream.origin(), f"computation {name!r}")
            nth = sum(read.computation == name and read.stream is found for read in inputs)
            if node.since is Since.OLDEST and not found.kept:
                raise TopologyError(
                    f"{name!r} reads {found.name!r} since its oldest record, and the log does not keep that stream; leave out keep=False "
                    f"or since="
                )
            inputs.append(InputPlan(len(inputs), name, found, stream.changes(), nth, from_oldest=node.since is Since.OLDEST))
            origin = stream.origin()
            if isinstance(origin, Output):
                producers.append(names[id(origin.owner)])
            elif isinstance(origin, InjectedStream):
                injectors.append(origin.name)
            else:
                if node.errors is Errors.DEAD_LETTER:
                    raise TopologyError(
                        f"{name!r} reads the dead letters and would send its own there, around and around; "
                        f"place it with errors=ms.Errors.FAIL"
                    )
                producers += [other for other, placed in topology.nodes.items() if placed.errors is Errors.DEAD_LETTER]
                injectors += topology.injected
        feeds[name] = (producers, injectors)
    for name, delivery in topology.deliveries.items():
        _find(topology, names, streams, delivery.stream, f"delivery {name!r}")
    untimed = _untimed(topology, feeds)
    inputs = [replace(read, timeless=read.stream.name in untimed.streams) for read in inputs]
    nodes = {
        name: NodePlan(
            name=name,
            computation=node.computation,
            errors=node.errors,
            late=f"{name}.{node.late.to.name}" if isinstance(node.late, Divert) else node.late,
            inputs=tuple(read for read in inputs if read.computation == name),
            outputs={attribute: f"{name}.{getattr(node.computation, attribute).name}" for attribute in type(node.computation)._outputs},
            producers=tuple(dict.fromkeys(feeds[name][0])),
            injectors=tuple(dict.fromkeys(feeds[name][1])),
            on_cycle=_reaches(feeds, name, name),
            timed=name not in untimed.computations,
        )
        for name, node in topology.nodes.items()
    }
    for carried in streams.values():
        settle(carried.value_type)
        refuse_custom(carried.value_type, f"stream {carried.name!r} cannot carry values of {{}}", INSTEAD_OF_CUSTOM)
        _refuse_unclear(carried)
    for plan in nodes.values():
        if plan.on_cycle and plan.in_event_time:
            raise TopologyError(
                f"{plan.name!r} is on a cycle and has order = ms.Order.EVENT_TIME: a record that waits for the low watermark keeps "
                f"back the low watermark that it waits for; leave out the order, or take the computation off the cycle"
            )
        if plan.in_event_time and not plan.timed:
            raise TopologyError(
                f"{plan.name!r} has order = ms.Order.EVENT_TIME, and nothing that it reads has event time, so its records would wait "
                f"until all input has ended; leave out the order, or inject with ms.BoundedDisorder(...) instead of ms.Timeless()"
            )
        settle(plan.computation.state_type())
        StateCodec(plan.computation)  # refuses a state that could not be kept
    injections = {name: stream.injection for name, stream in topology.injected.items()}
    return Graph(topology.name, streams, injections, nodes, dict(topology.deliveries), tuple(inputs))


def _refuse_unclear(stream: StreamPlan) -> None:
    try:
        shape_of(stream.value_type)
    except TopologyError as error:
        raise TopologyError(f"stream {stream.name!r}: {error}") from None


def _streams(topology: Topology) -> dict[str, StreamPlan]:
    if not topology.injected:
        raise TopologyError(f"topology {topology.name!r} has no input; bring one in with topology.inject(...)")
    streams = [StreamPlan(name, injected.value_type, injected.injection.keep) for name, injected in topology.injected.items()]
    for name, node in topology.nodes.items():
        for attribute in type(node.computation)._outputs:
            output: Output[Any] = getattr(node.computation, attribute)
            streams.append(StreamPlan(f"{name}.{output.name}", output.value_type, output.keep))
    return {stream.name: stream for stream in [*streams, StreamPlan(DEAD_LETTERS, DeadLetter)]}


def _settle_keeping(topology: Topology, names: dict[int, str], streams: dict[str, StreamPlan]) -> None:
    """What `retain` and `compact` ask for."""
    for stream, for_ in topology.retained:
        found = _find(topology, names, streams, stream, "retain(...)")
        streams[found.name] = replace(found, retention=Retention(for_))
    for stream, after in topology.compacted:
        found = _find(topology, names, streams, stream, "compact(...)")
        streams[found.name] = replace(found, compact_after=after)


def _find(topology: Topology, names: dict[int, str], streams: dict[str, StreamPlan], stream: Stream[Any], reader: str) -> StreamPlan:
    if stream is topology.dead_letters:
        return streams[DEAD_LETTERS]
    if isinstance(stream, InjectedStream):
        return streams[stream.name]
    if isinstance(stream, Output):
        producer = names.get(id(stream.owner))
        if producer is None:
            kind = type(stream.owner).__name__
            raise TopologyError(
                f"{reader} reads {kind}.{stream.attribute}, which has no producer; place it with topology.compute(name, {kind.lower()})"
            )
        return streams[f"{producer}.{stream.name}"]
    raise TopologyError(f"{reader} reads {stream!r}, which is not a stream of this topology; give it an injected stream or an output")


def _name_of(injections: dict[str, Injection], nodes: dict[str, NodePlan], stream: Stream[Any]) -> str:
    if not isinstance(stream, Stream):
        raise TopologyError(f"{stream!r} is not a stream; give what inject returned, or an output of a computation")
    if isinstance(stream, InjectedStream):
        if injections.get(stream.name) is not stream.injection:
            raise TopologyError(f"the stream {stream.name!r} was injected into another topology; give what inject of this one returned")
        return stream.name
    if isinstance(stream, Output):
        for name, node in nodes.items():
            if node.computation is stream.owner:
                return f"{name}.{stream.name}"
    if stream.origin() is not stream:
        raise TopologyError("by(...) and map(...) are how a computation reads a stream; name the stream itself")
    if isinstance(stream, DeadLetters):
        return DEAD_LETTERS
    raise TopologyError(f"{stream!r} is not a stream of this topology; place its computation with topology.compute(...)")


class _Untimed(NamedTuple):
    """What has no event time."""

    computations: set[str]
    streams: set[str]


def _untimed(topology: Topology, feeds: dict[str, tuple[list[str], list[str]]]) -> _Untimed:
    """A computation has event time if anything that it reads has, near or far, and what it produces has it too."""
    timeless = {name for name, injected in topology.injected.items() if injected.injection.is_timeless}
    timed = topology.injected.keys() - timeless
    found = _behind(feeds, timeless) - _behind(feeds, timed)
    made = {stream for name in found for stream in streams_of(name, topology.nodes[name].computation)}
    return _Untimed(found, {*timeless, *made, *(() if timed else (DEAD_LETTERS,))})


def _behind(feeds: dict[str, tuple[list[str], list[str]]], injectors: set[str]) -> set[str]:
    """The computations that something of these injectors reaches."""
    found = {name for name, (_, fed_by) in feeds.items() if not injectors.isdisjoint(fed_by)}
    while more := {name for name, (producers, _) in feeds.items() if name not in found and not found.isdisjoint(producers)}:
        found |= more
    return found


def _reaches(feeds: dict[str, tuple[list[str], list[str]]], start: str, goal: str) -> bool:
    """Whether records of `start` can come back to `goal` along producers."""
    seen: set[str] = set()
    ahead = list(feeds[start][0])
    while ahead:
        name = ahead.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            ahead += feeds[name][0]
    return False
