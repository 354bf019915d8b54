"""What the simulation found, each with the story of its seed in a line and the smallest case that shows it."""

from __future__ import annotations

from dataclasses import replace

from millstream.core.lanes import Lanes
from millstream.core.ledger import Checkpoint, Commit, Identity, Ledger, Plant
from millstream.core.parts import NO_LANE, Columns, Frame, RowsPart
from millstream.core.route import Dealer
from millstream.journal.notes import Note
from millstream.journal.segments import SegmentReader, SegmentWriter
from millstream.mill.actions import Fed, Moment, Settings
from millstream.mill.noted import frames_of
from millstream.mill.pending import Pending
from millstream.mill.retention import needed_from
from millstream.timestamp import Timestamp
from tests.core.cases import Case, Node, Read
from tests.journal.simdisk import SimDisk
from tests.simulation import mutants
from tests.simulation.play import simulate
from tests.simulation.scene import ProbeAt, Program, build

CASE = Case(1, (Node((Read("in0", 2),)),), ())
AT = Moment(Timestamp(0), 0.0)


def commit(number: int, **content: object) -> Commit:
    return Commit(number, f"c{number}", f"c{number - 1}" if number > 1 else "", 1, Timestamp(0), **content)  # type: ignore[arg-type]


def rows_frame(lane: int) -> Frame:
    return Frame(f"lane{lane}", lane, [], RowsPart(0, 1, 0, 1))


def test_a_note_of_another_program_has_parts_for_whoever_reads_now() -> None:
    """Seeds 35 and 96: a query left its note and the run died; the next program had one more reader, which waited for ever for a
    part of no lane, or never saw these records."""
    disk = SimDisk()
    lanes = Lanes(4, 2)
    writer = SegmentWriter(disk, "batch", lambda: "1")
    columns = Columns(["a", "b", ""], [b'{"key":"a","number":1,"weight":1,"at":1}'] * 3, [Timestamp(1)] * 3, [0, 1, 2])
    old = build(CASE, Program())
    frame = writer.append(Dealer(old, lanes).deal("in0", "in0", 0, columns, lane=NO_LANE), lane=NO_LANE)
    note = Note("in0", 0, 1, [frame], {}, 3, 0)
    new = build(CASE, Program(after=(ProbeAt("plain", "in0", 0), ProbeAt("keyed", "in0", 3))))
    options = {
        "dealer": Dealer(new, lanes),
        "reader": SegmentReader(disk, sleep=lambda seconds: None),
        "writer": SegmentWriter(disk, "noted", lambda: "2"),
    }
    assert frames_of(note, fence=1, **options) == [frame]  # type: ignore[arg-type]
    (again,) = frames_of(note, fence=2, **options)  # type: ignore[arg-type]
    assert all(part.lane >= 0 for part in again.parts)
    assert {part.reader for part in again.parts} == {"", "n0 ← in0", "keyed ← in0"}
    assert {part.major for part in again.parts} == {0}


def test_a_lane_that_is_touched_late_does_not_ask_for_commits_that_are_gone() -> None:
    """Seed 142: commits were dropped that no lane needed; then a lane without a checkpoint changed its first row, and the next
    start asked for all commits from the first on."""
    ledger = Ledger()
    ledger.apply(commit(1, plant=Plant(lanes=2), logged=1))
    ledger.apply(commit(2, logged=2))
    assert needed_from(ledger) == 3
    ledger.apply(commit(3, frames=[rows_frame(0)], logged=3))
    assert (needed_from(ledger), ledger.redo_after(0), ledger.redo_after(1)) == (3, 2, None)
    proof = Checkpoint(Identity(4, "c4", "2"), Identity(3, "c3", "1"))
    ledger.apply(commit(4, checkpoints={0: proof}, logged=4))
    assert (needed_from(ledger), ledger.redo_after(0)) == (5, None)
    ledger.apply(commit(5, frames=[rows_frame(0)], logged=5))
    assert (needed_from(ledger), ledger.redo_after(0), ledger.free_rows(0)) == (5, 4, 3)
    # What Spark may fall back to is known, though its commit may be gone; whoever wrote it.
    assert ledger.knows(0, Identity(3, "c3", "9"))
    assert not ledger.knows(0, Identity(3, "other", "1"))


def test_a_commit_does_not_free_the_segment_that_it_names() -> None:
    """Seed 388: a source ended, so its segment was no longer open, while its last frames waited for the very same commit."""
    graph = build(CASE, Program())
    ledger = Ledger()
    ledger.apply(commit(1, plant=Plant(), frames=[Frame("values-1", NO_LANE, [])], logged=1))
    pending = Pending(graph.outline, Settings(free_every=0.0), {}, AT)
    pending.feed(Fed("in0", [Frame("values-1", NO_LANE, [])], {}, open_segments=["values-1"]), ledger, AT)
    pending.feed(Fed("in0", [], {}, finished=True), ledger, AT)
    made = commit(2)
    pending.ride(made, ledger, (), AT, last=False)
    assert made.free is None
    later = commit(3)
    pending.ride(later, ledger, (), AT, last=False)
    assert later.free is not None
    assert later.free.segments == ["values-1"]


def test_a_state_that_was_given_up_is_of_a_commit_that_is_there() -> None:
    """Seed 10189 of FREEING: an idle lane was told to checkpoint before a commit had proved its last one, was given up, and Spark
    took its state when that commit was gone: refused as of another copy."""
    assert simulate(10_189, replace(mutants.FREEING, in_order=False)).broken is None
