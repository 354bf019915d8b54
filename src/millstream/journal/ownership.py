"""Whether a run still owns its folder: asked before a target is called, and before anything is called damage."""

from __future__ import annotations

from collections.abc import Callable

from millstream.journal.commits import Commits
from millstream.journal.errors import Missing


class Ownership:
    """By a look at the journal at this moment: no newer run has made a commit (rules 12 and 17)."""

    def __init__(self, commits: Commits, fence: int, newest: Callable[[], int]) -> None:
        """`newest` is the last commit that the caller knows of; the run itself may be further."""
        self._commits, self._fence, self._newest = commits, fence, newest

    def __call__(self) -> bool:
        number = self._newest()
        while (found := self._commits.after(number)) is None:  # a snapshot is above it, ours or a newer run's
            snapshot = self._commits.newest_snapshot()
            try:
                if self._commits.read_snapshot(snapshot).fence != self._fence:
                    return False
            except Missing:  # a newer one has taken its place
                continue
            number = snapshot
        return all(commit.fence == self._fence for commit in found)
