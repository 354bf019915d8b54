"""A start believes only what is of the chain, makes it durable, and refuses by name what is damaged."""

from __future__ import annotations

import pytest

from millstream.core.ledger import Ledger
from millstream.errors import LogError
from millstream.journal.commits import Snapshot
from millstream.journal.errors import Damaged, Missing
from millstream.journal.opening import claim, open_ledger, sync_newest
from millstream.journal.segments import SegmentWriter
from tests.journal.made import commits_on, counter, dealt, extend, first_commit, history, next_commit, owned
from tests.journal.simdisk import Crash


def test_a_start_makes_durable_what_it_begins_from() -> None:
    """The run before was killed between the link and the sync of the folder, and its first frame is no surer."""
    for seed in range(30):
        disk, commits = commits_on(seed)
        ledger = owned(commits)
        frame = SegmentWriter(disk, "lane-0", counter()).write([dealt(b"1")], lane=0)
        whole = disk.entries[f"segments/{frame.segment}"].content[:]
        disk.crash_at(6)  # the steps of create_whole: only the sync of the folder is missing
        with pytest.raises(Crash, match="sync commits/"):
            extend(commits, ledger, frames=[frame])
        disk.crash()
        begun = owned(commits, "second")
        assert begun.number == 3
        disk.power_loss()
        assert open_ledger(commits) == begun
        assert disk.entries[f"segments/{frame.segment}"].content == whole


def test_a_start_names_the_segment_that_the_newest_commit_misses() -> None:
    disk, commits = commits_on()
    ledger = owned(commits)
    frame = SegmentWriter(disk, "lane-0", counter()).append([dealt(b"1")], lane=0)
    extend(commits, ledger, frames=[frame])
    disk.remove("segments/lane-0-u0")
    with pytest.raises(Missing, match=r"^segments/lane-0-u0 is missing, and commit 2 names it; restore it from a copy$"):
        owned(commits, "second")
    assert disk.names("commits") == ["000000000001", "000000000002"]


def test_syncing_the_newest_is_nothing_to_do_when_it_was_merged() -> None:
    _, commits = commits_on()
    ledger = owned(commits, more=2)
    commits.compact(Snapshot.of(ledger))
    sync_newest(commits, ledger)


def test_a_start_whose_segment_cannot_be_synced_stops() -> None:
    disk, commits = commits_on()
    ledger = owned(commits)
    extend(commits, ledger, frames=[SegmentWriter(disk, "lane-0", counter()).append([dealt(b"1")], lane=0)])
    disk.faults.sync = 3  # after those of the folders
    with pytest.raises(LogError, match=r"^segments/lane-0-u0 cannot be used: Input/output error"):
        owned(commits, "second")


def test_a_first_commit_that_does_not_follow_is_refused() -> None:
    _, commits = commits_on()
    owned(commits)
    with pytest.raises(LogError, match=r"^the first commit of a run must follow commit 1 with a fence above 1$"):
        claim(commits, lambda ledger: next_commit(ledger, "again"))


def test_a_run_that_made_a_merged_number_begins_again() -> None:
    """It has read up to 4; then 5 is made, merged and removed; then it makes 5."""
    disk, commits = commits_on()
    ledger = owned(commits, more=3)
    make = first_commit("late")

    def slowly(found: Ledger) -> object:
        if found.number == 4:
            extend(commits, ledger)
            commits.compact(Snapshot.of(ledger))
            assert disk.names("commits") == ["000000000001"]
        return make(found)

    late = claim(commits, slowly)  # type: ignore[arg-type]
    assert (late.number, late.first) == (6, [1, 6])
    assert open_ledger(commits) == late
    assert history(commits, 6)[4:] == ["run-5", late.id]


def test_a_snapshot_at_the_number_of_a_worthless_commit_is_seen() -> None:
    """What no snapshot *above* the end would tell: the end itself was merged, removed, and made again by a run that lost."""
    disk, commits = commits_on()
    ledger = owned(commits, more=3)
    worthless = next_commit(ledger, "worthless", fence=2)

    def merge_and_make_again(what: str) -> None:
        if what == "read commits/000000000005":
            disk.on_step = lambda what: None
            extend(commits, ledger)
            commits.compact(Snapshot.of(ledger))
            assert commits.create(worthless)

    disk.on_step = merge_and_make_again
    assert open_ledger(commits) == ledger
    assert commits.id_of(5) == "run-5"


