"""Planning an epoch: when one is due, what it takes, how far the clocks move, and what is carried on."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.epoch import BucketReport, Summary
from millstream.core.graph import Graph, compile_topology
from millstream.core.lanes import Lanes
from millstream.core.ledger import Commit, Ledger, Reader, SourceProgress
from millstream.core.low_watermark import LowWatermark, Mark
from millstream.core.parts import Part
from millstream.core.planning import Backlog, Limits, Plan, Waiting, next_silence, plan_epoch, readers_of
from millstream.core.row import Minima
from millstream.core.standing import Standing
from millstream.timestamp import END_OF_TIME, START_OF_TIME
from tests.core.alone import Event, inject

LANES = Lanes(4, 2)  # the first two buckets are lane 0's


class Count(ms.Computation[int]):
    counts: ms.Output[Event]

    def process_record(self, record: ms.Record[Event]) -> None: ...


def part(stream: str, oldest: int, *, lane: int = 0, records: int = 1, reader: str = "") -> Part:
    return Part(0, 1, 0, lane, stream, reader, stream, 0, records, ms.Timestamp(oldest))


class Planning:
    """A graph "first" → "second", and all that planning asks."""

    def __init__(self, *, idle_after: ms.Duration | None = None) -> None:
        topology = ms.Topology("test")
        first = Count()
        events = inject(topology, low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=idle_after))
        topology.compute("first", first).reads(events)
        topology.compute("second", Count()).reads(first.counts)
        self.begin(compile_topology(topology), Ledger())

    def begin(self, graph: Graph, ledger: Ledger) -> None:
        """As a run that starts with this code."""
        self.graph, self.ledger = graph, ledger
        self.standing = Standing(graph.outline, ledger)
        self.backlog = Backlog(graph.outline)
        self.source = SourceProgress()
        self.here = {0, 1}

    def waits(self, stream: str, oldest: int, *, lane: int = 0) -> None:
        self.backlog.add(Waiting(self.ledger.number, "segment", part(stream, oldest, lane=lane)))

    def plan(self, *, clock: int = 0, always: bool = False, limits: Limits | None = None) -> Plan | None:
        return plan_epoch(
            self.graph.outline,
            self.ledger,
            self.standing,
            self.backlog,
            {"events": self.source},
            clock=ms.Timestamp(clock),
            limits=limits or Limits(100, 100),
            lanes=LANES,
            here=self.here,
            always=always,
        )

    def run(self, *summaries: Summary, clock: int = 0, always: bool = False) -> Plan | None:
        """Plan an epoch and take it as committed."""
        plan = self.plan(clock=clock, always=always)
        if plan is not None:
            header = plan.header
            commit = Commit(header.epoch, "id", "", 0, header.now, plan.low_watermarks, plan.promises, summaries=list(summaries))
            self.ledger.apply(commit)
            for summary in summaries:
                for name, said in summary.reports.items():
                    self.standing.put(name, summary.bucket, said.minima)
        return plan

    def promise(self, complete: int, heard: int = 0) -> None:
        self.source.marks = {"": Mark(ms.Timestamp(complete), ms.Timestamp(heard))}


def report(*, low_watermark: int = END_OF_TIME, wall: int = END_OF_TIME, hold: int = END_OF_TIME) -> BucketReport:
    return BucketReport(Minima(low_watermark, wall, hold), rows=1, timers=1)  # type: ignore[arg-type]


def lows(plan: Plan | None) -> dict[str, LowWatermark]:
    assert plan is not None
    return plan.low_watermarks


# When one is due.


def test_nothing_is_due_when_there_is_nothing() -> None:
    assert Planning().plan() is None


def test_a_promise_that_moves_a_low_watermark_makes_an_epoch_due_once() -> None:
    it = Planning()
    it.promise(50)
    assert lows(it.run())["second"] == LowWatermark(ms.Timestamp(50), ms.Timestamp(50))
    assert it.plan() is None


def test_records_make_an_epoch_due() -> None:
    it = Planning()
    it.waits("events", 7)
    plan = it.plan(clock=3)
    assert plan is not None
    assert [waiting.part.oldest for waiting in plan.taken] == [7]
    assert (plan.header.epoch, plan.header.now, plan.due) == (1, 3, {})


@pytest.mark.parametrize(
    ("minima", "due"),
    [({"low_watermark": 10}, {"second": [3]}), ({"low_watermark": 11}, {}), ({"wall": 20}, {"second": [3]}), ({"wall": 21}, {})],
)
def test_a_due_timer_makes_an_epoch_due_for_its_computation_and_bucket(minima: dict[str, int], due: dict[str, list[int]]) -> None:
    it = Planning()
    it.run(Summary(3, {"second": report(**minima)}, {}), Summary(0, {"second": report()}, {}), always=True)
    it.promise(10)
    plan = it.plan(clock=20)
    assert ({} if plan is None else plan.due) == due


def test_what_is_for_a_lane_that_is_away_makes_nothing_due_and_keeps_the_low_watermarks_back() -> None:
    it = Planning()
    it.run(Summary(3, {"first": report(wall=5, hold=30)}, {}), always=True)
    it.here = {0}
    it.waits("events", 40, lane=1)
    assert it.plan(clock=9) is None
    it.promise(50)
    plan = it.run(clock=9)
    assert plan is not None
    assert (plan.taken, plan.due) == ([], {})
    assert lows(plan)["first"] == LowWatermark(ms.Timestamp(40), ms.Timestamp(30))
    it.here = {0, 1}
    plan = it.plan(clock=9)
    assert plan is not None
    assert ([waiting.part.lane for waiting in plan.taken], plan.due) == ([1], {"first": [3]})


def test_the_end_of_the_input_is_told_once() -> None:
    it = Planning()
    it.source.finished = True
    assert it.run() is not None
    assert it.run() is None


def test_the_end_of_the_input_waits_for_a_hold() -> None:
    it = Planning()
    it.run(Summary(0, {"first": report(wall=99, hold=5)}, {}), always=True)
    it.source.finished = True
    five, ended = LowWatermark(ms.Timestamp(5), ms.Timestamp(5)), LowWatermark(END_OF_TIME, END_OF_TIME)
    assert lows(it.run(clock=98)) == {"first": LowWatermark(END_OF_TIME, ms.Timestamp(5)), "second": five}
    assert it.run(clock=98) is None
    plan = it.run(Summary(0, {"first": report()}, {}), clock=99)
    assert plan is not None
    assert plan.due == {"first": [0]}
    assert lows(it.run(clock=99)) == {"first": ended, "second": ended}
    assert it.run(clock=99) is None


def test_the_wall_clock_never_goes_back() -> None:
    it = Planning()
    it.run(clock=9, always=True)
    plan = it.plan(clock=5, always=True)
    assert plan is not None
    assert plan.header.now == 9


# How far the low watermarks move.


def low(input: int, output: int) -> LowWatermark:
    return LowWatermark(ms.Timestamp(input), ms.Timestamp(output))


def test_a_record_delivered_keeps_back_who_reads_what_it_causes() -> None:
    it = Planning()
    it.promise(50)
    it.waits("events", 40)
    plan = it.run()
    assert plan is not None
    assert lows(plan) == {"first": low(50, 40), "second": low(40, 40)}
    assert plan.header.low_watermarks == {"first": low(50, 40)}  # "second" has nothing to do, and is not told
    assert plan.header.before == {"first": START_OF_TIME}
    it.waits("first.counts", 45)
    plan = it.run()
    assert plan is not None
    assert lows(plan) == {"first": low(50, 50), "second": low(50, 45)}
    assert plan.header.before == {"second": 40}


def test_a_record_that_is_left_keeps_its_reader_back() -> None:
    it = Planning()
    it.promise(50)
    it.waits("events", 40)
    it.waits("events", 30)
    it.waits("first.counts", 20)
    plan = it.plan(limits=Limits(1, 1))
    assert plan is not None
    assert [waiting.part.stream for waiting in plan.taken] == ["first.counts"]
    assert lows(plan) == {"first": low(30, 30), "second": low(30, 20)}


def test_of_several_inputs_the_oldest_counts() -> None:
    topology = ms.Topology("test")
    left, right = inject(topology, "left"), inject(topology, "right")
    topology.compute("joins", Count()).reads(left, right)
    graph = compile_topology(topology)
    sources = {
        name: SourceProgress(marks={"": Mark(ms.Timestamp(promised), ms.Timestamp(0))})
        for name, promised in {"left": 50, "right": 60}.items()
    }

    def bounds(left: int, right: int, *, taken: int) -> LowWatermark:
        backlog = Backlog(graph.outline)
        for name, oldest in {"left": left, "right": right}.items():
            backlog.add(Waiting(1, "segment", part(name, oldest)))
        told: Any = {"clock": ms.Timestamp(0), "limits": Limits(taken, 100), "lanes": LANES, "here": {0, 1}}
        plan = plan_epoch(graph.outline, Ledger(), Standing(graph.outline, Ledger()), backlog, sources, **told)
        assert plan is not None
        assert len(plan.taken) == taken
        return plan.low_watermarks["joins"]

    assert bounds(20, 30, taken=2) == bounds(30, 20, taken=2) == low(50, 20)
    assert bounds(20, 30, taken=1) == bounds(30, 20, taken=1) == low(30, 20)
    sources["left"], sources["right"] = sources["right"], sources["left"]
    assert bounds(20, 30, taken=2) == low(50, 20)


def test_the_earliest_hold_of_all_buckets_keeps_the_readers_back() -> None:
    it = Planning()
    it.run(Summary(0, {"first": report(hold=9)}, {}), Summary(1, {"first": report(hold=7)}, {}), always=True)
    it.promise(50)
    assert lows(it.run(always=True)) == {"first": low(50, 7), "second": low(7, 7)}


def test_what_untouched_buckets_said_stays_valid() -> None:
    it = Planning()
    it.run(Summary(0, {"first": report(hold=9)}, {}), Summary(1, {"first": report(hold=7)}, {}), always=True)
    it.run(Summary(1, {"first": report()}, {}), always=True)
    it.promise(50)
    assert lows(it.run()) == {"first": low(50, 9), "second": low(9, 9)}


def test_an_idle_source_stays_where_it_was() -> None:
    it = Planning(idle_after=10 * ms.MICROSECOND)
    it.promise(50, heard=0)
    assert it.run(clock=10, always=True).promises == {"events": 50}  # type: ignore[union-attr]
    it.promise(60, heard=0)
    assert it.run(clock=11, always=True).promises == {"events": 50}  # type: ignore[union-attr]


def test_silence_is_due_when_the_first_partition_falls_silent() -> None:
    it = Planning(idle_after=10 * ms.MICROSECOND)
    it.source.marks = {"a": Mark(ms.Timestamp(50), ms.Timestamp(3)), "b": Mark(ms.Timestamp(60), ms.Timestamp(5))}
    assert next_silence(it.graph.outline, {"events": it.source}, ms.Timestamp(5)) == 14
    assert next_silence(it.graph.outline, {"events": it.source}, ms.Timestamp(14)) == 16
    assert next_silence(it.graph.outline, {"events": it.source, "gone": it.source}, ms.Timestamp(99)) == END_OF_TIME
    assert next_silence(Planning().graph.outline, {"events": it.source}, ms.Timestamp(5)) == END_OF_TIME


# Code that changes between two starts.


def test_what_was_removed_goes_on_from_where_it_was_when_it_comes_back() -> None:
    it = Planning()
    it.promise(50)
    it.run(Summary(2, {"second": report(wall=1, hold=60)}, {}), always=True)
    topology = ms.Topology("test")
    topology.compute("first", Count()).reads(inject(topology))
    whole = it.graph
    it.begin(compile_topology(topology), it.ledger)
    it.promise(70)
    plan = it.run(clock=5, always=True)
    assert plan is not None
    assert plan.due == {}  # its timers wait for it
    assert it.ledger.low_watermarks == {"first": low(70, 70), "second": low(50, 50)}
    it.begin(whole, it.ledger)
    it.promise(70)
    plan = it.run(clock=5)
    assert plan is not None
    assert plan.due == {"second": [2]}
    assert plan.header.before["second"] == 50
    assert lows(plan)["second"] == low(70, 60)


def test_readers_that_came_begin_now_and_those_that_are_gone_go() -> None:
    it = Planning()
    first = readers_of(it.graph.outline, {}, since=2)
    assert first == {"first ← events": Reader("events", False, 2), "second ← first.counts": Reader("first.counts", False, 2)}
    known: dict[str, Reader] = {name: reader for name, reader in first.items() if reader is not None}
    assert readers_of(it.graph.outline, known, since=9) == {}
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("first", Count()).reads(events.by(lambda event: event.word))
    topology.compute("third", Count()).reads(events)
    assert readers_of(compile_topology(topology).outline, known, since=9) == {
        "first ← events": Reader("events", True, 9),
        "second ← first.counts": None,
        "third ← events": Reader("events", False, 9),
    }
