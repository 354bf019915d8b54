"""Planning an epoch: when one is due, what it delivers, how far the clocks move, and what is carried on."""

from __future__ import annotations

import msgspec
import pytest

import millstream as ms
from millstream.core.backlog import Backlog, Limits, LogFile, Position
from millstream.core.epoch import Report, Summary, Tally
from millstream.core.graph import Graph, compile_topology
from millstream.core.low_watermark import LowWatermark, Mark
from millstream.core.plan import QUIET_COMMITS, Ledger, Plan, Source, before_all, first_epoch, no_ledger, of_table, plan_epoch
from millstream.core.row import Minima
from millstream.timestamp import END_OF_TIME, START_OF_TIME
from tests.core.alone import Event, inject


class Count(ms.Computation[int]):
    counts: ms.Output[Event]

    def process_record(self, record: ms.Record[Event]) -> None: ...


class Planning:
    """A graph "first" → "second", and all that planning asks."""

    def __init__(self, *, idle_after: ms.Duration | None = None) -> None:
        topology = ms.Topology("test")
        first = Count()
        events = inject(topology, low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=idle_after))
        topology.compute("first", first).reads(events)
        topology.compute("second", Count()).reads(first.counts)
        self.graph: Graph = compile_topology(topology)
        self.ledger: Ledger = no_ledger(self.graph)
        self.backlog = Backlog(self.graph.tables, {read.stream.name for read in self.graph.inputs})
        self.source = Source()

    def file(self, table: str, version: int, stream: str, oldest: int) -> None:
        self.backlog.add(table, [LogFile(table, Position(version), "path", stream, 1, 1, oldest)], Position(version + 1))  # type: ignore[arg-type]

    def plan(self, *, clock: int = 0, always: bool = False, limits: Limits | None = None) -> tuple[Plan, list[LogFile]] | None:
        return plan_epoch(
            self.graph,
            self.ledger,
            self.backlog,
            {"events": self.source},
            clock=ms.Timestamp(clock),
            limits=limits or Limits(100, 100),
            **({"always": True} if always else {}),
        )

    def run(self, *summaries: Summary, clock: int = 0, always: bool = False) -> Plan | None:
        """Plan an epoch and take it as done."""
        planned = self.plan(clock=clock, always=always)
        if planned is None:
            return None
        self.ledger = self.ledger.after(planned[0], list(summaries), {})
        return planned[0]

    def promise(self, complete: int, heard: int = 0) -> None:
        self.source.marks = {"": Mark(ms.Timestamp(complete), ms.Timestamp(heard))}


def report(*, low_watermark: int = END_OF_TIME, wall: int = END_OF_TIME, hold: int = END_OF_TIME) -> Report:
    return Report(Minima(low_watermark, wall, hold), rows=1, timers=1)  # type: ignore[arg-type]


# When one is due.


def test_nothing_is_due_when_there_is_nothing() -> None:
    assert Planning().plan() is None


def test_a_promise_that_moves_a_low_watermark_makes_an_epoch_due_once() -> None:
    it = Planning()
    it.promise(50)
    plan = it.run()
    assert plan is not None
    assert plan.low_watermarks["second"] == LowWatermark(50, 50)
    assert it.plan() is None


def test_records_make_an_epoch_due() -> None:
    it = Planning()
    it.file("injector events", 0, "events", 7)
    planned = it.plan(clock=3)
    assert planned is not None
    plan, files = planned
    assert [file.oldest for file in files] == [7]
    assert (plan.epoch, plan.now, plan.due) == (0, 3, [])
    assert plan.positions == {"injector events": Position(1), "mill": Position()}


@pytest.mark.parametrize(
    ("minima", "due"), [({"low_watermark": 10}, [3]), ({"low_watermark": 11}, []), ({"wall": 20}, [3]), ({"wall": 21}, [])]
)
def test_a_due_timer_makes_an_epoch_due_for_its_bucket(minima: dict[str, int], due: list[int]) -> None:
    it = Planning()
    it.run(Summary(3, {"second": report(**minima)}, {}), Summary(4, {"second": report()}, {}), always=True)
    it.promise(10)
    planned = it.plan(clock=20)
    assert ([] if planned is None else planned[0].due) == due


def test_the_end_of_the_input_is_told_once() -> None:
    it = Planning()
    it.source.finished = True
    assert it.run() is not None
    assert it.run() is None


