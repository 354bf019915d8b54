"""Checkpoints, what a join proves, and how a run comes to its end, as the planner's machine has them."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.core.ledger import Checkpoint
from millstream.mill.actions import Close, End, Look, Warn
from millstream.mill.messages import GoAway, TakeCheckpoint, Welcome, Work, WriteBack
from tests.mill.desk import Desk, identity, redo_epochs


def busy(**settings: Any) -> Desk:
    """Both lanes are there, and lane 0 has changed a row."""
    desk = Desk(**settings)
    desk.join(0)
    desk.join(1)
    desk.feed()
    desk.report(0, rows=1)
    return desk


@pytest.mark.parametrize("bound", [{"checkpoint_rows": 3}, {"checkpoint_bytes": 60}])
def test_a_lane_checkpoints_after_so_much_of_its_journal(bound: dict[str, int]) -> None:
    desk = busy(**bound)
    assert not desk.heard(0, TakeCheckpoint)
    desk.feed()
    desk.report(0, rows=2)
    take = desk.last(0, TakeCheckpoint)
    assert (take.at.epoch, take.at.commit) == (desk.number, desk.planner.ledger.id)
    assert not desk.heard(1, TakeCheckpoint)


def test_a_lane_checkpoints_after_some_time_and_is_told_before() -> None:
    desk = busy(checkpoint_every=300.0, announce=5.0)
    assert desk.planner.next_tick(desk.now) == pytest.approx(295.0)
    desk.tick(294.0)
    assert not desk.heard(0, WriteBack)
    desk.tick(1.0)
    assert len(desk.heard(0, WriteBack)) == 1
    assert desk.planner.next_tick(desk.now) == pytest.approx(5.0)
    desk.tick(1.0)
    assert len(desk.heard(0, WriteBack)) == 1
    desk.tick(4.0)
    assert isinstance(desk.last(0, TakeCheckpoint), TakeCheckpoint)


def test_rule_10_a_lane_is_told_between_two_epochs_and_of_the_newest_commit() -> None:
    desk = busy(checkpoint_every=60.0, announce=0.0)
    desk.feed()
    desk.tick(61.0)
    assert not desk.heard(0, TakeCheckpoint)  # it is in an epoch that is open
    desk.report(0, rows=1)
    assert desk.last(0, TakeCheckpoint).at.epoch == desk.number


def test_the_first_checkpoint_of_a_run_comes_early() -> None:
    desk = busy(checkpoint_every=300.0, first_checkpoint=15.0, announce=5.0)
    assert desk.planner.next_tick(desk.now) == pytest.approx(10.0)
    desk.tick(15.0)
    desk.checkpoint(0)
    desk.feed()
    desk.report(0, rows=1)
    desk.tick(290.0)
    assert len(desk.heard(0, TakeCheckpoint)) == 0  # since it joined again
    desk.tick(10.0)
    assert len(desk.heard(0, TakeCheckpoint)) == 1


def test_one_lane_after_the_other() -> None:
    desk = busy(checkpoint_every=60.0, announce=0.0)
    desk.feed(lane=1)
    desk.report(1, rows=1)
    desk.tick(61.0)
    assert (len(desk.heard(0, TakeCheckpoint)), len(desk.heard(1, TakeCheckpoint))) == (1, 0)
    desk.feed(lane=0)
    assert not desk.heard(0, Work)[1:], "one that checkpoints is given nothing"
    desk.feed(lane=1)
    desk.report(1)  # the other goes on
    desk.checkpoint(0)
    assert isinstance(desk.last(0, Work), Work)
    desk.report(0)
    assert isinstance(desk.last(1, TakeCheckpoint), TakeCheckpoint)


def test_a_lane_that_returned_is_not_lost() -> None:
    desk = busy(checkpoint_rows=1)
    for _ in range(10):
        desk.checkpoint(0)
        assert desk.asked_for(End) == []
        desk.feed()
        desk.report(0, rows=1)


def test_rule_14_that_it_was_written_back_frees_nothing_and_a_join_frees_what_came_before() -> None:
    desk = busy(checkpoint_rows=1)
    ledger = desk.planner.ledger
    first = desk.last(0, TakeCheckpoint).at
    desk.checkpoint(0)
    desk.tick(1.0)
    desk.feed()
    desk.report(0, rows=1)
    assert ledger.checkpoints[0].at == first
    assert ledger.free_rows(0) == 0  # Spark may fall back to what was before it
    second = desk.last(0, TakeCheckpoint).at
    desk.checkpoint(0)
    desk.feed()
    assert ledger.free_rows(0) == 0  # no commit says it yet
    desk.report(0, rows=1)
    assert ledger.checkpoints[0] == Checkpoint(second, first)
    assert ledger.free_rows(0) == first.epoch
    assert redo_epochs(list(desk.planner.seats[0].redo))[0] > first.epoch


def test_rule_14_spark_may_fall_back_one_checkpoint_and_no_further() -> None:
    desk = busy(checkpoint_rows=1)
    states = []
    for _ in range(3):
        states.append(desk.last(0, TakeCheckpoint).at)
        desk.checkpoint(0)
        desk.feed()
        desk.report(0, rows=1)
    desk.checkpoint(0)
    desk.feed()
    desk.report(0)  # a commit has what the last join proved
    desk.lose(0)
    desk.join(0, state=Checkpoint(states[2], states[1]))  # one behind
    assert redo_epochs(desk.heard(0, Welcome)[0].redo) == [desk.planner.ledger.touched[0]]
    desk.lose(0)
    connection = desk.join(0, state=Checkpoint(states[1], states[0]))
    assert desk.asked[-2] == Close(connection)
    assert isinstance(desk.asked[-1], Look)
    assert "later ones were proved" in desk.asked[-1].otherwise


def test_a_lane_whose_rows_stay_as_they_are_checkpoints_once_more_and_then_keeps_nothing() -> None:
    """After its first checkpoint the journal has what that one has, for Spark may fall back. It would have it for good."""
    desk = busy(checkpoint_every=60.0, announce=5.0)
    desk.tick(61.0)
    desk.checkpoint(0)
    desk.feed(lane=1)  # others go on
    desk.report(1)
    assert desk.planner.ledger.redo_after(0) is not None
    assert desk.planner.next_tick(desk.now) == pytest.approx(60.0)
    desk.tick(60.0)
    assert desk.heard(0, WriteBack) == []
    desk.checkpoint(0)
    desk.feed(lane=1)
    desk.report(1)
    assert desk.planner.ledger.redo_after(0) is None
    assert not desk.planner.seats[0].redo
    desk.tick(1000.0)
    assert not desk.heard(0, TakeCheckpoint), "never again"


def test_at_a_stop_all_lanes_checkpoint_at_once_and_a_join_proves_it() -> None:
    desk = busy()
    desk.feed(lane=1)
    desk.report(1, rows=1)
    desk.act(desk.planner.on_stop(desk.now))
    assert {desk.last(lane, TakeCheckpoint).at.epoch for lane in (0, 1)} == {desk.number}
    desk.checkpoint(0)
    assert not desk.planner.stopped
    desk.checkpoint(1)
    assert desk.planner.stopped


def test_at_a_stop_a_lane_that_has_nothing_in_the_journal_alone_is_left_in_peace() -> None:
    desk = busy()
    desk.act(desk.planner.on_stop(desk.now))
    assert not desk.heard(1, TakeCheckpoint)
    desk.checkpoint(0)
    assert desk.planner.stopped


def test_a_lane_that_joins_during_a_stop_with_less_than_is_committed_checkpoints_first() -> None:
    desk = busy()
    desk.lose(0)
    desk.act(desk.planner.on_stop(desk.now))
    assert not desk.planner.stopped
    desk.join(0)
    assert redo_epochs(desk.heard(0, Welcome)[0].redo) == [desk.number]
    desk.checkpoint(0)
    assert desk.planner.stopped


def test_the_last_commit_has_what_joins_proved_and_where_log_and_deliveries_are() -> None:
    desk = busy()
    desk.act(desk.planner.on_stop(desk.now))
    desk.checkpoint(0)
    desk.planner.on_logged(desk.number, desk.now)
    before = desk.number
    desk.act(desk.planner.on_close(desk.now))
    last = desk.commits[-1]
    assert (last.number, last.logged, list(last.checkpoints)) == (before + 1, before, [0])
    assert [desk.last(lane, GoAway) for lane in (0, 1)] == [GoAway(), GoAway()]
    desk.tick(100.0)
    assert desk.number == before + 1


def test_lanes_that_were_sent_away_are_not_missed() -> None:
    """Seed 392 of the simulation: a run that had closed and took a while to end was told that its lanes were lost."""
    desk = busy()
    desk.act(desk.planner.on_stop(desk.now))
    desk.checkpoint(0)
    desk.act(desk.planner.on_close(desk.now))
    for lane in (0, 1):
        desk.lose(lane)
    for _ in range(70):
        desk.tick(10.0)
    assert desk.asked_for(Warn) == desk.asked_for(End) == []


def test_a_close_waits_for_the_open_epoch() -> None:
    desk = busy()
    desk.feed()
    desk.act(desk.planner.on_close(desk.now))
    assert not desk.heard(0, GoAway)
    desk.report(0)
    assert desk.last(0, GoAway) == GoAway()


def test_a_start_after_a_clean_stop_redoes_nothing() -> None:
    desk = busy()
    desk.act(desk.planner.on_stop(desk.now))
    epoch = desk.last(0, TakeCheckpoint).at.epoch
    desk.checkpoint(0)
    desk.act(desk.planner.on_close(desk.now))
    again = Desk(ledger=desk.planner.ledger)
    again.join(0, state=Checkpoint(identity(desk, epoch)))
    assert again.last(0, Welcome).redo == []