def test_a_snapshot_that_is_replaced_while_it_is_read() -> None:
    disk, commits = commits_on()
    ledger = owned(commits, more=3)
    commits.compact(Snapshot.of(ledger))

    def replace(what: str) -> None:
        if what == "read snapshots/000000000004":
            disk.on_step = lambda what: None
            extend(commits, ledger)
            commits.compact(Snapshot.of(ledger))

    disk.on_step = replace
    assert open_ledger(commits) == ledger


# Damage.


@pytest.mark.parametrize("path", ["commits/000000000007", "snapshots/000000000005", "merged/000000000001-000000000005"])
@pytest.mark.parametrize("how", ["cut", "empty", "changed", "zeros", "twice"])
def test_damage_is_refused_by_name(path: str, how: str) -> None:
    disk, commits = commits_on()
    ledger = owned(commits, more=4)
    commits.compact(Snapshot.of(ledger))
    for _ in range(3):
        extend(commits, ledger)
    content = disk.entries[path].content
    if how == "cut":
        del content[-3:]
    elif how == "empty":
        content.clear()
    elif how == "changed":
        content[-2] ^= 1
    elif how == "zeros":
        content[:] = bytes(len(content))
    else:
        content += bytes(content)
    with pytest.raises(Damaged, match=rf"^{path} (is damaged|holds)[^/]*; restore it from a copy$"):
        history(commits, 5) if path.startswith("merged") else open_ledger(commits)


def test_a_file_under_another_number_is_refused() -> None:
    disk, commits = commits_on()
    ledger = owned(commits, more=4)
    disk.entries["commits/000000000004"] = disk.entries["commits/000000000003"]
    with pytest.raises(Damaged, match=r"^commits/000000000004 holds commit 3; restore it from a copy$"):
        open_ledger(commits)
    with pytest.raises(Damaged, match=r"^commits/000000000004 does not follow the commit before it; restore both from one copy$"):
        commits.compact(Snapshot.of(ledger))
    commits.write_snapshot(Snapshot.of(ledger))
    disk.entries["snapshots/000000000009"] = disk.entries["snapshots/000000000005"]
    with pytest.raises(Damaged, match=r"^snapshots/000000000009 holds the ledger of commit 5; restore it from a copy$"):
        open_ledger(commits)


def test_a_commit_that_is_lost_is_not_the_end() -> None:
    disk, commits = commits_on()
    owned(commits, more=4)
    disk.remove("commits/000000000003")
    with pytest.raises(Missing, match=r"^commits/000000000003 is missing, and later commits are there; restore it from a copy$"):
        open_ledger(commits)


def test_a_snapshot_that_is_lost_is_not_a_new_beginning() -> None:
    disk, commits = commits_on()
    ledger = owned(commits, more=4)
    commits.compact(Snapshot.of(ledger))
    extend(commits, ledger)
    disk.remove("snapshots/000000000005")
    with pytest.raises(Missing, match=r"^commits/000000000002 is missing, and later commits are there; restore it from a copy$"):
        open_ledger(commits)
    with pytest.raises(Missing, match=r"^snapshots/000000000005 is missing; restore it from a copy$"):
        commits.read_snapshot(5)


def test_two_copies_that_are_mixed_are_refused() -> None:
    _, commits = commits_on()
    ledger = owned(commits, more=2)
    other = next_commit(ledger, "four")
    other.before = "of another copy"
    commits.create(other)
    with pytest.raises(Damaged, match=r"^commits/000000000004 follows another commit than the one before it: two copies of a journal"):
        open_ledger(commits)


def test_what_somebody_else_put_there_is_left_alone() -> None:
    disk, commits = commits_on()
    ledger = owned(commits, more=2)
    strange = ["commits/000000000002.bak", "snapshots/old", "merged/readme"]
    for path in strange:
        disk.create_whole(path, b"")
    commits.compact(Snapshot.of(ledger))
    assert open_ledger(commits) == ledger
    assert history(commits, 3)[-1] == "run-3"
    assert all(disk.exists(path) for path in strange)
