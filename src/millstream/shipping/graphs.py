"""A topology as it travels: without what has its place in the driver only."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

from millstream.core.graph import Graph
from millstream.shipping.pickler import NamedPiece, pickled
from millstream.shipping.second import second
from millstream.source import Source, SourceContext, SourceReader


def pickled_graph(graph: Graph) -> bytes:
    """What cannot travel is refused, with its place in the topology."""
    injections = {
        name: injection if injection.source.gives_pieces else replace(injection, source=ReadElsewhere(injection.source))
        for name, injection in graph.injections.items()
    }
    return pickled(replace(graph, injections=injections, deliveries={}), _parts(graph))


def ship_there_and_back(graph: Graph) -> Graph:
    """What Spark's processes would make of it."""
    found: Graph = pickle.loads(second.through(pickled_graph(graph)))  # noqa: S301  (what was just sent)
    return found


class ReadElsewhere(Source[object]):
    """Of a source that has its place in the driver, other processes need the type of its values only."""

    def __init__(self, source: Source[object]) -> None:
        self.value_type, self.bounded = source.value_type, source.bounded

    def open(self, context: SourceContext) -> SourceReader:
        raise AssertionError("it is read by the driver, or by Spark")


def _parts(graph: Graph) -> Iterator[NamedPiece]:
    """All that is the user's own, by the names that the user gave."""
    for name, stream in graph.streams.items():
        yield f"the value type of stream {name!r}", stream.value_type
    for name, injection in graph.injections.items():
        if injection.source.gives_pieces:
            yield f"the source of injector {name!r}", injection.source
        for what in ("key", "timestamp", "partition", "low_watermark"):
            yield f"{what} of injector {name!r}", getattr(injection, what)
    for name, node in graph.nodes.items():
        yield f"computation {name!r}", node.computation
    for read in graph.inputs:
        for change in read.changes:
            yield f"{'by_each' if change.spreads else 'by' if change.is_key else 'map'} of what {read.computation!r} reads", change.apply
