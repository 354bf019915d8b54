"""Whether a run still owns its folder, however the journal was merged meanwhile."""

from __future__ import annotations

import random

import pytest

from millstream.journal.commits import Commits, Snapshot
from millstream.journal.ownership import Ownership
from tests.journal.interleaving import interleave
from tests.journal.made import commits_on, extend, owned
from tests.journal.simdisk import SimDisk


def test_a_run_owns_its_folder_until_another_has_made_a_commit() -> None:
    _, commits = commits_on()
    ledger = owned(commits, "first", more=3)
    still = Ownership(commits, ledger.fence, lambda: ledger.number)
    assert still()
    other = owned(commits, "second")
    assert not still()
    assert Ownership(commits, other.fence, lambda: other.number)()


def test_one_that_knows_only_old_commits_of_its_run_asks_the_snapshot() -> None:
    """The writer hears of commits a little later than they are merged."""
    _, commits = commits_on()
    ledger = owned(commits, more=6)
    commits.compact(Snapshot.of(ledger))
    extend(commits, ledger)
    still = Ownership(commits, ledger.fence, lambda: 2)
    assert still()
    owned(commits, "second")
    assert not still()


def test_a_newer_run_that_has_merged_everything_is_seen_by_its_snapshot() -> None:
    _, commits = commits_on()
    ledger = owned(commits, "first", more=3)
    newest = ledger.number - 2  # of which this one was told
    other = owned(commits, "second", more=2)
    commits.compact(Snapshot.of(other))
    assert commits.read(newest + 1) is None  # so the single files alone would say that nothing came
    assert not Ownership(commits, ledger.fence, lambda: newest)()


def test_a_worthless_commit_of_a_start_that_begins_again_overtakes_nobody() -> None:
    """Rule 2: it was made after the number was merged away; only one who looks for snapshots first passes it by."""
    _, commits = commits_on()
    ledger = owned(commits, more=4)
    commits.compact(Snapshot.of(ledger))
    worthless = owned(commits_on()[1], "other", more=2)
    assert extend(commits, worthless, "other")
    assert commits.read(worthless.number) is not None
    assert Ownership(commits, ledger.fence, lambda: worthless.number - 1)()


@pytest.mark.parametrize("seed", range(40))
def test_who_is_told_that_it_owns_was_the_owner_when_it_asked(seed: int) -> None:
    """Beside a newer run that starts, commits and merges: once that one has begun, the older is never told that it owns."""
    disk = SimDisk(random.Random(seed))
    commits = Commits(disk)
    ledger = owned(commits, "first", more=3)
    still = Ownership(commits, ledger.fence, lambda: ledger.number)
    begun: list[int] = []
    answers: list[tuple[bool, bool]] = []

    def newer() -> None:
        mine = owned(Commits(disk), "second")
        begun.append(mine.number)
        for _ in range(4):
            extend(Commits(disk), mine, "second")
            Commits(disk).compact(Snapshot.of(mine))

    def asks() -> None:
        for _ in range(12):
            before = bool(begun)
            answers.append((before, still()))

    interleave(disk, random.Random(seed), [newer, asks])
    assert (True, True) not in answers
    assert not still()
