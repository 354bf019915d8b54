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
    """The first commit that somebody may still ask for: a lane that redoes, the writer that begins again, or a delivery of what
    the log leaves out. All else it reads up to there in the log."""
    needed = [ledger.logged + 1]
    needed += [after + 1 for lane in ledger.touched if (after := ledger.redo_after(lane)) is not None]
    for name, stream in ledger.plant.deliveries.items():
        if (span := ledger.next_left_out(stream, has := ledger.has_upto(name))) is not None:
            needed.append(max(has, span.after) + 1)
    return min(needed)
