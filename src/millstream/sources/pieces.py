"""Pieces of sources, as lanes read them: what is in them becomes records that wait for the next epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from millstream.core.graph import Graph
from millstream.core.lanes import Lanes
from millstream.core.ledger import SourceProgress
from millstream.core.parts import RECORDS_PER_PART, Slice
from millstream.core.route import Dealer
from millstream.injector import Injection
from millstream.mill.messages import Range
from millstream.source import BYTES_PER_PIECE, Piece, PieceReader, SourceContext
from millstream.sources.dealing import TEXT_ROLES, Intake
from millstream.timestamp import Timestamp


def context_of(
    injection: Injection, progress: SourceProgress | None = None, *, folder: Path | None = None, max_bytes: int = BYTES_PER_PIECE
) -> SourceContext:
    """What a source is told of its injector."""
    known, named = progress or SourceProgress(), injection.columns
    times = frozenset(name for role, name in named.items() if role not in TEXT_ROLES)
    return SourceContext(
        injection.name, injection.source.value_type, known.positions, frozenset(named.values()), times, folder, max_bytes, known.finished
    )


class PiecesReader:
    """All sources of a topology that a lane reads. Made once in each process."""

    def __init__(self, graph: Graph, lanes: Lanes, *, at_once: int) -> None:
        self._injections, self._dealer, self._at_once = graph.injections, Dealer(graph, lanes), min(at_once, RECORDS_PER_PART)
        self._readers: dict[str, tuple[PieceReader, Intake]] = {}

    def read(self, of: Range, now: Timestamp) -> Iterator[Slice]:
        """A slice at a time, so that memory is bounded whatever a piece holds."""
        if of.injector not in self._readers:
            injection = self._injections[of.injector]
            reader = injection.source.piece_reader(context_of(injection))
            self._readers[of.injector] = (reader, Intake(injection, self._dealer))
        reader, intake = self._readers[of.injector]
        for batch in reader.read(Piece(of.content, of.size, of.partition, of.lane), self._at_once):
            yield intake.take(batch, now=now)
