"""The whole of an epoch for one bucket: every computation that has records or due timers there."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.core.epoch import Arrival, Header, Productions, Report, Summary
from millstream.core.graph import Graph
from millstream.core.pages import Bucket, Store
from millstream.core.turn import Turn


class Mill:
    """Runs buckets. Made once a worker: decoders and turns are kept from epoch to epoch."""

    def __init__(self, graph: Graph) -> None:
        self._turns = {name: Turn(plan) for name, plan in graph.nodes.items()}
        self._reader_of = [read.computation for read in graph.inputs]

    def run(self, bucket: int, header: Header, arrivals: Iterable[Arrival], store: Store) -> tuple[Productions, Summary]:
        """One epoch of one bucket. `arrivals` stand in the order of their timestamps and ids."""
        by_key: dict[str, dict[str, list[Arrival]]] = {name: {} for name in self._turns}
        for arrival in arrivals:
            of_computation = by_key[self._reader_of[arrival.input]]
            waiting = of_computation.get(arrival.key)
            if waiting is None:
                of_computation[arrival.key] = [arrival]
            else:
                waiting.append(arrival)
        rows = Bucket(store)
        productions, tallies = Productions(), {}
        for name, turn in self._turns.items():
            pages, of_key = rows.pages(name), by_key[name]
            low_watermark = header.low_watermarks[name].input
            keys = dict.fromkeys(of_key)
            keys.update(dict.fromkeys(pages.due(low_watermark, header.now)))
            if not keys:
                continue
            turn.begin(header, productions)
            try:
                for key in keys:
                    before = pages.get(key)
                    after = turn.run(key, of_key.get(key, []), before)
                    if after is not before:
                        pages.put(key, before, after)
            finally:
                turn.end()
            tallies[name] = turn.tally
        directories = rows.flush()
        reports = {name: Report(d.minima(), d.rows, d.timers) for name, d in directories.items()}
        return productions, Summary(bucket, reports, tallies)
