"""Several runs and readers on one journal: one chain, and nobody ever believes anything else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from millstream.core.ledger import Commit, Ledger
from millstream.errors import LogError
from millstream.journal.commits import Commits, Snapshot
from millstream.journal.errors import Damaged
from millstream.journal.follower import Follower
from millstream.journal.opening import claim, open_ledger
from tests.journal.interleaving import interleave
from tests.journal.made import extend, first_commit, next_commit, owned
from tests.journal.simdisk import Crash, SimDisk

SEEDS = range(300)
GOAL = 14  # commits; then everyone comes to an end


class Believed:
    """Which commit each number is, as anybody ever believed it."""

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}

    def add(self, number: int, id: str, who: str) -> None:
        assert self.ids.setdefault(number, id) == id, f"{who} believes that commit {number} is {id}, another {self.ids[number]}"


def a_run(disk: SimDisk, name: str, believed: Believed, rng: random.Random) -> Callable[[], None]:
    """Claims the journal, commits and merges until it is overtaken."""

    def act() -> None:
        commits = Commits(disk)
        ledger = claim(commits, first_commit(name))
        believed.add(ledger.number, ledger.id, name)
        while ledger.number < GOAL:
            commit = next_commit(ledger, f"{name}-{ledger.number + 1}")
            if not commits.create(commit):
                return
            ledger.apply(commit)
            believed.add(ledger.number, ledger.id, name)
            if rng.random() < 0.4:
                commits.compact(Snapshot.of(ledger))
                if rng.random() < 0.3:
                    commits.drop_merged(ledger.number - 2)

    return act


def a_reader(disk: SimDisk, name: str, believed: Believed, seen: list[Commit]) -> Callable[[], None]:
    """Follows until the goal is reached; its ledger must be what the commits make."""

    def act() -> None:
        follower = Follower(Commits(disk))
        ledger = Ledger()
        for _ in range(400):
            news = follower.poll()
            if news.ledger is not None:
                assert news.commits == []
                assert news.ledger.number >= ledger.number
                ledger = news.ledger
                if ledger.number:
                    believed.add(ledger.number, ledger.id, name)
            for commit in news.commits:
                assert (commit.number, commit.before) == (ledger.number + 1, ledger.id)
                ledger.apply(commit)
                believed.add(commit.number, commit.id, name)
                seen.append(commit)
            if ledger.number >= GOAL:
                return

    return act


@pytest.mark.parametrize("block", range(0, len(SEEDS), 50))
def test_runs_and_readers_agree_on_one_chain(block: int) -> None:
    followed = 0
    for seed in SEEDS[block : block + 50]:
        rng = random.Random(seed)
        disk = SimDisk(random.Random(seed))
        believed = Believed()
        seen: list[Commit] = []
        runs = [a_run(disk, f"run{n}", believed, random.Random(seed + n)) for n in range(rng.choice((2, 3)))]
        interleave(disk, rng, [*runs, a_reader(disk, "reader", believed, seen)])
        ledger = open_ledger(Commits(disk))
        # A first commit can be of the chain while its run, overtaken before it looked, has begun again.
        assert set(range(1, ledger.number + 1)) - set(ledger.first) <= set(believed.ids), f"seed {seed}"
        assert max(believed.ids) == ledger.number
        believed.add(ledger.number, ledger.id, "the last start")
        assert {f"{n:012d}" for n in ledger.first} <= set(disk.names("commits")), f"seed {seed}"
        followed += len(seen)
    assert followed > 100


@pytest.mark.parametrize("block", range(0, len(SEEDS), 50))
def test_what_anybody_believed_survives_a_power_loss(block: int) -> None:
    for seed in SEEDS[block : block + 50]:
        rng = random.Random(seed)
        disk = SimDisk(random.Random(seed))
        believed = Believed()
        runs = [a_run(disk, f"run{n}", believed, random.Random(seed + n)) for n in range(2)]
        interleave(disk, rng, [*runs, a_reader(disk, "reader", believed, [])], kill_after=rng.randint(1, 500))
        disk.power_loss()
        commits = Commits(disk)
        ledger = open_ledger(commits)
        assert ledger.number >= max(believed.ids, default=0), f"seed {seed}"
        for number, id in believed.ids.items():
            assert commits.id_of(number) in (id, None), f"seed {seed}"  # None: its merged file was dropped
        believed.add(ledger.number, ledger.id, f"the start after seed {seed}")
        successor = claim(commits, first_commit("successor"))
        assert open_ledger(commits) == successor


def test_a_reader_goes_on_over_a_merge_without_losing_a_commit() -> None:
    disk = SimDisk()
    commits = Commits(disk)
    ledger = owned(commits)
    follower = Follower(Commits(disk), Ledger())
    assert [commit.number for commit in follower.poll().commits] == [1]
    for _ in range(6):
        extend(commits, ledger)
        if ledger.number == 5:
            commits.compact(Snapshot.of(ledger))
    news = follower.poll()
    assert news.ledger is None
    assert [commit.number for commit in news.commits] == [2, 3, 4, 5, 6, 7]
    assert follower.poll().commits == []


def test_a_reader_that_fell_behind_what_is_kept_begins_anew() -> None:
    disk = SimDisk()
    commits = Commits(disk)
    ledger = owned(commits)
    follower = Follower(Commits(disk), open_ledger(commits))
    for _ in range(4):
        extend(commits, ledger)
    commits.compact(Snapshot.of(ledger))
    commits.drop_merged(6)
    extend(commits, ledger)
    news = follower.poll()
    assert news.ledger == ledger
    assert news.commits == []
    extend(commits, ledger)
    assert [commit.number for commit in follower.poll().commits] == [7]


def test_a_reader_of_an_empty_journal_waits() -> None:
    disk = SimDisk()
    follower = Follower(Commits(disk))
    assert follower.poll().ledger == Ledger()
    assert follower.poll().commits == []
    ledger = owned(Commits(disk), more=1)
    assert [commit.number for commit in follower.poll().commits] == [1, 2]
    assert follower.poll().ledger is None
    assert ledger.number == 2


def test_a_reader_shows_a_commit_only_after_a_sync_of_its_folder() -> None:
    disk = SimDisk()
    ledger = owned(Commits(disk))
    follower = Follower(Commits(disk), ledger)
    disk.crash_at(6)
    with pytest.raises(Crash, match="sync commits/"):
        extend(Commits(disk), ledger)
    disk.crash()
    disk.faults.sync = 0
    with pytest.raises(LogError, match=r"^commits cannot be used: Input/output error"):
        follower.poll()
    assert [commit.number for commit in follower.poll().commits] == [2]  # nothing was shown before
    disk.power_loss()
    assert open_ledger(Commits(disk)).number == 2


def test_a_reader_that_followed_another_copy_is_told() -> None:
    disk = SimDisk()
    owned(Commits(disk), more=2)
    follower = Follower(Commits(disk), Ledger(number=2, id="of another copy", fence=1))
    with pytest.raises(Damaged, match=r"^commits/000000000003 follows another commit than the one before it"):
        follower.poll()
