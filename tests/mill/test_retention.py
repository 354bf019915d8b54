"""What the journal lets go, and when: rules 13 to 15."""

from __future__ import annotations

import pytest

from millstream.core.ledger import Commit, Ledger, LeftOut, Plant, Reader, Segment
from millstream.core.parts import NO_LANE, Frame, Part, RowsPart
from millstream.mill.actions import Remove, Write
from millstream.mill.messages import TakeCheckpoint
from millstream.mill.retention import free_segments, needed_from
from millstream.timestamp import Timestamp
from tests.mill.desk import Desk, graph_of

DELIVERIES = {"out": "it.said"}


def ledger_with(segment: Segment, **known: object) -> Ledger:
    return Ledger(number=10, segments={"s": segment}, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("segment", "known", "is_free"),
    [
        (Segment(0), {}, True),
        (Segment(0, waiting=1), {}, False),
        (Segment(0, records=5), {"logged": 4}, False),
        (Segment(0, records=5), {"logged": 5}, True),
        (Segment(0, rows=5), {"freed": {0: 4}}, False),
        (Segment(0, rows=5), {"freed": {0: 5}}, True),
        (Segment(0, rows=5), {"freed": {1: 9}}, False),
    ],
)
def test_rules_14_and_15_a_segment_is_free_when_nothing_in_it_is_needed(segment: Segment, known: dict[str, object], is_free: bool) -> None:
    ledger = ledger_with(segment, **known)
    assert free_segments(ledger, DELIVERIES, ()) == (["s"] if is_free else [])
    assert free_segments(ledger, DELIVERIES, {"s"}) == [], "more will be written to it"


def test_rule_15_what_the_log_does_not_have_waits_for_its_deliveries() -> None:
    deliveries = {"out": "it.said"}
    for delivered, free in ((4, []), (5, ["s"])):
        plant = Plant(deliveries=deliveries, unkept=["it.said"])
        ledger = ledger_with(Segment(0, unkept={"it.said": 5}), delivered={"out": delivered}, plant=plant)
        assert free_segments(ledger, deliveries, ()) == free
    assert free_segments(ledger_with(Segment(0, unkept={"other": 5})), deliveries, ()) == ["s"]  # nobody delivers it


def test_rule_13_a_segment_is_removed_after_the_commit_that_declares_it_free() -> None:
    desk = Desk(free_every=1.0)
    desk.join(0)
    desk.feed()
    desk.report(0)
    desk.planner.on_logged(desk.number, desk.now)
    assert desk.asked_for(Remove) == []
    desk.tick(1.0)  # a commit says how far the log is
    desk.tick(1.0)
    desk.feed(0, upto=1)
    declared, removed = desk.commits[-1], desk.asked_for(Remove)
    assert declared.free is not None
    assert removed == [Remove(declared.free.segments, [])]
    assert removed[0].segments == ["values"]
    assert desk.asked.index(Write(declared)) < desk.asked.index(removed[0])


def test_a_segment_that_is_still_written_to_stays() -> None:
    desk = Desk(free_every=0.0)
    desk.join(0)
    desk.feed(open_segments=["values"])
    desk.report(0, rows=1)
    desk.planner.on_logged(desk.number, desk.now)
    for second in range(3):
        desk.tick(1.0)
        desk.feed(0, upto=second, open_segments=["values"])
    assert desk.asked_for(Remove) == []
    desk.feed(0, upto=9)
    desk.feed(0, upto=10)
    assert [removed.segments for removed in desk.asked_for(Remove)] == [["values"]]  # not that of the lane


def test_rule_14_the_rows_of_a_lane_go_with_the_second_checkpoint_after_them() -> None:
    desk = Desk(checkpoint_rows=1, free_every=0.0)
    desk.join(0)
    for _ in range(2):
        desk.feed()
        desk.report(0, rows=1)
        assert isinstance(desk.last(0, TakeCheckpoint), TakeCheckpoint)
        desk.planner.seats[0].segment = ""  # it begins a new one with every checkpoint
        desk.checkpoint(0)
        desk.planner.on_logged(desk.number, desk.now)
        desk.feed(0, upto=1)
    assert "lane0" in desk.planner.ledger.segments  # rows of the second epoch lie in the same one
    desk.tick(400.0)
    desk.checkpoint(0)
    desk.feed(0, upto=2)
    desk.feed(0, upto=3)
    assert "lane0" not in desk.planner.ledger.segments
    assert ["lane0"] in [removed.segments for removed in desk.asked_for(Remove)]


