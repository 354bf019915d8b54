"""What records cause: whether all that came in up to a moment has gone its way through the computations before a stream.

Every commit takes parts that waited and names what came of them. So once nothing waits any more that waited at some moment, all
that it caused directly is committed; and so on, once for each computation on the longest way to the stream. What a timer tells
later is not waited for, nor what a record causes that waits for its time; and of a cycle one round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.core.graph import DEAD_LETTERS
from millstream.core.ledger import Ledger
from millstream.core.outline import Outline


class Caused:
    """Follows what had come in when it was made, commit by commit."""

    def __init__(self, outline: Outline, stream: str, since: int) -> None:
        """`since` is the epoch of which commit all that counts is named by then."""
        way = computations_before(outline, stream)
        self._streams = {read.stream for read in outline.inputs if read.computation in way}
        self._produced = {stream for stream in self._streams if stream not in outline.injectors}
        self._hops = longest_way(outline, way)
        self._mark = since

    def look(self, ledger: Ledger) -> int | None:
        """The epoch up to which all of it is named by commits, once it is; None before."""
        while self._hops and not self._waits(ledger):
            self._hops -= 1
            self._mark, self._streams = ledger.number, self._produced  # what comes in later was not caused by it
        return None if self._hops else self._mark

    def _waits(self, ledger: Ledger) -> bool:
        return any(
            number <= self._mark and part.stream in self._streams for parts in ledger.waiting.values() for number, part in parts.values()
        )


def computations_before(outline: Outline, stream: str) -> set[str]:
    """Those whose productions may end up in a stream, in one step or in several."""
    found: set[str] = set()
    ahead = list(outline.nodes) if stream == DEAD_LETTERS else [] if stream in outline.injectors else [stream.rpartition(".")[0]]
    while ahead:
        name = ahead.pop()
        if name in outline.nodes and name not in found:
            found.add(name)
            ahead += outline.nodes[name].producers
    return found


def longest_way(outline: Outline, among: Collection[str]) -> int:
    """How many computations follow one another at most; where they go round in a cycle, all of them."""
    heights: Mapping[str, int] = dict.fromkeys(among, 1)
    for _ in among:
        heights = {
            name: 1 + max((heights[producer] for producer in outline.nodes[name].producers if producer in heights), default=0)
            for name in among
        }
    return min(max(heights.values(), default=0), len(among))
