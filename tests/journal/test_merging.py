"""Merging loses no commit, whatever happens in it, and costs neither a start nor a commit anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.journal.commits import Commits, Snapshot
from millstream.journal.disk import LocalDisk
from millstream.journal.errors import Missing
from millstream.journal.opening import open_ledger
from millstream.journal.segments import SegmentReader, SegmentWriter
from tests.journal.made import commits_on, counter, dealt, extend, history, next_commit, owned
from tests.journal.simdisk import Crash


def test_merged_commits_go_but_for_the_first_of_every_fence() -> None:
    disk, commits = commits_on()
    owned(commits, "one", more=4)
    ledger = owned(commits, "two", more=4)
    expected = history(commits, 10)
    commits.compact(Snapshot.of(ledger))
    assert disk.names("commits") == ["000000000001", "000000000006"]
    assert disk.names("merged") == ["000000000001-000000000010"]
    assert disk.names("snapshots") == ["000000000010"]
    assert open_ledger(commits) == ledger
    assert history(commits, 10) == expected
    assert [commits.id_of(n) for n in range(1, 11)] == expected
    for _ in range(3):
        extend(commits, ledger)
    commits.compact(Snapshot.of(ledger))
    assert disk.names("commits") == ["000000000001", "000000000006"]
    assert disk.names("merged") == ["000000000001-000000000010", "000000000011-000000000013"]
    assert disk.names("snapshots") == ["000000000013"]
    extend(commits, ledger)
    assert open_ledger(commits) == ledger
    assert [commit.number for commit in commits.span(1, 14)] == list(range(1, 15))
    assert [commit.number for commit in commits.span(3, 11)] == list(range(3, 12))
    assert [commit.number for commit in commits.merged_commits(9, 12)] == [9, 10, 11, 12]
    with pytest.raises(Missing, match=r"^merged/ has no file with commit 14"):
        list(commits.merged_commits(9, 14))


def test_the_first_commits_are_kept_over_merge_after_merge() -> None:
    disk, commits = commits_on()
    for run in range(5):
        ledger = owned(commits, f"run{run}", more=2)
        commits.compact(Snapshot.of(ledger))
    assert disk.names("commits") == [f"{n:012d}" for n in (1, 4, 7, 10, 13)]
    assert ledger.first == [1, 4, 7, 10, 13]


def test_merged_files_go_when_they_are_no_longer_needed() -> None:
    disk, commits = commits_on()
    ledger = owned(commits, more=4)
    commits.compact(Snapshot.of(ledger))
    for _ in range(5):
        extend(commits, ledger)
    commits.compact(Snapshot.of(ledger))
    commits.drop_merged(5)
    assert len(disk.names("merged")) == 2
    commits.drop_merged(6)
    assert disk.names("merged") == ["000000000006-000000000010"]
    assert commits.id_of(5) is None
    assert commits.id_of(6) == "run-6"
    assert open_ledger(commits) == ledger


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power loss"])
def test_no_step_of_merging_loses_a_commit(power: bool) -> None:
    """A crash before every step; then the ledger is all commits, and merging again comes to the same end."""
    step = 0
    while True:
        disk, commits = commits_on(step)
        owned(commits, "one", more=3)
        ledger = owned(commits, "two", more=3)
        expected = history(commits, 8)
        commits.compact(Snapshot.of(ledger))
        for _ in range(3):
            extend(commits, ledger)
        expected = history(commits, 11)
        disk.crash_at(step)
        try:
            commits.compact(Snapshot.of(ledger))
        except Crash:
            disk.power_loss() if power else disk.crash()
        else:
            break
        assert open_ledger(commits) == ledger, disk.log[-1]
        assert history(commits, 11) == expected, disk.log[-1]
        successor = owned(commits, "three", more=1)
        commits.compact(Snapshot.of(successor))
        assert open_ledger(commits) == successor
        assert history(commits, 11) == expected
        assert disk.names("commits") == [f"{n:012d}" for n in (1, 5, 12)]
        step += 1
    assert step > 15


def test_an_overtaken_run_that_merges_harms_nobody() -> None:
    disk, commits = commits_on()
    old = owned(commits, "old", more=5)
    new = owned(commits, "new", more=5)
    expected = history(commits, 12)
    late = Snapshot.of(old)
    commits.compact(Snapshot.of(new))
    commits.compact(late)
    assert disk.names("snapshots") == ["000000000012"]
    disk.remove("snapshots/000000000012")  # as if the new run's had come between
    with pytest.raises(Missing, match=r"^commits/000000000002 is missing"):
        commits.compact(late)
    commits.write_snapshot(Snapshot.of(new))
    assert not extend(commits, old, "old")
    assert open_ledger(commits) == new
    assert history(commits, 12) == expected


def test_merged_files_of_two_runs_may_overlap() -> None:
    _, commits = commits_on()
    ledger = owned(commits, more=9)
    expected = history(commits, 10)
    commits.merge(1, 4)
    commits.merge(3, 7)
    commits.compact(Snapshot.of(ledger))
    assert [commit.id for commit in commits.merged_commits(1, 10)] == expected
    commits.drop_merged(8)
    assert [commit.id for commit in commits.merged_commits(5, 10)] == expected[4:]


def test_starting_and_committing_cost_the_same_however_much_was_merged() -> None:
    costs = []
    disk, commits = commits_on()
    ledger = owned(commits)
    for _ in range(4):
        for _ in range(30):
            extend(commits, ledger)
        commits.compact(Snapshot.of(ledger))
        for _ in range(5):
            extend(commits, ledger)
        before = disk.steps
        open_ledger(commits)
        opened = disk.steps
        extend(commits, ledger)
        costs.append((opened - before, disk.steps - opened))
    assert len(set(costs)) == 1


def test_the_id_of_a_commit_that_is_merged_while_it_is_read() -> None:
    """Its single file goes, and a run that lost makes the number again: only the merged file counts."""
    disk, commits = commits_on()
    ledger = owned(commits, more=3)
    before = open_ledger(commits)
    extend(commits, ledger)

    def merge_and_make_again(what: str) -> None:
        if what == "read commits/000000000005":
            disk.on_step = lambda what: None
            commits.compact(Snapshot.of(ledger))
            assert commits.create(next_commit(before, "worthless", fence=2))

    disk.on_step = merge_and_make_again
    assert commits.id_of(5) == "run-5"


def test_single_files_at_or_below_the_snapshot_are_not_read() -> None:
    disk, commits = commits_on()
    owned(commits, "one", more=2)
    ledger = owned(commits, "two", more=2)
    expected = history(commits, 6)
    commits.compact(Snapshot.of(ledger))
    for name in disk.names("commits"):
        disk.entries[f"commits/{name}"].content.clear()
    assert open_ledger(commits) == ledger
    assert history(commits, 6) == expected
    assert [commits.id_of(n) for n in range(1, 7)] == expected


def test_a_journal_on_the_file_system_of_this_machine(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "journal")
    commits = Commits(disk)
    ledger = owned(commits)
    writer = SegmentWriter(disk, "lane-0", counter())
    frames = []
    for epoch in range(2, 40):
        frames.append((epoch, writer.append([dealt(b"%d" % epoch)], rows=b"rows %d" % epoch, row_count=1, lane=0)))
        assert extend(commits, ledger, frames=[frames[-1][1]])
        if epoch % 15 == 0:
            commits.compact(Snapshot.of(ledger))
    writer.close()
    found = [(commit.number, commit.frames[0]) for commit in Commits(LocalDisk(tmp_path / "journal")).span(2, 39)]
    assert found == frames
    assert [rows for _, rows in SegmentReader(disk, sleep=lambda seconds: None).rows_of(found)] == [b"rows %d" % n for n in range(2, 40)]
    assert disk.names("commits") == ["000000000001", *(f"{n:012d}" for n in range(31, 40))]
    successor = owned(commits, "second")
    assert successor.first == [1, 40]
    assert not extend(commits, ledger)
    disk.close()