def test_the_end_of_the_input_waits_for_a_hold() -> None:
    it = Planning()
    it.run(Summary(0, {"first": report(wall=99, hold=5)}, {}), always=True)
    it.source.finished = True
    plan = it.run(clock=98)
    assert plan is not None
    assert plan.low_watermarks == {"first": LowWatermark(END_OF_TIME, 5), "second": LowWatermark(5, 5)}
    assert it.run(clock=98) is None
    plan = it.run(Summary(0, {"first": report()}, {}), clock=99)
    assert plan is not None
    assert plan.due == [0]
    plan = it.run(clock=99)
    assert plan is not None
    assert plan.low_watermarks == dict.fromkeys(it.graph.nodes, LowWatermark(END_OF_TIME, END_OF_TIME))
    assert it.run(clock=99) is None


def test_many_commits_that_bring_nothing_make_an_epoch_due_that_says_they_were_seen() -> None:
    it = Planning()
    it.backlog.add("injector events", [], Position(QUIET_COMMITS))
    assert it.plan() is None
    it.backlog.add("injector events", [], Position(QUIET_COMMITS + 1))
    plan = it.run()
    assert plan is not None
    assert plan.positions["injector events"] == Position(QUIET_COMMITS + 1)
    assert it.plan() is None


def test_the_wall_clock_never_goes_back() -> None:
    it = Planning()
    it.run(clock=9, always=True)
    planned = it.plan(clock=5, always=True)
    assert planned is not None
    assert planned[0].now == 9


# How far the low watermarks move.


def test_a_record_delivered_keeps_back_who_reads_what_it_causes() -> None:
    it = Planning()
    it.promise(50)
    it.file("injector events", 0, "events", 40)
    plan = it.run()
    assert plan is not None
    assert plan.low_watermarks == {"first": LowWatermark(50, 40), "second": LowWatermark(40, 40)}
    assert plan.before == {"first": START_OF_TIME, "second": START_OF_TIME}
    plan = it.run(always=True)
    assert plan is not None
    assert plan.low_watermarks["second"] == LowWatermark(50, 50)
    assert plan.before == {"first": 50, "second": 40}


def test_a_record_left_in_the_log_keeps_its_reader_back() -> None:
    it = Planning()
    it.promise(50)
    it.file("injector events", 0, "events", 40)
    it.file("injector events", 1, "events", 30)
    it.file("mill", 0, "first.counts", 20)
    planned = it.plan(limits=Limits(1, 1))
    assert planned is not None
    plan, files = planned
    assert [file.table for file in files] == ["mill"]
    assert plan.low_watermarks == {"first": LowWatermark(30, 30), "second": LowWatermark(30, 20)}
    assert plan.positions == {"injector events": Position(0), "mill": Position(1)}


def test_of_several_inputs_the_oldest_counts() -> None:
    it = Planning()
    topology = ms.Topology("test")
    joins = Count()
    left, right = inject(topology, "left"), inject(topology, "right")
    topology.compute("joins", joins).reads(left, right)
    it.graph = compile_topology(topology)
    sources = {
        name: Source(marks={"": Mark(ms.Timestamp(promised), ms.Timestamp(0))}) for name, promised in {"left": 50, "right": 60}.items()
    }

    def bounds(left: int, right: int, *, taken: int) -> LowWatermark:
        backlog = Backlog(it.graph.tables, {"left", "right"})
        for name, oldest in {"left": left, "right": right}.items():
            backlog.add(f"injector {name}", [LogFile(f"injector {name}", Position(0), "path", name, 1, 1, oldest)], Position(1))  # type: ignore[arg-type]
        limits = Limits(taken, 100)
        planned = plan_epoch(it.graph, no_ledger(it.graph), backlog, sources, clock=ms.Timestamp(0), limits=limits)
        assert planned is not None
        assert len(planned[1]) == taken
        return planned[0].low_watermarks["joins"]

    assert bounds(20, 30, taken=2) == bounds(30, 20, taken=2) == LowWatermark(50, 20)
    assert bounds(20, 30, taken=1) == bounds(30, 20, taken=1) == LowWatermark(30, 20)
    sources["left"], sources["right"] = sources["right"], sources["left"]
    assert bounds(20, 30, taken=2) == LowWatermark(50, 20)


def test_the_earliest_hold_of_all_buckets_keeps_the_readers_back() -> None:
    it = Planning()
    it.run(Summary(0, {"first": report(hold=9)}, {}), Summary(1, {"first": report(hold=7)}, {}), always=True)
    it.promise(50)
    plan = it.run(always=True)
    assert plan is not None
    assert plan.low_watermarks == {"first": LowWatermark(50, 7), "second": LowWatermark(7, 7)}


def test_an_idle_source_stays_where_it_was() -> None:
    it = Planning(idle_after=10 * ms.MICROSECOND)
    it.promise(50, heard=0)
    assert it.run(clock=10, always=True).promises == {"events": 50}  # type: ignore[union-attr]
    it.promise(60, heard=0)
    assert it.run(clock=11, always=True).promises == {"events": 50}  # type: ignore[union-attr]


