"""Lanes that come, go, die, fail and hang, as the planner sees them. The rules are those of docs/protocol.md."""

from __future__ import annotations

import pytest

from millstream.core.ledger import Checkpoint, Identity
from millstream.mill.actions import Close, End, Inform, Look, Warn
from millstream.mill.messages import Busy, Failed, GoAway, Welcome, Work
from millstream.mill.watching import troubles
from tests.mill.desk import Desk, identity, redo_epochs


def test_rule_5_the_greatest_attempt_is_admitted_and_the_one_before_it_is_closed(desk: Desk) -> None:
    old = desk.sitting[0]
    new = desk.join(0)
    assert desk.asked_for(Close) == [Close(old)]
    assert desk.heard(0, Welcome)
    desk.feed()
    assert isinstance(desk.said[new][-1], Work)
    assert not any(isinstance(message, Work) for message in desk.said[old])


def test_rule_5_an_older_attempt_is_refused_even_if_no_newer_one_is_connected(desk: Desk) -> None:
    attempt = desk.planner.seats[0].attempt
    desk.lose(0)
    for late in (attempt - 1, attempt):
        connection = desk.join(0, attempt=late)
        assert desk.asked[-1] == Close(connection)
        assert connection not in desk.said
    assert not desk.planner.seats[0].here


def test_rule_5_a_new_planner_admits_whichever_number_comes_first() -> None:
    desk = Desk()
    desk.join(0, attempt=0)
    assert desk.heard(0, Welcome)


def test_a_lane_that_was_lost_and_comes_back_is_told_of_once(desk: Desk) -> None:
    desk.lose(0)
    desk.tick(2.5)
    desk.join(0)
    assert desk.asked_for(Inform) == [Inform("lane 0 was lost, and is back after 2.5 s")]
    desk.join(0)  # a newer attempt takes the place of one that is there: nothing was missed
    assert len(desk.asked_for(Inform)) == 1


def test_rule_7_a_lane_is_told_to_redo_what_its_state_lacks(desk: Desk) -> None:
    for _ in range(3):
        desk.feed()
        desk.report(0, rows=1)
    epochs = [commit.number for commit in desk.commits if any(frame.rows for frame in commit.frames)]
    desk.lose(0)
    desk.join(0)
    welcome = desk.last(0, Welcome)
    assert (welcome.committed, redo_epochs(welcome.redo)) == (desk.number, epochs)
    desk.lose(0)
    desk.join(0, state=Checkpoint(identity(desk, epochs[1])))
    assert redo_epochs(desk.last(0, Welcome).redo) == epochs[2:]
    desk.feed()
    assert redo_epochs(desk.last(0, Work).redo) == []  # once


def test_rule_8_a_report_that_was_read_stands_and_the_new_attempt_redoes_it(desk: Desk) -> None:
    desk.feed(lane=0)
    desk.report(0, rows=1)
    desk.feed(lane=0)
    desk.feed(lane=1)  # named by the commit of the epoch that is open
    desk.report(0, rows=1)
    desk.feed(lane=0)  # an epoch of both lanes is open now, or the next one is
    while len(desk.planner.opened.lanes if desk.planner.opened else []) < 2:
        for lane in desk.planner.opened.lanes if desk.planner.opened else []:
            desk.report(lane, rows=1)
        desk.feed(lane=0)
        desk.feed(lane=1)
    desk.report(0, rows=1)
    number = desk.number
    desk.lose(0)
    desk.join(0)
    assert not desk.heard(0, Work), "it is not given what was reported"
    desk.report(1, rows=1)
    assert desk.number == number + 1
    desk.feed(lane=0)
    assert redo_epochs(desk.last(0, Work).redo) == [number + 1]


def test_rule_8_a_lane_that_was_lost_without_a_report_is_given_the_plan_again(desk: Desk) -> None:
    desk.feed()
    first = desk.last(0, Work)
    desk.lose(0)
    desk.tick(5.0)
    number = desk.number
    desk.join(0)
    again = desk.last(0, Work)
    assert (again.header, again.try_number, again.given) == (first.header, first.try_number, first.given)
    desk.report(0)
    assert desk.number == number + 1


