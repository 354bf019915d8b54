"""Commits are made once and durable, merged without being lost, and refused by name when damaged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.core.ledger import Commit, Ledger, encode_commit
from millstream.errors import LogError
from millstream.journal.commits import Commits
from millstream.journal.errors import Missing
from millstream.journal.opening import open_ledger
from millstream.journal.sealed import seal
from tests.journal.made import commits_on, extend, next_commit, owned
from tests.journal.simdisk import SimDisk


def test_an_empty_journal_is_an_empty_ledger() -> None:
    _, commits = commits_on()
    assert open_ledger(commits) == Ledger()
    assert commits.newest_snapshot() == 0
    assert commits.after(0) == []
    assert commits.id_of(1) is None
    with pytest.raises(Missing, match=r"^commits/000000000001 is missing; restore it from a copy$"):
        list(commits.span(1, 1))


def test_commits_are_read_back_in_a_chain() -> None:
    disk, commits = commits_on()
    ledger = owned(commits, more=3)
    assert disk.names("commits") == [f"{n:012d}" for n in range(1, 5)]
    assert open_ledger(Commits(disk)) == ledger
    assert (ledger.number, ledger.id, ledger.fence, ledger.first) == (4, "run-4", 1, [1])
    assert commits.read(5) is None
    assert [commits.id_of(n) for n in range(1, 6)] == ["run-first-0", "run-2", "run-3", "run-4", None]
    second = owned(commits, "second", more=1)
    assert second.first == [1, 5]


def test_a_number_is_made_once() -> None:
    _, commits = commits_on()
    ledger = owned(commits)
    assert commits.create(next_commit(ledger, "one"))
    assert not commits.create(next_commit(ledger, "other"))
    assert commits.create(next_commit(ledger, "one"))  # its own: the answer to the first was lost
    found = commits.read(2)
    assert found is not None
    assert found.id == "one"


def spoiled(ledger: Ledger) -> Commit:
    """With a fraction where a whole number of microseconds belongs."""
    commit = next_commit(ledger, "spoiled")
    commit.promises = {"clicks": 0.5}  # type: ignore[dict-item]
    return commit


def test_what_cannot_be_read_back_is_not_committed() -> None:
    disk, commits = commits_on()
    ledger = owned(commits)
    with pytest.raises(
        LogError, match=r"^commit 2 was not made, .*Expected `int`, got `float` - at `\$.promises.*; the folder is as it was$"
    ):
        commits.create(spoiled(ledger))
    assert disk.names("commits") == ["000000000001"]
    assert extend(commits, ledger)


def test_a_commit_that_was_spoiled_before_is_named() -> None:
    disk, commits = commits_on()
    ledger = owned(commits)
    assert disk.create_whole("commits/000000000002", seal(encode_commit(spoiled(ledger))))
    for read in (lambda: open_ledger(commits), lambda: list(commits.span(1, 2))):
        with pytest.raises(
            LogError, match=r"^commits/000000000002 is as it was written, and cannot be read: .*got `float`.*; read the folder"
        ):
            read()


def test_a_commit_survives_a_power_loss_once_it_is_made() -> None:
    for seed in range(30):
        disk, commits = commits_on(seed)
        ledger = owned(commits, more=4)
        disk.power_loss()
        assert open_ledger(commits) == ledger


# The outcome is not known.


def lost_answer(disk: SimDisk) -> None:
    disk.faults.answer = True


def said_to_be_taken(disk: SimDisk) -> None:
    disk.faults.taken = True


def folder_sync_fails(disk: SimDisk) -> None:
    disk.faults.sync = 1


@pytest.mark.parametrize("fault", [lost_answer, said_to_be_taken, folder_sync_fails])
def test_own_content_means_committed(fault: Callable[[SimDisk], None]) -> None:
    for seed in range(20):
        disk, commits = commits_on(seed)
        ledger = owned(commits)
        fault(disk)
        assert extend(commits, ledger)
        disk.power_loss()
        assert open_ledger(commits) == ledger


def test_a_file_that_could_not_be_synced_is_no_commit() -> None:
    disk, commits = commits_on()
    ledger = owned(commits)
    disk.faults.sync = 0
    with pytest.raises(LogError, match=r"^commits/000000000002 cannot be used: Input/output error; check the disk and start again$"):
        extend(commits, ledger)
    assert open_ledger(commits).number == 1


def test_an_error_over_the_commit_of_another_is_raised() -> None:
    disk, commits = commits_on()
    ledger = owned(commits)
    assert commits.create(next_commit(ledger, "other"))
    disk.faults.space = 10
    with pytest.raises(LogError, match="make room and start again"):
        commits.create(next_commit(ledger, "own"))
    assert open_ledger(commits).id == "other"


def test_no_space_at_any_byte_of_a_commit() -> None:
    disk, commits = commits_on()
    ledger = owned(commits)
    size = len(disk.entries["commits/000000000001"].content)
    for space in range(size):
        disk.faults.space = space
        with pytest.raises(LogError, match=r"^commits/000000000002 cannot be used: No space left on device; make room and start again$"):
            commits.create(next_commit(ledger, "longer-than-the-first"))
        disk.faults.space = None
        assert open_ledger(commits) == ledger
        assert disk.names("commits") == ["000000000001"]
    assert extend(commits, ledger)