def test_a_note_goes_with_the_commit_after_the_one_that_took_it() -> None:
    desk = Desk()
    desk.feed(0, batch=0, note="events/0-1")
    assert desk.commits[-1].free is None
    desk.feed(0, batch=1, note="events/1-1")
    assert desk.commits[-1].free is not None
    assert desk.commits[-1].free.notes == ["events/0-1"]
    assert desk.asked_for(Remove) == [Remove([], ["events/0-1"])]


# Which commits.


def rows_commit(number: int, lane: int) -> Commit:
    return Commit(number, f"c{number}", f"c{number - 1}", 1, Timestamp(0), frames=[Frame(f"lane{lane}", lane, [], RowsPart(0, 1, 0, 1))])


def test_commits_are_needed_by_the_log_and_by_lanes_that_redo() -> None:
    ledger = Ledger(plant=Plant(lanes=2), logged=0)
    for number in range(1, 6):
        ledger.apply(rows_commit(number, number % 2))
    assert needed_from(ledger) == 1
    ledger.logged, ledger.freed = 5, {0: 3, 1: 2}
    assert needed_from(ledger) == 3
    ledger.freed = {0: 5, 1: 5}
    assert needed_from(ledger) == 6


def test_a_delivery_of_a_kept_stream_needs_no_commits_and_one_of_another_does() -> None:
    plant = Plant(deliveries={"kept": "a", "other": "b"})
    ledger = Ledger(number=9, logged=8, delivered={"kept": 2, "other": 5}, plant=plant, left_out={"b": [LeftOut(1)]})
    assert needed_from(ledger) == 6
    ledger.left_out = {"b": [LeftOut(1, 7)]}  # it is kept by now, and the delivery is still behind with what was not
    assert needed_from(ledger) == 6
    ledger.delivered["other"] = 7
    assert needed_from(ledger) == 9


def test_a_delivery_that_stays_keeps_its_claim_on_what_is_not_kept_and_a_new_one_begins_with_the_present() -> None:
    """Whatever the next program keeps."""
    first = Desk(graph_of(deliver=True, keep=False))
    assert first.ledger.plant.since == {"out": 1}
    first.join(0)
    first.feed()
    first.report(0, productions=1)
    again = Desk(graph_of(deliver=True), ledger=first.ledger, free_every=0.0)
    assert again.ledger.plant.since == {"out": 1}
    again.join(0)
    again.report(0)  # `relay` has it
    for delivered, there in ((0, True), (first.number, False)):
        again.planner.on_logged(again.number, again.now)
        again.planner.on_delivered("out", delivered, again.now)
        for second in range(3):
            again.tick(2.0)
            again.feed(0, upto=10 * delivered + second)
        assert ("lane0" in again.ledger.segments) == there
    without = Desk(graph_of(), ledger=again.ledger)
    assert without.ledger.plant.since == {}
    later = Desk(graph_of(deliver=True, keep=False), ledger=without.ledger)
    assert later.ledger.plant.since == {"out": later.number}


def test_what_nobody_reads_does_not_wait() -> None:
    part = Part(0, 1, 0, 0, "said", "", "said", 1, 1, Timestamp(0))
    ledger = Ledger(readers={"r": Reader("said", False, 1)})
    ledger.apply(Commit(1, "c1", "", 1, Timestamp(0), frames=[Frame("s", NO_LANE, [part])]))
    assert ledger.segments["s"].waiting == 1
    ledger.apply(Commit(2, "c2", "c1", 1, Timestamp(0), readers={"r": None}))
    assert (ledger.segments["s"].waiting, ledger.waiting) == (0, {})
