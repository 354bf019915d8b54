"""What rides along with the next commit: sources, notes, positions."""

from __future__ import annotations

import pytest

from millstream.mill.messages import Work
from tests.conformance.scenes import at
from tests.mill.desk import Desk, graph_of


def test_rule_18_notes_are_taken_in_order_without_gaps_and_once() -> None:
    desk = Desk()
    desk.feed(0, batch=1)  # 0 is still to come
    assert desk.commits == []
    desk.feed(0, batch=0)
    desk.feed(0, batch=0)  # left again, by a batch that Spark ran twice
    assert [commit.sources["events"].batch for commit in desk.commits] == [0]
    desk.feed(0, batch=1)
    assert desk.planner.ledger.sources["events"].batch == 1


def test_rule_18_a_note_that_waits_for_its_commit_is_not_taken_twice() -> None:
    desk = Desk(linger=10.0)
    desk.feed(0, upto=1)
    for _ in range(2):
        desk.feed(3, batch=0)
    desk.tick(10.0)
    assert desk.planner.ledger.sources["events"].injected == 3


def test_rule_18_the_next_run_knows_what_was_taken() -> None:
    desk = Desk()
    desk.feed(0, batch=0)
    again = Desk(ledger=desk.planner.ledger)
    again.feed(0, batch=0)
    assert again.commits == []
    again.feed(0, batch=1)
    assert len(again.commits) == 1


def test_what_is_fed_while_an_epoch_runs_is_named_by_its_commit_and_taken_by_the_next() -> None:
    desk = Desk()
    desk.join(0)
    desk.feed(1, position=1)
    desk.feed(2, position=2, upto=9)
    desk.report(0)
    commit = desk.commits[-1]
    assert (commit.sources["events"].injected, commit.sources["events"].positions[""]) == (3, 2)
    assert sum(len(offsets) for offsets in commit.took.values()) == 1
    assert [given.part.records for given in desk.last(0, Work).given] == [2]
    assert desk.planner.ledger.low_watermarks["it"].input < at(9)
    desk.report(0)
    assert desk.planner.ledger.low_watermarks["it"].input == at(9)


def test_an_epoch_that_is_aborted_leaves_what_was_fed() -> None:
    desk = Desk()
    desk.join(0)
    desk.feed(1, parts=2, position=2)
    for _ in range(2):
        desk.lose(0)
        desk.join(0)
    assert desk.commits == []
    while not desk.planner.idle:
        desk.report(0)
    assert desk.planner.ledger.sources["events"].positions[""] == 2
    assert sum(len(offsets) for commit in desk.commits for offsets in commit.took.values()) == 2


def test_positions_ride_along_and_have_a_commit_of_their_own_within_a_second_if_somebody_waits() -> None:
    desk = Desk(graph_of(deliver=True))
    desk.join(0)
    desk.join(1)
    desk.feed()
    desk.report(0, productions=1)
    desk.report(0)
    number = desk.number
    desk.planner.on_logged(number, desk.now)
    desk.planner.on_delivered("out", number, desk.now)
    assert desk.planner.next_tick(desk.now) == pytest.approx(1.0)
    desk.tick(0.9)
    assert desk.number == number
    assert desk.planner.next_tick(desk.now) == pytest.approx(0.1)
    desk.tick(0.11)
    assert (desk.number, desk.planner.ledger.logged, desk.planner.ledger.delivered) == (number + 1, number, {"out": number})
    # That commit holds no record: nobody waits for anybody to have it, and an idle run stays idle.
    desk.planner.on_logged(number + 1, desk.now)
    desk.planner.on_delivered("out", number + 1, desk.now)
    desk.tick(100.0)
    assert desk.number == number + 1


def test_a_position_never_goes_back() -> None:
    desk = Desk(graph_of(deliver=True))
    desk.planner.on_logged(5, desk.now)
    desk.planner.on_delivered("out", 5, desk.now)
    desk.planner.on_logged(3, desk.now)
    desk.planner.on_delivered("out", 3, desk.now)
    desk.feed(0, upto=1)
    assert (desk.planner.ledger.logged, desk.planner.ledger.delivered) == (5, {"out": 5})
    desk.planner.on_logged(4, desk.now)
    desk.tick(1.0)
    desk.feed(0, upto=2)
    assert desk.planner.ledger.logged == 5


def test_a_delivery_that_was_removed_is_forgotten_by_the_next_run() -> None:
    desk = Desk(graph_of(deliver=True))
    desk.planner.on_delivered("out", 1, desk.now)
    desk.feed(0, upto=1)
    assert desk.planner.ledger.delivered == {"out": 1}
    assert Desk(graph_of(), ledger=desk.planner.ledger).planner.ledger.delivered == {}
