"""What lies in a journal and nobody names: what a crash, a lost attempt or a lost removal has left."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from millstream.core.ledger import Ledger
from millstream.journal.commits import COMMITS, MERGED, SNAPSHOTS
from millstream.journal.disk import Disk
from millstream.journal.errors import explained
from millstream.journal.notes import NOTES, Notes, place_of
from millstream.journal.segments import SEGMENTS, segment_path
from millstream.timestamp import HOUR, Duration, Timestamp

ASIDES_KEPT: Duration = HOUR


class Leftovers(msgspec.Struct, frozen=True):
    """What no commit named when it was looked for, and when each was last written. Whether it can go is for a commit to say."""

    segments: dict[str, Timestamp] = {}
    notes: dict[str, Timestamp] = {}


def find_leftovers(disk: Disk, ledger: Ledger) -> Leftovers:
    """Segments that no commit of this ledger names, and notes of batches that it has taken.

    May be asked beside the thread that commits: what is named meanwhile is asked for once more by whoever decides.
    """
    notes = Notes(disk)
    found = Leftovers({}, {})
    with explained(SEGMENTS):
        for segment in disk.names(SEGMENTS):
            if segment not in ledger.segments:
                with suppress(FileNotFoundError):
                    found.segments[segment] = disk.modified(segment_path(segment))
    for injector in notes.injectors():
        for note in notes.names(injector):
            if is_taken(note, ledger):
                with explained(NOTES), suppress(FileNotFoundError):
                    found.notes[note] = disk.modified(f"{NOTES}/{note}")
    return found


def is_taken(note: str, ledger: Ledger) -> bool:
    """Whether a commit has taken the batch of a note: from then on nobody reads it (rule 18)."""
    injector, batch = place_of(note)
    return injector in ledger.sources and batch <= ledger.sources[injector].batch


def journal_folders(disk: Disk) -> list[str]:
    """Where files are created whole."""
    with explained(NOTES):
        return [COMMITS, MERGED, SNAPSHOTS, *(f"{NOTES}/{injector}" for injector in disk.names(NOTES))]


def sweep_asides(disk: Disk, folders: Iterable[str], *, now: Timestamp) -> None:
    """Remove what one who was killed was writing aside, an hour after its last byte.

    No commit need say so (rule 13): such a file has no name yet that anybody could read it under. Its writer may live still,
    for as long as it hangs on a disk, and may even own the folder: it finds that its file cannot be linked, and stops as for
    any other error of the disk. Nothing was made, and nothing that was made is lost. The hour is to disturb nobody who works.
    """
    for folder in folders:
        with explained(folder):
            for path in disk.asides(folder):
                with suppress(FileNotFoundError):  # whoever wrote it is done
                    if now - disk.modified(path) >= ASIDES_KEPT:
                        disk.remove(path)
