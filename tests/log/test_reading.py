"""`ms.read` on a folder: the log, then the journal's tail, also of a stream that the log leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from millstream.core.ledger import Commit, Plant
from millstream.core.parts import Dealt
from millstream.errors import LogError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.segments import SegmentWriter, segment_path
from millstream.log.entries import ENTRIES
from millstream.log.folder import Folder, Pinned, write_json
from millstream.timestamp import Timestamp
from tests.log.made import columns


class Made:
    """The folder of a run that has a commit for each value, in a segment of its own; nothing of it is in the log."""

    def __init__(self, at: Path, *, unkept: list[str]) -> None:
        self.folder = Folder(at)
        write_json(self.folder.pinned, Pinned("t", "id", str(at), 4, 1))
        self.disk = LocalDisk(self.folder.journal)
        self.commits = Commits(self.disk)
        self.commits.make_folders()
        self.commits.create(Commit(1, "c1", "", 1, Timestamp(0), plant=Plant(unkept=unkept)))
        self.segments: list[str] = []
        for value in (1, 2, 3):
            number = value + 1
            frame = SegmentWriter(self.disk, "lane0", lambda n=number: f"{n}").append(  # type: ignore[misc]
                [Dealt(0, "s", "", "s", number, columns([value]))], lane=0
            )
            self.commits.create(Commit(number, f"c{number}", f"c{number - 1}", 1, Timestamp(0), frames=[frame]))
            self.segments.append(frame.segment)

    def read(self) -> list[int]:
        return [record.value for record in ms.read(self.folder.path, "s")]


def test_what_the_log_leaves_out_is_found_as_far_as_the_journal_has_it(tmp_path: Path) -> None:
    made = Made(tmp_path, unkept=["s"])
    assert made.read() == [1, 2, 3]
    made.disk.remove(segment_path(made.segments[0]))  # its deliveries have it: it is let go, and the log never gets it
    assert made.read() == [2, 3]


def test_what_the_log_is_to_get_is_there_or_it_is_damage(tmp_path: Path) -> None:
    made = Made(tmp_path, unkept=[])
    made.disk.remove(segment_path(made.segments[0]))
    with pytest.raises(LogError, match="is missing"):
        made.read()


def test_a_log_that_is_just_being_made_has_nothing_yet(tmp_path: Path) -> None:
    made = Made(tmp_path, unkept=[])
    (made.folder.log / ENTRIES).mkdir(parents=True)
    assert made.read() == [1, 2, 3]
    made.commits.create(Commit(5, "c5", "c4", 1, Timestamp(0), logged=2))
    with pytest.raises(LogError, match="the log has no entry; restore it from a copy"):
        made.read()
