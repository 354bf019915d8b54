"""Commits, parts and runs for the tests of the journal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count

from millstream.core.ledger import Commit, Ledger
from millstream.core.parts import Columns, Dealt, Frame
from millstream.journal.commits import Commits
from millstream.journal.opening import claim
from millstream.timestamp import Timestamp
from tests.journal.simdisk import SimDisk


def counter(prefix: str = "u") -> Callable[[], str]:
    numbers = count()
    return lambda: f"{prefix}{next(numbers)}"


def dealt(*values: bytes, lane: int = 0, stream: str = "clicks", major: int = 1) -> Dealt:
    keys = [f"k{n}" for n in range(len(values))]
    columns = Columns(keys, list(values), [Timestamp(10 + n) for n in range(len(values))], range(len(values)))
    return Dealt(lane, stream, "", stream, major, columns)


def next_commit(ledger: Ledger, id: str, *, fence: int | None = None, frames: Sequence[Frame] = ()) -> Commit:
    fence = ledger.fence if fence is None else fence
    return Commit(ledger.number + 1, id, ledger.id, fence, Timestamp(ledger.number + 1), frames=list(frames))


def first_commit(name: str) -> Callable[[Ledger], Commit]:
    """For `claim`: every try has an id of its own."""
    unique = counter(f"{name}-first-")
    return lambda ledger: next_commit(ledger, unique(), fence=ledger.fence + 1)


def owned(commits: Commits, name: str = "run", more: int = 0) -> Ledger:
    """A run that has begun and made some more commits."""
    ledger = claim(commits, first_commit(name))
    for _ in range(more):
        extend(commits, ledger, name)
    return ledger


def extend(commits: Commits, ledger: Ledger, name: str = "run", *, frames: Sequence[Frame] = ()) -> bool:
    """The next commit of a run; False if the run was overtaken."""
    commit = next_commit(ledger, f"{name}-{ledger.number + 1}", frames=frames)
    if not commits.create(commit):
        return False
    ledger.apply(commit)
    return True


def commits_on(seed: int = 0) -> tuple[SimDisk, Commits]:
    disk = SimDisk(random.Random(seed))
    return disk, Commits(disk)


def history(commits: Commits, last: int) -> list[str]:
    """The ids of the commits up to this one, wherever they are."""
    return [commit.id for commit in commits.span(1, last)]