def test_rule_8_no_commit_before_all_have_reported() -> None:
    desk = Desk()
    desk.feed(lane=0)
    desk.feed(lane=1)
    number = desk.number
    desk.join(0)
    desk.report(0)
    desk.join(1)
    desk.feed(lane=0)
    assert desk.planner.opened is not None
    assert desk.planner.opened.lanes == [1]
    desk.report(1)
    assert desk.planner.opened is not None  # that of lane 0
    desk.feed(lane=0)
    desk.feed(lane=1)
    desk.report(0)
    assert desk.planner.opened is not None
    assert desk.planner.opened.lanes == [0, 1]
    before = desk.number
    desk.report(1)
    assert desk.number == before > number
    desk.report(0)
    assert desk.number == before + 1


@pytest.mark.parametrize("wrong", [{"try_number": 0}, {"epoch": 1}, {"epoch": 999}])
def test_a_report_of_another_try_or_epoch_is_not_read(desk: Desk, wrong: dict[str, int]) -> None:
    desk.feed()
    number = desk.number
    assert desk.report(0, **wrong) == []
    assert desk.number == number
    desk.report(0)
    assert desk.number == number + 1


def test_rule_8_a_report_of_a_connection_that_is_not_admitted_is_not_read(desk: Desk) -> None:
    desk.feed()
    old, number = desk.sitting[0], desk.number
    new = desk.join(0)
    desk.sitting[0] = old
    assert desk.report(0) == []
    assert desk.number == number
    desk.sitting[0] = new
    desk.report(0)
    assert desk.number == number + 1


def test_rule_8_a_lane_that_is_lost_five_times_within_a_minute_ends_the_run_with_its_last_error(desk: Desk) -> None:
    for _ in range(4):
        desk.planner.seats[0].error = "out of luck"
        assert desk.lose(0) == []
        desk.tick(10.0)
        desk.join(0)
    assert desk.lose(0) == [End("LaneLost", "lane 0 was lost 5 times within a minute: out of luck")]


def test_rule_8_a_commit_or_a_minute_between_resets_the_count_of_losses(desk: Desk) -> None:
    for round_ in range(12):
        assert desk.lose(0) == []
        desk.join(0)
        desk.tick(20.0 if round_ < 6 else 0.0)
        if round_ >= 6:
            desk.feed()
            desk.report(0)


def test_rule_9_a_lane_that_dies_twice_of_an_epoch_is_given_half_as_much(desk: Desk) -> None:
    desk.feed(10, parts=8, lane=0)
    assert len(desk.last(0, Work).given) == 8
    first = desk.last(0, Work).try_number
    desk.lose(0)
    desk.join(0)
    desk.lose(0)
    assert desk.planner.opened is None
    desk.join(0)
    run = desk.last(0, Work)
    assert (len(run.given), run.header.epoch) == (4, desk.number + 1)
    assert run.try_number > first  # the number of the epoch is used again, that of the try is not
    desk.report(0)
    assert len(desk.last(0, Work).given) == 4  # the rest


def test_rule_9_all_lanes_of_an_aborted_epoch_fail_and_come_back(desk: Desk) -> None:
    desk.disk_waits = True
    desk.feed(0, upto=1)
    desk.feed(lane=0, parts=2)
    desk.feed(lane=1, parts=2)
    desk.disk_waits = False
    desk.act(desk.planner.on_committed(desk.now))
    assert desk.planner.opened is not None
    assert desk.planner.opened.lanes == [0, 1]
    other = desk.sitting[1]
    desk.report(1, rows=1)
    desk.lose(0)
    desk.join(0)
    number = desk.number
    assert desk.lose(0) == [Close(other)]
    desk.join(0)
    desk.join(1)
    while not desk.planner.idle:
        for lane in desk.planner.opened.lanes if desk.planner.opened else []:
            desk.report(lane)
    assert sum(len(offsets) for commit in desk.commits for offsets in commit.took.values()) == 4
    assert desk.number > number


def test_rule_9_a_single_part_that_kills_its_lane_ends_the_run_with_a_word_about_memory(desk: Desk) -> None:
    desk.feed(1000, parts=1)
    desk.lose(0)
    desk.join(0)
    (end,) = desk.lose(0)
    assert isinstance(end, End)
    assert "died twice of epoch" in end.message
    assert "max_records_per_epoch" in end.message


