"""What the journal may let go (rules 13 to 15). Decided here, declared in a commit, removed after it."""

from __future__ import annotations

from collections.abc import Container

from millstream.core.graph import Graph
from millstream.core.ledger import Ledger, Segment


def free_segments(ledger: Ledger, graph: Graph, current: Container[str]) -> list[str]:
    """Segments of which nothing is needed any more; those that are still written to stay."""
    readers: dict[str, list[str]] = {}
    for name, delivery in graph.deliveries.items():
        readers.setdefault(graph.stream_of(delivery.stream).name, []).append(name)
    return [name for name, segment in ledger.segments.items() if name not in current and _is_free(segment, ledger, readers)]


def _is_free(segment: Segment, ledger: Ledger, readers: dict[str, list[str]]) -> bool:
    if segment.waiting or segment.records > ledger.logged:
        return False
    if segment.rows and segment.rows > ledger.free_rows(segment.lane):
        return False
    # What the log does not have is there for its deliveries only; what it has, whoever is behind reads there.
    return all(ledger.has_upto(name) >= epoch for stream, epoch in segment.unkept.items() for name in readers.get(stream, ()))


def needed_from(ledger: Ledger) -> int:
    """The first commit that somebody may still ask for: a lane that redoes, the writer that begins again, or a delivery of a
    stream that is not kept. One of a kept stream reads up to there in the log."""
    needed = [ledger.logged + 1]
    needed += [after + 1 for lane in ledger.touched if (after := ledger.redo_after(lane)) is not None]
    needed += [ledger.has_upto(name) + 1 for name, stream in ledger.plant.deliveries.items() if stream in ledger.plant.unkept]
    return min(needed)
