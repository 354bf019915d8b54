"""What nobody names goes, and nothing that somebody could still need."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.core.ledger import SourceProgress
from millstream.errors import LogError
from millstream.journal.commits import Commits, Snapshot
from millstream.journal.disk import Disk, LocalDisk
from millstream.journal.leftovers import Leftovers, find_leftovers, journal_folders, sweep_asides
from millstream.journal.names import NOTED, VALUES, ByLane, ByTask, ByThread, Maker, maker_of, prefix_of
from millstream.journal.notes import Note, Notes
from millstream.journal.opening import open_ledger
from millstream.journal.segments import SegmentWriter
from millstream.timestamp import HOUR, MICROSECOND, SECOND, Timestamp
from tests.journal.made import commits_on, dealt, extend, next_commit, owned
from tests.journal.simdisk import Crash, SimDisk

NOW = Timestamp(0) + 10 * HOUR


def asides(disk: Disk) -> list[str]:
    return [path for folder in journal_folders(disk) for path in disk.asides(folder)]


# Files on their way to their names.


def test_what_a_killed_writer_wrote_aside_goes_after_an_hour() -> None:
    """Killed at every step of a merge, a note and a commit: whatever is left, only what counts stays."""
    folders = set()
    for step in range(60):
        disk, commits = commits_on()
        disk.clock = lambda: NOW
        ledger = owned(commits, more=2)
        disk.crash_at(step)
        with suppress(Crash):
            commits.compact(Snapshot.of(ledger))
            Notes(disk).leave(Note("clicks", 0, 1, [], {}, 0, 0))
            extend(commits, ledger)
        disk.crash()
        left, there, newest = asides(disk), set(disk.entries), open_ledger(commits)
        assert len(left) <= 1
        folders |= {path.rpartition("/")[0] for path in left}
        sweep_asides(disk, journal_folders(disk), now=NOW + HOUR - MICROSECOND)
        assert set(disk.entries) == there
        sweep_asides(disk, journal_folders(disk), now=NOW + HOUR)
        assert set(disk.entries) == there - set(left)
        assert open_ledger(commits) == newest
    assert folders == {"commits", "merged", "snapshots", "notes/clicks"}


def test_a_writer_whose_file_was_swept_stops_and_nothing_was_made() -> None:
    """It hung for an hour, and another run has begun."""
    disk, commits = commits_on()
    old = owned(commits, "old", more=1)

    def sweep(what: str) -> None:
        if what.startswith("link "):
            disk.on_step = lambda what: None
            sweep_asides(disk, journal_folders(disk), now=Timestamp(0) + 2 * HOUR)

    disk.on_step = sweep
    with pytest.raises(LogError, match=r"^commits/000000000003 cannot be used"):
        commits.create(next_commit(old, "c3"))
    assert open_ledger(commits) == old
    assert asides(disk) == []


@pytest.fixture(params=["local", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return LocalDisk(tmp_path) if request.param == "local" else SimDisk()


def test_what_somebody_else_put_there_is_left_alone(disk: Disk) -> None:
    Commits(disk).make_folders()
    names = [".DS_Store", ".nfs000000000a1b-2", ".000000000001.crc", "000000000001-000000000002", ".000000000001-0a1b"]
    for name in names:
        disk.create(f"merged/{name}").close()
    assert disk.asides("merged") == ["merged/.000000000001-0a1b"]
    assert disk.asides("nowhere") == []
    sweep_asides(disk, ["merged", "nowhere"], now=Timestamp(2**60))
    for name in names:
        assert disk.exists(f"merged/{name}") == (name != ".000000000001-0a1b")


def test_a_disk_says_when_a_file_was_last_written(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    disk.create("a").close()
    os.utime(tmp_path / "a", (5.5, 5.5))
    assert disk.modified("a") == Timestamp(5_500_000)
    simulated = SimDisk()
    simulated.clock = lambda: Timestamp(5)
    file = simulated.create("a")
    assert simulated.modified("a") == Timestamp(5)
    simulated.clock = lambda: Timestamp(5) + SECOND
    file.append([b"x"])
    assert simulated.modified("a") == Timestamp(5) + SECOND
    for each in (disk, simulated):
        with pytest.raises(FileNotFoundError):
            each.modified("b")


# What no commit names.


@pytest.mark.parametrize(
    ("maker", "name"),
    [
        (ByLane(12), "lane12-4f0c"),
        (ByThread(VALUES, 7), "values-000007-4f0c"),
        (ByThread(NOTED, 1_234_567), "noted-1234567-4f0c"),
        (ByTask("clicks", 3), "source-clicks-000000000003-4f0c"),
        (ByTask("lane0-7 of source-a-000000000001-b", 3), "source-lane0-7 of source-a-000000000001-b-000000000003-4f0c"),
    ],
)
def test_the_name_of_a_segment_says_who_made_it(maker: Maker, name: str) -> None:
    writer = SegmentWriter(SimDisk(), prefix_of(maker), lambda: "4f0c")
    assert writer.append([dealt(b"1")], lane=0).segment == name
    assert maker_of(name) == maker


@pytest.mark.parametrize(
    "name", ["README", "lane-4f0c", "lane0", "values-4f0c", "source-clicks-4f0c", "source-000000000003-4f0c", "copy of lane0-1"]
)
def test_what_is_called_otherwise_was_made_by_somebody_else(name: str) -> None:
    assert maker_of(name) is None


def test_what_no_commit_names_is_found_with_its_time(disk: Disk) -> None:
    commits, notes = Commits(disk), Notes(disk)
    ledger = owned(commits)
    assert find_leftovers(disk, ledger) == Leftovers()
    frame = SegmentWriter(disk, "lane0", lambda: "1").append([dealt(b"1")], lane=0)
    extend(commits, ledger, frames=[frame])
    SegmentWriter(disk, "lane0", lambda: "2").append([dealt(b"1")], lane=0)
    for batch, fence in ((0, 1), (1, 1), (1, 2), (2, 2)):
        notes.leave(Note("clicks", batch, fence, [], {}, 0, 0))
    notes.leave(Note("visits", 0, 1, [], {}, 0, 0))
    ledger.sources["clicks"] = SourceProgress(batch=1)
    found = find_leftovers(disk, ledger)
    assert set(found.segments) == {"lane0-2"}
    assert set(found.notes) == {f"clicks/{batch:012d}-{fence:06d}" for batch, fence in ((0, 1), (1, 1), (1, 2))}
    assert found.segments["lane0-2"] == disk.modified("segments/lane0-2")
    assert all(written == disk.modified(f"notes/{name}") for name, written in found.notes.items())