def fail(desk: Desk, kind: str, message: str, lane: int = 0) -> list[object]:
    run = desk.last(lane, Work)
    return list(desk.act(desk.planner.on_failed(desk.sitting[lane], Failed(run.header.epoch, run.try_number, kind, message), desk.now)))


def test_rule_9_code_that_raises_ends_the_run_and_nothing_of_the_epoch_stays(desk: Desk) -> None:
    desk.feed(3)
    number, connection = desk.number, desk.sitting[0]
    assert fail(desk, "RecordError", "computation 'it', key 'a'") == [Close(connection), End("RecordError", "computation 'it', key 'a'")]
    assert (desk.number, desk.planner.opened) == (number, None)
    desk.join(0)  # of a repaired program, say
    assert [given.part.records for given in desk.last(0, Work).given] == [3]


def test_rule_9_an_epoch_that_does_not_fit_into_memory_is_planned_again_with_less(desk: Desk) -> None:
    desk.feed(10, parts=4)
    assert fail(desk, "MemoryError", "too much") == [Close(desk.sitting[0])]
    desk.join(0)
    assert len(desk.last(0, Work).given) == 2
    assert fail(desk, "MemoryError", "too much") == [Close(desk.sitting[0])]
    desk.join(0)
    assert len(desk.last(0, Work).given) == 1
    *_, end = fail(desk, "MemoryError", "too much")
    assert isinstance(end, End)
    assert end.message.startswith("too much. It may be killed for lack of memory")


@pytest.mark.parametrize("kind", ["Missing", "Damaged"])
def test_rule_12_a_frame_that_cannot_be_read_is_damage_only_if_nobody_has_taken_over(desk: Desk, kind: str) -> None:
    desk.feed()
    assert fail(desk, kind, "segments/x is gone")[-1] == Look("segments/x is gone")


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (Identity(99, "c99", "1"), "is of epoch 99, and the journal ends with 2"),
        (Identity(2, "of another", "1"), "is of epoch 2 of another copy of this folder"),
    ],
)
def test_rules_11_and_12_a_state_that_does_not_belong_here_is_looked_into(state: Identity, why: str) -> None:
    desk = Desk()
    desk.feed(0, upto=1)
    connection = desk.join(0, state=Checkpoint(state), commit="c2")
    close, look = desk.asked[-2:]
    assert close == Close(connection)
    assert isinstance(look, Look)
    assert why in look.otherwise
    assert "restore both from one copy" in look.otherwise


def test_a_lane_that_comes_when_all_is_over_is_sent_away(desk: Desk) -> None:
    """It would wait for ever: nobody plans for it any more."""
    desk.act(desk.planner.on_close(desk.now))
    assert [desk.last(lane, GoAway) for lane in (0, 1)] == [GoAway(), GoAway()]
    desk.lose(0)
    desk.join(0)
    assert desk.said[desk.sitting[0]] == [GoAway()]


# Time alone.


CORES = "if it waits for a slot: 2 lanes and the inputs take 4 cores in all"


def test_a_lane_that_does_not_come_is_told_of_once_with_the_number_of_cores_it_takes() -> None:
    """Whether it starts slowly or has no slot, the planner does not know."""
    desk = Desk()
    desk.join(1)
    desk.tick(10.0)
    assert desk.asked_for(Warn) == []
    for _ in range(10):
        desk.tick(10.0)
    (warning,) = desk.asked_for(Warn)
    assert warning.message == f"lane 0 has not connected for 40 s; {CORES}"
    assert [trouble.message for trouble in troubles(desk.planner, desk.now)] == [f"lane 0 has not connected for 110 s; {CORES}"]
    desk.join(0)
    assert troubles(desk.planner, desk.now) == []


