"""A topology as it travels: without what has its place in the driver only."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

from millstream.core.graph import Graph
from millstream.injector import FileSource, Format, Source
from millstream.shipping.pickler import NamedPiece, pickled
from millstream.shipping.second import second


def pickled_graph(graph: Graph) -> bytes:
    """What cannot travel is refused, with its place in the topology."""
    injections = {name: replace(injection, source=_portable(injection.source)) for name, injection in graph.injections.items()}
    return pickled(replace(graph, injections=injections, deliveries={}), _parts(graph))


def ship_there_and_back(graph: Graph) -> Graph:
    """What Spark's processes would make of it."""
    found: Graph = pickle.loads(second.through(pickled_graph(graph)))  # noqa: S301  (what was just sent)
    return found


def _portable(source: Source[object]) -> Source[object]:
    """A frame or an iterator stays in the driver; other processes need the value's type only."""
    if isinstance(source, FileSource):
        return source
    return FileSource("", source.value_type, Format.JSON_LINES, source.bounded)


def _parts(graph: Graph) -> Iterator[NamedPiece]:
    """All that is the user's own, by the names that the user gave."""
    for name, stream in graph.streams.items():
        yield f"the value type of stream {name!r}", stream.value_type
    for name, injection in graph.injections.items():
        for what in ("key", "timestamp", "partition", "low_watermark"):
            yield f"{what} of injector {name!r}", getattr(injection, what)
    for name, node in graph.nodes.items():
        yield f"computation {name!r}", node.computation
    for read in graph.inputs:
        for change in read.changes:
            yield f"{'by' if change.is_key else 'map'} of what {read.computation!r} reads", change.apply
