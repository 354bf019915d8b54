"""Planning an epoch: what it delivers, how far the low watermarks move, which buckets have something to do."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.core.backlog import Backlog, Limits, LogFile, Position
from millstream.core.epoch import Header, Report, Summary, Tally
from millstream.core.graph import MILL, Graph, table_of
from millstream.core.low_watermark import Bounds, LowWatermark, Mark, promise, solve
from millstream.injector import Injection
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Timestamp

QUIET_COMMITS = 100  # that bring nothing to any computation, until an epoch says that they were seen: retention waits for it


class Plan(msgspec.Struct, frozen=True):
    """An epoch before it runs. It is the offset in Spark's log: a replay sees the same records and the same clocks."""

    epoch: int
    now: Timestamp
    low_watermarks: dict[str, LowWatermark]
    before: dict[str, Timestamp]  # the input low watermarks of the epoch before
    promises: dict[str, Timestamp]
    positions: dict[str, Position]
    due: list[int]

    def header(self) -> Header:
        return Header(self.epoch, self.now, self.low_watermarks, self.before)


def before_all(graph: Graph) -> Plan:
    """What stands before epoch 0."""
    return Plan(-1, START_OF_TIME, {}, {}, {}, {table: Position() for table in graph.tables}, [])


def first_epoch(graph: Graph, *, clock: Timestamp, buckets: int) -> Plan:
    """Epoch 0 delivers nothing. Spark counts its batches from a first one that it runs whether or not there is anything;
    used so, the workers are warm when the first records come."""
    nothing = {name: LowWatermark(START_OF_TIME, START_OF_TIME) for name in graph.nodes}
    return Plan(0, clock, nothing, dict.fromkeys(nothing, START_OF_TIME), {}, before_all(graph).positions, list(range(buckets)))


class Source(msgspec.Struct):
    """What an injector's table says of its source, newest commit first to be believed."""

    marks: dict[str, Mark] = {}
    finished: bool = False
    injected: int = 0
    dead: int = 0
    epoch: int = -1  # of the injector itself


class Ledger(msgspec.Struct):
    """What the mill knows after an epoch; stands in the metadata of its commit."""

    plan: Plan
    reports: dict[int, dict[str, Report]]  # by bucket, then computation
    tallies: dict[str, Tally]  # since the beginning
    produced: dict[str, int]  # records of each stream, since the beginning
    latest: dict[str, int] = {}  # the last epoch in which a computation had something to do, or a stream got a record

    def after(self, plan: Plan, summaries: list[Summary], produced: Mapping[str, int]) -> Ledger:
        """The next one. What untouched buckets last reported stays valid."""
        reports = {bucket: dict(of) for bucket, of in self.reports.items()}
        tallies = dict(self.tallies)
        for summary in summaries:
            reports.setdefault(summary.bucket, {}).update(summary.reports)
            for name, tally in summary.tallies.items():
                tallies[name] = tallies.get(name, Tally()).plus(tally)
        latest = {**self.latest, **dict.fromkeys(produced, plan.epoch)}
        for summary in summaries:
            latest.update(dict.fromkeys(summary.tallies, plan.epoch))
        streams = dict(self.produced)
        for stream, count in produced.items():
            streams[stream] = streams.get(stream, 0) + count
        return Ledger(plan, reports, tallies, streams, latest)

    def held(self, computation: str) -> Timestamp:
        return min((of[computation].minima.hold for of in self.reports.values() if computation in of), default=END_OF_TIME)

    def next_wall(self, computations: Mapping[str, object]) -> Timestamp:
        """When the next wall-clock timer makes an epoch due by itself."""
        return min(
            (report.minima.wall for of in self.reports.values() for name, report in of.items() if name in computations), default=END_OF_TIME
        )

    def due(self, low_watermarks: Mapping[str, LowWatermark], now: Timestamp) -> list[int]:
        """The buckets in which a timer fires at these clocks."""
        return [
            bucket
            for bucket, of in self.reports.items()
            if any(name in low_watermarks and report.minima.due(low_watermarks[name].input, now) for name, report in of.items())
        ]


# What stands in a commit of the log: an injector's table tells of its source, the mill's of its epochs.
read_source = msgspec.json.Decoder(Source).decode
read_ledger = msgspec.json.Decoder(Ledger).decode


def no_ledger(graph: Graph) -> Ledger:
    return Ledger(before_all(graph), {}, {}, {})


def promised(injection: Injection, source: Source, *, last: Timestamp, now: Timestamp) -> Timestamp:
    return promise(source.marks, last=last, finished=source.finished, idle_after=injection.low_watermark.idle_after, now=now)


def plan_epoch(
    graph: Graph, ledger: Ledger, backlog: Backlog, sources: Mapping[str, Source], *, clock: Timestamp, limits: Limits, always: bool = False
) -> tuple[Plan, list[LogFile]] | None:
    """The next epoch, with the files it delivers; None if nothing is due.

    It is due when there are records, when a timer is due, when the promise of an injector moves the low watermark of
    one of its readers, or when all low watermarks have reached the end of time and the log does not say so yet.
    `always` makes one due all the same: an empty epoch changes nothing but the clocks.
    """
    last = ledger.plan
    now = max(last.now, clock)
    taken = backlog.take(limits, first=MILL)
    # Who is silent is asked by the clock that the marks are stamped with, not by the epochs': it may have been set back.
    promises = {
        name: promised(injection, sources.get(name, Source()), last=last.promises.get(name, START_OF_TIME), now=clock)
        for name, injection in graph.injections.items()
    }
    delivered: dict[tuple[str, str], Timestamp] = {}
    for file in taken:
        place = (file.table, file.stream)
        delivered[place] = min(file.oldest, delivered.get(place, END_OF_TIME))
    bounds = {}
    for name, node in graph.nodes.items():
        places = [(table, read.stream.name) for read in node.inputs for table in read.stream.tables]
        bounds[name] = Bounds(
            producers=node.producers,
            promised=min((promises[injector] for injector in node.injectors), default=END_OF_TIME),
            undelivered=min(backlog.oldest(table, stream) for table, stream in places),
            delivered=min(delivered.get(place, END_OF_TIME) for place in places),
            held=ledger.held(name),
            last=last.low_watermarks[name].input if name in last.low_watermarks else START_OF_TIME,
        )
    low_watermarks = solve(bounds)
    due = ledger.due(low_watermarks, now)
    moved = any(node.injectors and low_watermarks[name].input > bounds[name].last for name, node in graph.nodes.items())
    over = ended(low_watermarks) and not low_watermarks.items() <= last.low_watermarks.items()
    reached = backlog.positions()
    quiet = sum(position.version - last.positions.get(table, Position()).version for table, position in reached.items())
    if not (taken or due or moved or over or always or quiet > QUIET_COMMITS):
        return None
    # What a removed computation or injector had reached is carried on: it goes on from there when it comes back.
    plan = Plan(
        epoch=last.epoch + 1,
        now=now,
        low_watermarks={**last.low_watermarks, **low_watermarks},
        before={name: known.last for name, known in bounds.items()},
        promises={**last.promises, **promises},
        positions={**last.positions, **reached},
        due=due,
    )
    return plan, taken


def ended(low_watermarks: Mapping[str, LowWatermark]) -> bool:
    """Nothing will come any more: every low watermark stands at the end of time."""
    return bool(low_watermarks) and all(lw.output == END_OF_TIME for lw in low_watermarks.values())


def of_table(graph: Graph, table: str) -> str | None:
    """The injector whose table this is; None for the mill's."""
    return next((name for name in graph.injections if table_of(name) == table), None)
