"""The whole of an epoch for the buckets of a lane: every computation that has records or due timers there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from millstream.core.arrivals import Arrivals
from millstream.core.epoch import Header, Summary, Tally
from millstream.core.graph import Graph
from millstream.core.ordered import OrderedTurn
from millstream.core.pages import Pages
from millstream.core.parts import Columns
from millstream.core.productions import Productions
from millstream.core.row import Changes
from millstream.core.timeline import Timeline
from millstream.core.turn import Turn
from millstream.core.waiting import Waited, WaitingRecords

PositionsByKey = dict[str, list[int]]  # by key, in the order in which the keys first arrive


class RowsOf(Protocol):
    """The rows that a lane holds."""

    def rows(self, bucket: int, computation: str) -> Pages: ...
    def waiting(self, bucket: int, computation: str) -> Timeline: ...
    def settle(self) -> Changes: ...


class Outcome(msgspec.Struct):
    """What an epoch of a lane leaves: its productions by stream, what the touched buckets say, the rows that changed."""

    productions: dict[str, Columns]
    summaries: list[Summary]
    changes: Changes


class Mill:
    """Runs the buckets of a lane. Made once a worker: decoders and turns are kept from epoch to epoch."""

    def __init__(self, graph: Graph, bucket_of_key: Callable[[str], int]) -> None:
        self._bucket_of_key = bucket_of_key
        self._turns = {name: OrderedTurn(plan) if plan.in_event_time else Turn(plan) for name, plan in graph.nodes.items()}
        self._rank = {name: number for number, name in enumerate(graph.nodes)}
        self._running: Turn | None = None
        self._reader_of = [read.computation for read in graph.inputs]

    def run(self, header: Header, arrivals: Arrivals, due: Mapping[str, Collection[int]], held: RowsOf) -> Outcome:
        """One epoch. `due` names the buckets in which a computation may have a due timer.

        Buckets in their order, in each the computations in that of the graph, of each the keys with arrivals in the order
        of their first one, then those that are only due, sorted: the same rows and arrivals always make the same productions.
        When it raises, `held` has rows of half an epoch: it must forget them.
        """
        work = self._deal(arrivals)
        for name, buckets in due.items():
            for bucket in buckets:
                work.setdefault(bucket, {}).setdefault(name, {})
        productions = Productions()
        opened: set[str] = set()
        touched: list[tuple[Summary, dict[str, Pages]]] = []
        waits: dict[tuple[int, str], WaitingRecords] = {}
        for bucket in sorted(work):
            summary, of_bucket = Summary(bucket, {}, {}), {}
            for name in sorted(work[bucket], key=self._rank.__getitem__):
                pages = of_bucket[name] = held.rows(bucket, name)
                turn = self._turns[name]
                if name not in opened:
                    opened.add(name)
                    turn.open(header, arrivals, productions)
                of_key = work[bucket][name]
                low_watermark = header.low_watermarks[name].input
                waited: dict[str, list[Waited]] = {}
                if isinstance(turn, OrderedTurn):
                    waiting = waits[bucket, name] = WaitingRecords(held.waiting(bucket, name))
                    waited, low_watermark = waiting.take(low_watermark)
                    turn.reach(low_watermark)
                only_due = pages.due(low_watermark, header.now)
                if of_key or only_due or waited:
                    self._running = turn
                    if isinstance(turn, OrderedTurn):
                        summary.tallies[name] = _run_in_order(turn, pages, waiting, waited, of_key, only_due)
                    else:
                        summary.tallies[name] = _run(turn, pages, of_key, only_due)
            productions.number(bucket)
            touched.append((summary, of_bucket))
        changes = held.settle()
        for summary, of_bucket in touched:
            summary.reports = {name: pages.report() for name, pages in of_bucket.items()}
            for name in of_bucket:
                if (summary.bucket, name) in waits:
                    summary.reports[name] = waits[summary.bucket, name].report(summary.reports[name])
        return Outcome(productions.columns(), [summary for summary, _ in touched], changes)

    @property
    def at_hand(self) -> tuple[str, str]:
        """The computation and key that run now, or ran last. Another thread may ask."""
        turn = self._running
        return ("", "") if turn is None else (turn.name, turn.key)

    def _deal(self, arrivals: Arrivals) -> dict[int, dict[str, PositionsByKey]]:
        """By bucket and computation, where the arrivals of each key stand. A key is hashed once, however many records it has."""
        groups: dict[tuple[int, ...], PositionsByKey] = {}
        of_packet = [groups.setdefault(packet.inputs, {}) for packet in arrivals.packets]
        for position, (packet, key) in enumerate(zip(arrivals.packet_of, arrivals.keys, strict=True)):
            of_key = of_packet[packet]
            if key in of_key:
                of_key[key].append(position)
            else:
                of_key[key] = [position]
        of_computation: dict[str, PositionsByKey] = {}
        for inputs, of_key in groups.items():
            for name in dict.fromkeys(self._reader_of[read] for read in inputs):
                of_computation[name] = _merged(of_computation[name], of_key) if name in of_computation else of_key
        dealt: dict[int, dict[str, PositionsByKey]] = {}
        bucket_of_key = self._bucket_of_key
        for name, of_key in of_computation.items():
            of_bucket: dict[int, PositionsByKey] = {}
            for key, positions in of_key.items():
                bucket = bucket_of_key(key)
                if bucket in of_bucket:
                    of_bucket[bucket][key] = positions
                else:
                    of_bucket[bucket] = {key: positions}
            for bucket, found in of_bucket.items():
                dealt.setdefault(bucket, {})[name] = found
        return dealt


def _run(turn: Turn, pages: Pages, of_key: PositionsByKey, due: list[str]) -> Tally:
    """One computation in one bucket."""
    turn.begin()
    try:
        run, get, put = turn.run, pages.get, pages.put
        for key, positions in of_key.items():
            before = get(key)
            after = run(key, positions, before)
            if after is not before:
                put(key, before, after)
        for key in due:
            if key not in of_key:
                before = get(key)
                after = run(key, (), before)
                if after is not before:
                    put(key, before, after)
    finally:
        turn.end()
    return turn.tally


def _run_in_order(
    turn: OrderedTurn, pages: Pages, waiting: WaitingRecords, waited: dict[str, list[Waited]], of_key: PositionsByKey, due: list[str]
) -> Tally:
    """The same for one in the order of event time: to keys comes what has waited, too, and what has to wait is put off."""
    turn.begin()
    try:
        for key in (*of_key, *sorted({*waited, *due} - of_key.keys())):
            turn.waited = waited.get(key, ())
            before = pages.get(key)
            after = turn.run(key, of_key.get(key, ()), before)
            if after is not before:
                pages.put(key, before, after)
            waiting.add(key, turn.put_off)
    finally:
        turn.end()
    return turn.tally


def _merged(one: PositionsByKey, other: PositionsByKey) -> PositionsByKey:
    """What comes to a computation by several ways, in the order in which it arrives."""
    found = {key: sorted([*one.get(key, ()), *other.get(key, ())]) for key in {**one, **other}}
    return dict(sorted(found.items(), key=lambda item: item[1][0]))
