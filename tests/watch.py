"""Sees a run from outside, epoch by epoch, and holds it against the invariants."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.graph import Graph
from millstream.core.ledger import Ledger
from tests.invariants import (
    conservation,
    contiguous_ledger,
    events_in_order,
    every_timer_once,
    lag_returns_to_zero,
    low_watermarks_below_pending_work,
    low_watermarks_monotone,
    outputs_move_back_only_for_cause,
    productions_unique_and_gap_free,
    readers_see_prefixes,
    same_bytes_for_the_same_id,
    timers_in_order,
)
from tests.observed import Book, Entry, Epoch, Logged, Reached, reach, write


class Watch:
    """Sees a run epoch by epoch, and checks all that can be said of it from outside. `begun` is what stood before the first."""

    def __init__(self, graph: Graph, begun: Ledger | None = None, *, lanes_come_and_go: bool = False) -> None:
        self._graph, self._lanes_come_and_go = graph, lanes_come_and_go
        self._aside = {
            (read.computation, read.stream.name) for read in graph.inputs if read.timeless and graph.nodes[read.computation].timed
        }
        self._book: Book = {}
        self._reached: Reached = {}
        self._read: dict[str, list[Logged]] = {}
        self.last = Epoch(Ledger() if begun is None else begun)

    def see(self, epoch: Epoch, diary: Sequence[Entry] = ()) -> None:
        """The next epoch, and what the diaries of the computations got in it, in the order of production."""
        before, after = self.last.ledger, epoch.ledger
        contiguous_ledger(before, after)
        low_watermarks_monotone(before, after)
        outputs_move_back_only_for_cause(self.last, epoch)
        low_watermarks_below_pending_work(self._graph, self.last, epoch)
        conservation(self._graph, epoch)
        productions_unique_and_gap_free(after.number, epoch.made)
        timers_in_order(self._book, diary)
        # What has no event time, and comes to whom has, is not waited for: it may be long past.
        diary = [entry for entry in diary if entry.does != "record" or (entry.computation, entry.tag) not in self._aside]
        events_in_order(self._book, self._reached, diary)
        every_timer_once(self._book, diary, after, lanes_come_and_go=self._lanes_come_and_go)
        for entry in diary:
            reach(self._reached, entry)
            write(self._book, entry)
        self.last = epoch

    def read(self, stream: str, records: Sequence[Logged]) -> None:
        """All that a reader of the stream sees now."""
        earlier = self._read.get(stream, [])
        readers_see_prefixes([record.id for record in earlier], [record.id for record in records])
        same_bytes_for_the_same_id(earlier, records)
        self._read[stream] = list(records)

    def end(self) -> None:
        """The input has ended, and the run has come to rest."""
        lag_returns_to_zero(self._graph, self.last)