def test_lanes_that_do_not_come_are_told_of_together() -> None:
    desk = Desk(lanes=4)
    desk.join(2)
    desk.tick(31.0)
    desk.tick(10.0)
    cores = "if they wait for slots: 4 lanes and the inputs take 6 cores in all"
    (warning,) = desk.asked_for(Warn)
    assert warning.message == f"lanes 0, 1 and 3 have not connected for 31 s; {cores}"
    desk.join(1)
    assert [trouble.message for trouble in troubles(desk.planner, desk.now)] == [f"lanes 0 and 3 have not connected for 41 s; {cores}"]
    desk.lose(2)
    desk.tick(31.0)
    warnings = [warning.message for warning in desk.asked_for(Warn)]
    assert warnings[1:] == [
        "lane 2 was lost, and has been away for 31 s; if it waits for a slot: 4 lanes and the inputs take 6 cores in all"
    ]


def test_rule_9_a_lane_that_never_comes_ends_the_run() -> None:
    desk = Desk()
    desk.join(1)
    for _ in range(60):
        desk.tick(10.0)
    assert desk.asked_for(End) == []
    desk.tick(10.1)
    (end,) = desk.asked_for(End)
    assert (end.kind, end.message) == ("LaneTimeout", f"lane 0 has not connected for 610 s; {CORES}")


def test_a_lane_that_was_lost_and_does_not_come_back_is_told_of_each_time(desk: Desk) -> None:
    for times in (1, 2):
        desk.lose(1)
        desk.tick(29.0)
        assert len(desk.asked_for(Warn)) == times - 1
        desk.tick(2.0)
        desk.tick(60.0)
        assert [warning.message for warning in desk.asked_for(Warn)] == [f"lane 1 was lost, and has been away for 31 s; {CORES}"] * times
        desk.join(1)


def test_rule_9_a_lane_that_takes_long_is_told_of_with_what_it_is_at(desk: Desk) -> None:
    desk.feed()
    desk.planner.on_busy(desk.sitting[0], Busy("it", "slow key"), desk.now)
    desk.tick(9.0)
    assert desk.asked_for(Warn) == []
    desk.tick(2.0)
    desk.tick(2.0)
    (warning,) = desk.asked_for(Warn)
    assert warning.message.endswith("for 11 s in computation 'it', key 'slow key'")


def test_rule_9_a_lane_that_says_nothing_ends_the_run(desk: Desk) -> None:
    desk.feed()
    for _ in range(59):
        desk.tick(10.0)
    assert desk.asked_for(End) == []
    desk.tick(10.1)
    (end,) = desk.asked_for(End)
    assert (end.kind, "lane 0 has said nothing for 600 s" in end.message) == ("LaneTimeout", True)


def test_rule_9_a_lane_that_is_at_one_key_for_too_long_ends_the_run_and_one_that_gets_on_does_not(desk: Desk) -> None:
    desk.feed()
    for number in range(100):
        desk.tick(100.0)
        desk.planner.on_busy(desk.sitting[0], Busy("it", f"key {number}"), desk.now)
    assert desk.asked_for(End) == []
    for _ in range(7):
        desk.planner.on_busy(desk.sitting[0], Busy("it", "stuck"), desk.now)
        desk.tick(100.0)
    assert "has been busy for 600 s in computation 'it', key 'stuck'" in desk.asked_for(End)[0].message
    assert "lane_timeout" in desk.asked_for(End)[0].message


def test_a_planner_that_can_do_nothing_does_not_spin() -> None:
    """Whatever is due and cannot be done yet: it is woken by what changes that, and looks once a second."""
    desk = Desk(linger=0.005, checkpoint_every=1.0)
    desk.feed(lane=0)
    desk.feed(lane=1)
    for _ in range(2):  # the first has named what was fed
        desk.tick(60.0)  # both lanes are away, and their parts are due
    assert desk.planner.next_tick(desk.now) == 1.0
    desk.join(0)  # its epoch is open; a checkpoint would be due, were it committed
    desk.tick(60.0)
    assert desk.planner.next_tick(desk.now) == 1.0
    desk.report(0, rows=1)
    desk.planner.on_logged(desk.number, desk.now)
    desk.planner.on_stop(desk.now)
    desk.tick(60.0)  # positions are due, and a stop does not commit them
    wait = desk.planner.next_tick(desk.now)
    assert wait is not None
    assert wait >= 1.0


def test_an_idle_planner_waits_for_events_alone(desk: Desk) -> None:
    desk.feed()
    desk.report(0)
    desk.tick(1.0)
    assert desk.planner.next_tick(desk.now) is None
