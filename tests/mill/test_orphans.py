"""Orphans: what no commit names, nor will. They are declared free in a commit, and nothing else is (rule 13)."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.ledger import Free, Ledger, Segment, SourceProgress
from millstream.core.parts import Frame, RowsPart
from millstream.journal.leftovers import Leftovers
from millstream.mill import retention
from millstream.mill.actions import Remove, Write
from millstream.mill.retention import free_orphans, is_orphan
from millstream.timestamp import Timestamp
from tests.mill.desk import CLOCK, Desk

LONG_AGO = CLOCK - ms.DAY


def leftovers(*segments: str, notes: tuple[str, ...] = (), written: Timestamp = LONG_AGO) -> Leftovers:
    return Leftovers(dict.fromkeys(segments, written), dict.fromkeys(notes, written))


def look(desk: Desk, *segments: str, **found: object) -> None:
    """A look finds these."""
    desk.act(desk.planner.on_leftovers(leftovers(*segments, **found), desk.now))  # type: ignore[arg-type]


def declared(desk: Desk) -> list[Free]:
    return [commit.free for commit in desk.commits if commit.free is not None]


@pytest.mark.parametrize(
    ("segment", "orphan"),
    [
        ("lane0-1", True),
        ("lane0-2", False),  # a commit names it
        ("values-000003-1", True),
        ("values-000004-1", False),  # of this run: it may be about to feed
        ("noted-000003-1", True),
        ("noted-000004-1", False),
        ("values-000005-1", False),  # of a newer one
        ("source-clicks-000000000007-1", True),
        ("source-clicks-000000000008-1", False),  # its batch runs, or its note waits, in whichever run
        ("source-visits-000000000000-1", False),
        ("something else", False),
    ],
)
def test_an_orphan_is_known_by_who_made_it(segment: str, orphan: bool) -> None:
    ledger = Ledger(number=9, fence=4, segments={"lane0-2": Segment(0)}, sources={"clicks": SourceProgress(batch=7)})
    assert is_orphan(segment, ledger) is orphan
    assert free_orphans(leftovers(segment), ledger, named=(), before=CLOCK).segments == ([segment] if orphan else [])
    assert free_orphans(leftovers(segment), ledger, named={segment}, before=CLOCK) == Free()


def test_a_note_is_one_when_its_batch_was_taken() -> None:
    ledger = Ledger(number=9, fence=4, sources={"clicks": SourceProgress(batch=7)})
    notes = tuple(f"{name}-000002" for name in ("clicks/000000000006", "clicks/000000000007", "clicks/000000000008", "visits/000000000000"))
    assert free_orphans(leftovers(notes=notes), ledger, named=(), before=CLOCK).notes == list(notes[:2])


def test_an_orphan_goes_when_nobody_has_written_to_it_for_an_hour() -> None:
    desk = Desk()
    look(desk, "lane0-1", written=desk.clock - ms.HOUR + ms.MICROSECOND)
    desk.feed(0, upto=1)
    assert declared(desk) == []
    look(desk, "lane0-1", written=desk.clock - ms.HOUR)
    desk.feed(0, upto=2)
    assert declared(desk) == [Free(["lane0-1"])]


def test_rule_13_orphans_are_removed_after_the_commit_that_declares_them_free() -> None:
    desk = Desk()
    desk.disk_waits = True
    look(desk, "lane0-1", "values-000000-1")
    desk.tick(1.0)  # a commit of their own, a second later at most
    assert declared(desk) == [Free(["lane0-1", "values-000000-1"])]
    assert desk.asked_for(Remove) == []
    desk.act(desk.planner.on_committed(desk.now))
    assert [type(action) for action in desk.asked] == [Write, Remove]
    assert desk.asked_for(Remove) == [Remove(["lane0-1", "values-000000-1"], [])]
    desk.disk_waits = False
    desk.tick(2.0)
    desk.feed(0, upto=1)
    assert len(declared(desk)) == 1, "once"


def test_where_there_is_none_no_commit_is_made() -> None:
    desk = Desk()
    look(desk, "source-events-000000000000-1", "values-000001-1", "something else")
    desk.tick(2.0)
    assert desk.commits == []


def test_what_is_found_while_a_lane_runs_is_named_by_the_commit_and_stays() -> None:
    """Its report is on its way: the planner slept for hours, or another lane has no slot."""
    desk = Desk(orphaned_after=0.0)
    desk.join(0)
    desk.feed()
    look(desk, "lane0-1")
    desk.tick(5.0)
    assert desk.commits == []
    desk.report(0, frames=[Frame("lane0-1", 0, [], RowsPart(0, 20, 0, 1))])
    assert (desk.number, declared(desk)) == (2, [])
    look(desk, "lane0-1")  # what a look found before the commit may be heard after it
    desk.tick(5.0)
    desk.feed(0, upto=1)
    assert "lane0-1" in desk.planner.ledger.segments
    assert declared(desk) == []


def test_what_an_aborted_epoch_left_is_one() -> None:
    desk = Desk()
    desk.join(0)
    desk.feed(parts=2)
    look(desk, "lane0-1")
    desk.lose(0)
    desk.join(0)
    desk.lose(0)
    assert desk.planner.opened is None
    desk.join(0)
    desk.report(0)
    assert declared(desk) == [Free(["lane0-1"])]


def test_the_segments_of_a_batch_are_none_before_it_is_taken() -> None:
    """Not while it runs, not when it has left a note, not while the commit is written that takes it."""
    desk = Desk(orphaned_after=0.0)
    left = "source-events-000000000000-1"
    look(desk, left)
    desk.feed(0, upto=1)
    desk.disk_waits = True
    look(desk, left)
    desk.feed(0, batch=0, note="events/000000000000-000001")  # of another attempt of a task, or as another run dealt it
    assert declared(desk) == []
    look(desk, left)
    desk.act(desk.planner.on_committed(desk.now))
    desk.feed(0, upto=2)
    assert declared(desk) == [Free([left], ["events/000000000000-000001"])]


def test_a_note_whose_removal_a_crash_lost_is_declared_again_and_only_once() -> None:
    desk = Desk(orphaned_after=0.0)
    for batch in range(2):
        desk.feed(0, batch=batch, note=f"events/{batch:012d}-000001")
    look(desk, notes=tuple(f"events/{batch:012d}-000001" for batch in range(3)))
    desk.feed(0, upto=1)
    assert declared(desk)[-1] == Free(notes=["events/000000000001-000001", "events/000000000000-000001"])


def test_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ORPHANS_PER_COMMIT", 2)
    desk = Desk()
    for _ in range(2):
        look(desk, "something else", *(f"lane0-{n}" for n in range(3)))
        desk.feed(0, upto=1)
        desk.tick(1.0)
    assert declared(desk) == [Free(["lane0-0", "lane0-1"])] * 2  # the others when a look finds these gone
