"""The planner between two epochs: what is due, what an epoch takes, what its commit says."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.graph import Graph, compile_topology
from millstream.core.ledger import Ledger, decode_ledger, encode_ledger
from millstream.mill.actions import End, Fed, Fold
from millstream.mill.messages import TakeCheckpoint, Welcome, Work
from millstream.timestamp import END_OF_TIME
from tests.conformance.scenes import Obedient, at, inject
from tests.mill.desk import CLOCK, Desk, graph_of


def test_where_nothing_comes_nothing_is_due(desk: Desk) -> None:
    before = desk.number
    for _ in range(5):
        desk.tick(1.0)
    assert desk.number == before
    assert not desk.heard(0, Work)
    assert desk.planner.idle


def test_what_comes_is_named_and_taken_by_the_very_next_epoch_and_only_by_the_lane_it_is_for(desk: Desk) -> None:
    desk.feed(3, lane=1, position=3)
    (given,) = desk.last(1, Work).given
    assert (given.segment, given.part.records, given.inputs) == ("values", 3, (0,))
    assert not desk.heard(0, Work)
    desk.report(1)
    commit = desk.commits[-1]
    assert [(frame.segment, len(frame.parts)) for frame in commit.frames] == [("values", 1)]
    assert commit.took == {"values": [given.part.offset]}
    assert (commit.sources["events"].injected, commit.sources["events"].positions[""]) == (3, 3)


def test_what_an_epoch_makes_is_taken_by_the_one_after(desk: Desk) -> None:
    desk.feed()
    desk.report(0, productions=2)
    run = desk.last(0, Work)
    assert (run.header.epoch, [given.part.stream for given in run.given]) == (desk.number + 1, ["it.said"])
    desk.report(0)
    assert desk.planner.idle


def test_a_promise_moves_low_watermarks_without_lanes(desk: Desk) -> None:
    desk.feed(0, upto=5)
    assert not desk.heard(0, Work)
    assert desk.planner.ledger.low_watermarks["it"].input == at(5)
    assert desk.planner.ledger.low_watermarks["relay"].input == at(5)


def test_an_epoch_that_only_moves_low_watermarks_comes_every_ten_milliseconds_at_most() -> None:
    topology = ms.Topology("desk")
    idle = ms.BoundedDisorder(ms.SECOND, idle_after=ms.SECOND)
    topology.compute("it", Obedient()).reads(inject(topology, low_watermark=idle))
    desk = Desk(compile_topology(topology))
    desk.act(desk.planner.on_fed(Fed("events", [], {"slow": at(1)}), desk.now))
    desk.clock = desk.clock + ms.SECOND - 5 * ms.MILLISECOND
    desk.act(desk.planner.on_fed(Fed("events", [], {"quick": at(9)}), desk.now))  # in 5 ms the slow one counts as silent
    number = desk.number
    desk.join(0)
    desk.join(1)
    assert desk.planner.rests
    desk.tick(0.009)
    assert desk.number == number
    assert desk.planner.idle
    assert not desk.planner.rests, "who waits for the end of all work waits for this, too"
    assert desk.planner.next_tick(desk.now) == pytest.approx(0.001)
    desk.tick(0.0011)
    assert (desk.number, desk.planner.ledger.low_watermarks["it"].input) == (number + 1, at(9))
    assert desk.planner.rests


def test_what_waits_only_for_a_lane_that_is_away_makes_nothing_due_and_holds_low_watermarks_back() -> None:
    desk = Desk()
    desk.join(0)
    desk.feed(lane=1, second=3, upto=9)  # named by a commit of its own
    number = desk.number
    assert desk.planner.ledger.low_watermarks["it"].input == at(3)
    desk.tick(1.0)
    assert (desk.number, desk.heard(0, Work)) == (number, [])
    desk.join(1)
    assert [given.part.records for given in desk.last(1, Work).given] == [1]
    desk.report(1)
    assert desk.planner.ledger.low_watermarks["it"].input == at(9)


def test_a_wall_clock_timer_makes_an_epoch_due_when_its_time_has_come(desk: Desk) -> None:
    desk.feed()
    desk.report(0, rows=1, wall=CLOCK + 3 * ms.SECOND)
    number = desk.number
    assert desk.planner.next_tick(desk.now) == pytest.approx(3.0)
    desk.tick(2.9)
    assert desk.number == number
    desk.tick(0.1)
    assert desk.last(0, Work).due == {"it": [0]}
    assert desk.last(0, Work).header.now == CLOCK + 3 * ms.SECOND


def test_the_clock_of_epochs_never_goes_back(desk: Desk) -> None:
    now = desk.planner.ledger.now
    desk.clock = desk.clock - ms.HOUR
    desk.feed()
    assert desk.last(0, Work).header.now == now
    desk.report(0)
    assert desk.planner.ledger.now == now


@pytest.mark.parametrize(
    ("limits", "taken"), [({"max_records": 5}, [2, 2, 1]), ({"max_bytes": 40}, [2, 2, 1]), ({"max_records": 1}, [1] * 5)]
)
def test_an_epoch_takes_no_more_than_its_limits(limits: dict[str, int], taken: list[int]) -> None:
    desk = Desk(**limits)
    desk.join(0)
    desk.feed(2, parts=5)
    found = []
    while not desk.planner.idle:
        found.append(len(desk.last(0, Work).given))
        desk.report(0)
    assert found == taken


def test_one_part_is_taken_even_if_it_is_more_than_the_limit() -> None:
    desk = Desk(max_records=10, max_bytes=10)
    desk.join(0)
    desk.feed(1000, parts=2)
    assert len(desk.last(0, Work).given) == 1
    desk.report(0)
    assert len(desk.last(0, Work).given) == 1


def test_what_is_under_way_goes_before_new_input() -> None:
    desk = Desk(max_records=4)
    desk.join(0)
    desk.feed(4)
    desk.feed(4)
    desk.report(0, productions=4)
    assert [given.part.stream for given in desk.last(0, Work).given] == ["it.said"]


def test_epochs_begin_a_linger_apart() -> None:
    desk = Desk(linger=0.005)
    desk.join(0)
    desk.feed()
    desk.report(0)
    desk.feed()
    assert len(desk.heard(0, Work)) == 1
    desk.tick(0.004)
    assert len(desk.heard(0, Work)) == 1
    assert desk.planner.next_tick(desk.now) == pytest.approx(0.001)
    desk.feed()
    desk.tick(0.0011)
    assert len(desk.last(0, Work).given) == 2


@pytest.mark.parametrize("bound", [{"backlog_records": 4}, {"backlog_bytes": 40}, {"backlog_parts": 2}])
def test_sources_are_held_back_by_what_waits(bound: dict[str, int]) -> None:
    desk = Desk(**bound)
    desk.feed(2)
    assert desk.planner.has_room
    desk.feed(2)
    assert not desk.planner.has_room
    desk.join(0)  # takes both
    assert desk.planner.has_room


def test_a_drained_planner_says_so_when_the_end_of_time_is_committed(desk: Desk) -> None:
    desk.feed(finished=True)
    assert not desk.planner.drained
    desk.report(0)
    assert desk.planner.drained
    assert desk.planner.ledger.low_watermarks["relay"].output == END_OF_TIME


def test_an_input_that_had_ended_has_ended_for_the_next_run_too(desk: Desk) -> None:
    desk.feed(finished=True)
    desk.report(0)
    again = Desk(ledger=read_again(desk))
    assert again.planner.drained


def read_again(desk: Desk) -> Ledger:
    """What the next run reads."""
    return decode_ledger(encode_ledger(desk.planner.ledger))


def test_the_next_run_plans_what_no_commit_has_taken_and_under_other_clocks(desk: Desk) -> None:
    """An epoch that was not committed leaves no trace."""
    desk.feed(2, position=2)
    first = desk.last(0, Work)
    number = desk.number
    again = Desk(ledger=read_again(desk))
    assert again.number == number + 1  # the first commit of its fence took the number of what was not committed
    again.clock = again.clock + ms.HOUR
    again.join(0)
    assert not again.heard(0, Work)
    again.feed(3, position=3)
    run = again.last(0, Work)
    assert (run.header.now, [given.part.records for given in run.given]) == (first.header.now + ms.HOUR, [3])


def test_parts_that_a_commit_named_and_none_took_wait_for_the_next_run(desk: Desk) -> None:
    desk.feed()
    desk.report(0, productions=2)  # the words are under way now
    again = Desk(ledger=read_again(desk))
    again.join(0)
    assert [(given.part.stream, given.part.records) for given in again.last(0, Work).given] == [("it.said", 2)]


def test_a_number_that_is_taken_ends_the_run() -> None:
    """Rule 3."""
    desk = Desk()
    desk.disk_waits = True
    desk.feed(0, upto=1)
    (end,) = desk.planner.on_taken()
    assert isinstance(end, End)
    assert (end.kind, end.message) == ("Fenced", "a newer run owns the folder; this one stops")


def test_while_a_commit_is_written_nothing_else_is_planned() -> None:
    desk = Desk()
    desk.join(0)
    desk.disk_waits = True
    desk.feed(0, upto=1)
    desk.feed()
    desk.tick(1.0)
    assert len(desk.commits) == 1
    assert not desk.heard(0, Work)
    desk.act(desk.planner.on_committed(desk.now))
    assert desk.heard(0, Work)


def test_what_is_fed_while_a_commit_is_written_is_named_and_taken_by_the_next() -> None:
    desk = Desk()
    desk.join(0)
    desk.disk_waits = True
    desk.feed(0, upto=1)
    desk.feed()
    desk.act(desk.planner.on_committed(desk.now))
    (waiting,) = desk.planner.opened.plan.taken  # type: ignore[union-attr]
    desk.report()
    assert (waiting.epoch, len(desk.commits[-1].frames)) == (desk.commits[-1].number, 1)
    assert desk.commits[-1].took == {"values": [waiting.part.offset]}


def test_commits_are_merged_every_so_many() -> None:
    desk = Desk(fold_every=3)
    for second in range(7):
        desk.tick(0.02)
        desk.feed(0, upto=second)
    assert [fold.upto for fold in desk.asked_for(Fold)] == [3, 6]


def test_commits_of_runs_that_died_early_are_merged_by_one_that_starts() -> None:
    """Each made fewer than so many; a start reads all of them, one by one, until somebody merges them."""
    ledger = Ledger()
    folds = []
    for _ in range(4):
        desk = Desk(fold_every=5, ledger=ledger, folded=folds[-1] if folds else 0)
        desk.tick()
        for second in range(2):
            desk.tick(0.02)
            desk.feed(0, upto=second)
        folds += [fold.upto for fold in desk.asked_for(Fold)]
        ledger = read_again(desk)
    assert folds == [5, 10]


def test_a_start_merges_before_it_makes_another_commit_and_only_once() -> None:
    desk = Desk(fold_every=5, ledger=Ledger(number=8, id="c8", fence=3), folded=4)
    for _ in range(3):
        desk.tick(0.02)
    assert [fold.upto for fold in desk.asked_for(Fold)] == [9]
    assert desk.commits == []
    again = Desk(fold_every=5, ledger=Ledger(number=8, id="c8", fence=3), folded=5)
    again.tick()
    assert again.asked_for(Fold) == []


def test_commits_form_a_chain_without_a_gap(desk: Desk) -> None:
    for second in range(3):
        desk.feed(upto=second)
        desk.report(0)
    first = desk.commits[0]
    assert [commit.number for commit in desk.commits] == list(range(first.number, first.number + len(desk.commits)))
    assert all(later.before == earlier.id for earlier, later in zip(desk.commits, desk.commits[1:], strict=False))


def test_a_reader_that_comes_later_gets_only_what_is_made_after_its_start() -> None:
    """Readers are known by their names: code changes between starts."""
    topology = ms.Topology("desk")
    topology.compute("it", Obedient()).reads(inject(topology))
    desk = Desk(compile_topology(topology))
    desk.join(0)
    desk.feed()
    desk.report(0, productions=1)
    assert desk.planner.idle  # nobody reads the words
    again = Desk(graph_of(), ledger=read_again(desk))
    again.join(0)
    assert again.heard(0, Work) == []
    again.feed()
    again.report(0, productions=1)
    assert [given.part.stream for given in again.last(0, Work).given] == ["it.said"]


def test_a_new_computation_begins_at_the_present_and_not_with_what_waits_for_others() -> None:
    """The last commit before it came has named a record that nobody has taken yet."""

    def graph(*names: str) -> Graph:
        topology = ms.Topology("desk")
        events = inject(topology)
        for name in names:
            topology.compute(name, Obedient()).reads(events)
        return compile_topology(topology)

    desk = Desk(graph("it"))
    desk.feed()
    assert desk.planner.ledger.latest["events"] == desk.number
    again = Desk(graph("it", "too"), ledger=read_again(desk))
    again.join(0)
    ((given,),) = [run.given for run in again.heard(0, Work)]
    assert given.inputs == (0,), "only the one that was there"
    again.report(0)
    again.feed()
    assert again.last(0, Work).given[0].inputs == (0, 1)


def test_when_asked_to_stop_the_open_epoch_is_committed_and_no_other_begins(desk: Desk) -> None:
    desk.feed()
    number = desk.number
    desk.act(desk.planner.on_stop(desk.now))
    assert not desk.planner.stopped
    desk.report(0, productions=1, rows=1)
    assert desk.number == number + 1
    assert isinstance(desk.last(0, TakeCheckpoint), TakeCheckpoint)
    desk.checkpoint(0)
    assert desk.planner.stopped
    assert isinstance(desk.last(0, Welcome), Welcome)  # the words wait for the next run
    assert not desk.planner.idle


def test_what_was_fed_before_a_stop_is_named_all_the_same(desk: Desk) -> None:
    desk.act(desk.planner.on_stop(desk.now))
    desk.feed(2, position=2)
    assert desk.planner.ledger.sources["events"].positions[""] == 2
    assert not desk.heard(0, Work)
    again = Desk(ledger=read_again(desk))
    again.join(0)
    assert [given.part.records for given in again.last(0, Work).given] == [2]
