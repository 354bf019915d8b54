"""What the journal may let go (rules 13 to 15). Decided here, declared in a commit, removed after it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import islice

from millstream.core.ledger import Free, Ledger, Segment
from millstream.journal.leftovers import Leftovers, is_taken
from millstream.journal.names import ByLane, ByTask, ByThread, maker_of
from millstream.timestamp import Timestamp

ORPHANS_PER_COMMIT = 1_000  # the rest by later ones


def free_segments(ledger: Ledger, deliveries: Mapping[str, str], current: Container[str]) -> list[str]:
    """Segments of which nothing is needed any more; those that are still written to stay. `deliveries` names the stream of each."""
    readers: dict[str, list[str]] = {}
    for name, stream in deliveries.items():
        readers.setdefault(stream, []).append(name)
    return [name for name, segment in ledger.segments.items() if name not in current and _is_free(segment, ledger, readers)]


def _is_free(segment: Segment, ledger: Ledger, readers: dict[str, list[str]]) -> bool:
    if segment.waiting or segment.records > ledger.logged:
        return False
    if segment.rows and segment.rows > ledger.free_rows(segment.lane):
        return False
    # What the log does not have is there for its deliveries only; what it has, whoever is behind reads there.
    return all(ledger.has_upto(name) >= epoch for stream, epoch in segment.unkept.items() for name in readers.get(stream, ()))


def free_orphans(found: Leftovers, ledger: Ledger, *, named: Container[str], before: Timestamp) -> Free:
    """What was found of which nothing can ever be needed, and that nobody has written to since `before`.

    For the commit that comes next after this ledger; `named` are the segments of its own frames, and those that lanes write to.
    """
    segments = (name for name, at in found.segments.items() if at <= before and name not in named and is_orphan(name, ledger))
    notes = (name for name, at in found.notes.items() if at <= before and is_taken(name, ledger))
    return Free(list(islice(segments, ORPHANS_PER_COMMIT)), list(islice(notes, ORPHANS_PER_COMMIT)))


def is_orphan(segment: str, ledger: Ledger) -> bool:
    """Whether no commit names a segment, nor will any after the next: it was there before that one is made, which does not.

    It is known by who made it, however long ago: a run may sleep, and a batch may take hours.
    """
    if segment in ledger.segments:
        return False
    match maker_of(segment):
        case ByLane():  # a commit is made when all lanes of the epoch have reported: whoever wrote this is of none, or not admitted
            return True
        case ByThread(_, fence):  # of this run, it may be about to feed; of an earlier one, nobody hears it
            return fence < ledger.fence
        case ByTask(injector, batch):  # of whichever run, a note may come that names it, until one of that batch was taken
            return injector in ledger.sources and batch <= ledger.sources[injector].batch
        case None:
            return False


def needed_from(ledger: Ledger) -> int:
    """The first commit that somebody may still ask for: a lane that redoes, the writer that begins again, or a delivery of what
    the log leaves out. All else it reads up to there in the log."""
    needed = [ledger.logged + 1]
    needed += [after + 1 for lane in ledger.touched if (after := ledger.redo_after(lane)) is not None]
    for name, stream in ledger.plant.deliveries.items():
        if (span := ledger.next_left_out(stream, has := ledger.has_upto(name))) is not None:
            needed.append(max(has, span.after) + 1)
    return min(needed)