# What is carried on.


def test_what_untouched_buckets_said_stays_valid() -> None:
    it = Planning()
    it.run(Summary(0, {"first": report(hold=9), "second": report(wall=5)}, {}), Summary(1, {"first": report(hold=7)}, {}), always=True)
    it.run(Summary(1, {"first": report()}, {}), always=True)
    assert it.ledger.held("first") == 9
    assert it.ledger.next_wall(it.graph.nodes) == 5
    assert it.ledger.reports[1] == {"first": report()}
    assert it.ledger.held("second") == END_OF_TIME


def test_counts_add_up() -> None:
    it = Planning()
    plan = it.run(always=True)
    assert plan is not None
    tallies = {"first": Tally(*range(1, 9))}
    for _ in range(2):
        it.ledger = it.ledger.after(plan, [Summary(0, {}, tallies), Summary(1, {}, tallies)], {"first.counts": 3})
    assert it.ledger.tallies == {"first": Tally(*(4 * number for number in range(1, 9)))}
    assert it.ledger.produced == {"first.counts": 6}


def test_the_last_epoch_with_something_to_do_is_remembered_for_each() -> None:
    it = Planning()
    it.run(Summary(0, {}, {"first": Tally(received=1)}), Summary(1, {}, {"second": Tally(received=1)}), always=True)
    plan = it.run(always=True)
    assert plan is not None
    it.ledger = it.ledger.after(plan, [Summary(0, {}, {"first": Tally(received=1)})], {"first.counts": 1})
    assert it.ledger.latest == {"first": 1, "second": 0, "first.counts": 1}


def test_a_ledger_is_left_as_it_was() -> None:
    it = Planning()
    it.run(Summary(0, {"first": report(hold=9)}, {"first": Tally(received=1)}), always=True)
    before = msgspec.json.encode(it.ledger)
    it.ledger.after(it.ledger.plan, [Summary(0, {"first": report()}, {"first": Tally(received=1)})], {"first.counts": 1})
    assert msgspec.json.encode(it.ledger) == before


def test_what_was_removed_goes_on_from_where_it_was_when_it_comes_back() -> None:
    it = Planning()
    it.promise(50)
    it.run(Summary(2, {"second": report(wall=1, hold=60)}, {}), always=True)
    topology = ms.Topology("test")
    topology.compute("first", Count()).reads(inject(topology))
    whole, it.graph = it.graph, compile_topology(topology)
    it.promise(70)
    plan = it.run(clock=5, always=True)
    assert plan is not None
    assert plan.due == []  # its timers wait for it
    assert it.ledger.next_wall(it.graph.nodes) == END_OF_TIME
    assert plan.low_watermarks == {"first": LowWatermark(70, 70), "second": LowWatermark(50, 50)}
    it.graph = whole
    plan = it.run(clock=5)
    assert plan is not None
    assert plan.due == [2]
    assert plan.before["second"] == 50
    assert plan.low_watermarks["second"] == LowWatermark(70, 60)


# As Spark keeps it.


def test_a_plan_comes_back_from_json_as_it_was() -> None:
    it = Planning()
    it.file("injector events", 0, "events", 7)
    plan = it.run(clock=3)
    assert plan is not None
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    header = plan.header()
    assert (header.epoch, header.now, header.low_watermarks, header.before) == (plan.epoch, plan.now, plan.low_watermarks, plan.before)


def test_a_ledger_comes_back_from_json_as_it_was() -> None:
    it = Planning()
    it.run(Summary(7, {"first": report(hold=9)}, {"first": Tally(received=1)}), always=True)
    assert msgspec.json.decode(msgspec.json.encode(it.ledger), type=Ledger) == it.ledger


def test_the_first_epoch_delivers_nothing_and_touches_every_bucket() -> None:
    it = Planning()
    assert before_all(it.graph).epoch == -1
    plan = first_epoch(it.graph, clock=ms.Timestamp(5), buckets=3)
    assert (plan.epoch, plan.now, plan.due) == (0, 5, [0, 1, 2])
    assert plan.positions == {"injector events": Position(), "mill": Position()}
    assert set(plan.low_watermarks.values()) == {LowWatermark(START_OF_TIME, START_OF_TIME)}
    assert plan.before == dict.fromkeys(it.graph.nodes, START_OF_TIME)


def test_a_table_belongs_to_an_injector_or_to_the_mill() -> None:
    graph = Planning().graph
    assert of_table(graph, "injector events") == "events"
    assert of_table(graph, "mill") is None
