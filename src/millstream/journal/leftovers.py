"""What lies in a journal and nobody names: what a crash, a lost attempt or a lost removal has left."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from millstream.journal.commits import COMMITS, MERGED, SNAPSHOTS
from millstream.journal.disk import Disk
from millstream.journal.errors import explained
from millstream.journal.notes import NOTES
from millstream.timestamp import HOUR, Duration, Timestamp

ASIDES_KEPT: Duration = HOUR


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
