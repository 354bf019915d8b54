"""Whoever reads the commits of a run from outside of it."""

from __future__ import annotations

import msgspec

from millstream.core.ledger import Commit, Ledger
from millstream.journal.commits import COMMITS, Commits
from millstream.journal.errors import Missing, explained
from millstream.journal.opening import check_chain, open_ledger


class News(msgspec.Struct, frozen=True):
    """What a follower found: the commits after those it had.

    With a ledger it could not go on from there and began anew: that is all commits up to now, and none come after it.
    """

    commits: list[Commit]
    ledger: Ledger | None = None


class Follower:
    """Follows the commits, and shows none that could still go in a power loss or that is not of the chain (rule 4)."""

    def __init__(self, commits: Commits, ledger: Ledger | None = None) -> None:
        """Goes on after this ledger; without one the first poll begins anew."""
        self._commits = commits
        self._number = ledger.number if ledger is not None else 0
        self._id = ledger.id if ledger is not None else ""
        self._new = ledger is None

    def poll(self) -> News:
        """What is new. When nothing is, it costs one look for the next commit and two at the snapshots."""
        if self._new:
            return self._begin_anew()
        found = list[Commit]()
        number = self._number
        while (after := self._commits.after(number)) is None:
            # A snapshot is ahead: up to it only the merged files count.
            snapshot = self._commits.newest_snapshot()
            try:
                found += self._commits.merged_commits(number + 1, snapshot)
            except Missing:  # no longer kept
                return self._begin_anew()
            number = snapshot
        found += after
        if found:
            check_chain(found, before=self._id)
            self._sync()
            self._number, self._id = found[-1].number, found[-1].id
        return News(found)

    def _begin_anew(self) -> News:
        ledger = open_ledger(self._commits)
        if ledger.number:
            self._sync()
        self._number, self._id, self._new = ledger.number, ledger.id, False
        return News([], ledger)

    def _sync(self) -> None:
        with explained(COMMITS):
            self._commits.disk.sync_folder(COMMITS)
