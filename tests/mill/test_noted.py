"""Notes that Spark queries leave: each is fed once, in order, also where two threads find it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millstream.core.lanes import Lanes
from millstream.core.ledger import Ledger, SourceProgress
from millstream.core.parts import NO_LANE, Columns, Frame
from millstream.core.route import Dealer
from millstream.journal.disk import LocalDisk
from millstream.journal.errors import Missing
from millstream.journal.notes import Note
from millstream.journal.segments import SegmentWriter, segment_path
from millstream.mill.actions import Fed
from millstream.mill.noted import NoteTaker
from tests.conformance.scenes import at
from tests.mill.desk import graph_of

FENCE = 3


class Place:
    """A journal, and a taker of its notes for a run of fence 3."""

    def __init__(self, folder: Path) -> None:
        self.disk, self.ledger = LocalDisk(folder), Ledger(fence=FENCE)
        self.dealer = Dealer(graph_of(), Lanes(2, 1))
        self.fed: list[Fed] = []
        self.taker = NoteTaker(self.disk, self.ledger, self.dealer, self.fed.append)

    def leave(self, batch: int, *, fence: int = FENCE) -> Frame:
        writer = SegmentWriter(self.disk, "source-events", lambda: uuid.uuid4().hex)
        columns = Columns(["k"], [b"{}"], [at(1)], [batch])
        frame = writer.append(self.dealer.deal("events", "events", batch, columns, lane=NO_LANE), lane=NO_LANE)
        writer.close()
        self.taker.notes.leave(Note("events", batch, fence, [frame], {}, 1, 0))
        return frame


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_note_is_fed_once_and_in_order_though_no_commit_has_taken_it_yet(place: Place) -> None:
    frames = [place.leave(0), place.leave(1)]
    place.taker.take("events")
    place.taker.take("events")
    assert [(fed.batch, fed.frames) for fed in place.fed] == [(0, [frames[0]]), (1, [frames[1]])]


def test_what_a_commit_has_taken_is_not_fed_again(place: Place) -> None:
    place.leave(0)
    place.leave(1)
    place.ledger.sources["events"] = SourceProgress(batch=0)
    place.taker.take("events")
    assert [fed.batch for fed in place.fed] == [1]


def test_a_note_of_another_run_is_dealt_anew(place: Place) -> None:
    old = place.leave(0, fence=FENCE - 1)
    place.taker.take("events")
    (frame,) = place.fed[0].frames
    assert frame.segment != old.segment
    assert [(part.stream, part.major, part.records) for part in frame.parts] == [(part.stream, part.major, 1) for part in old.parts]


@pytest.mark.parametrize("taken", [True, False])
def test_a_note_of_another_run_may_lose_its_frames_once_it_was_taken(place: Place, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is committed, and what it was dealt from is swept, while it is read."""
    frame = place.leave(0, fence=FENCE - 1)
    place.disk.remove(segment_path(frame.segment))
    if taken:
        found = place.taker.notes.next

        def find(injector: str, after: int) -> Note | None:
            note = found(injector, after)
            place.ledger.sources["events"] = SourceProgress(batch=0)
            return note

        monkeypatch.setattr(place.taker.notes, "next", find)
        place.taker.take("events")
        assert not place.fed
    else:
        with pytest.raises(Missing, match="is missing"):
            place.taker.take("events")
