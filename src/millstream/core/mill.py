"""The whole of an epoch for one bucket: every computation that has records or due timers there."""

from __future__ import annotations

from millstream.core.epoch import Arrivals, Header, Productions, Report, Summary
from millstream.core.graph import Graph
from millstream.core.pages import Bucket, Store
from millstream.core.turn import Turn


class Mill:
    """Runs buckets. Made once a worker: decoders and turns are kept from epoch to epoch."""

    def __init__(self, graph: Graph) -> None:
        self._turns = {name: Turn(plan) for name, plan in graph.nodes.items()}
        self._reader_of = [read.computation for read in graph.inputs]

    def run(self, bucket: int, header: Header, arrivals: Arrivals, store: Store) -> tuple[Productions, Summary]:
        """One epoch of one bucket."""
        # A computation that is new since this epoch was planned begins with the next one.
        turns = {name: turn for name, turn in self._turns.items() if name in header.before}
        by_key: dict[str, dict[str, list[int]]] = {name: {} for name in self._turns}
        of_input = [by_key[name] for name in self._reader_of]
        for position, (read, key) in enumerate(zip(arrivals.inputs, arrivals.keys, strict=True)):
            of_computation = of_input[read]
            waiting = of_computation.get(key)
            if waiting is None:
                of_computation[key] = [position]
            else:
                waiting.append(position)
        rows = Bucket(store)
        productions, tallies = Productions(), {}
        for name, turn in turns.items():
            pages, of_key = rows.pages(name), by_key[name]
            low_watermark = header.low_watermarks[name].input
            keys = dict.fromkeys(of_key)
            keys.update(dict.fromkeys(pages.due(low_watermark, header.now)))
            if not keys:
                continue
            turn.begin(header, arrivals, productions)
            try:
                for key in keys:
                    before = pages.get(key)
                    after = turn.run(key, of_key.get(key, ()), before)
                    if after is not before:
                        pages.put(key, before, after)
            finally:
                turn.end()
            tallies[name] = turn.tally
        directories = rows.flush()
        reports = {name: Report(d.minima(), d.rows, d.timers) for name, d in directories.items()}
        return productions, Summary(bucket, reports, tallies)
