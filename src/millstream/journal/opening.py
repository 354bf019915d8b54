"""How a run begins: it reads the ledger, makes sure that it is on the disk, and makes the first commit of its fence."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millstream.core.ledger import Commit, Ledger
from millstream.errors import LogError
from millstream.journal.commits import COMMITS, MERGED, SNAPSHOTS, Commits
from millstream.journal.errors import Damaged, Missing, explained, refusal
from millstream.journal.segments import SEGMENTS, segment_path


def open_ledger(commits: Commits) -> Ledger:
    """All commits that there are, taken together: the newest snapshot and what comes after it; a new `Ledger` if none is."""
    while True:
        snapshot = commits.newest_snapshot()
        try:
            ledger = commits.read_snapshot(snapshot) if snapshot else Ledger()
        except Missing:
            if commits.newest_snapshot() > snapshot:
                continue
            raise
        found = commits.after(snapshot)
        if found is None:
            continue  # a newer snapshot came while this was read: begin again there
        if commits.highest() > snapshot + len(found):  # another run went on meanwhile, or a file was lost
            if commits.read(missing := snapshot + len(found) + 1) is not None or commits.newest_snapshot() > snapshot:
                continue
            raise Missing(f"{COMMITS}/{missing:012d} is missing, and later commits are there; restore it from a copy")
        check_chain(found, before=ledger.id)
        for commit in found:
            ledger.apply(commit)
        return ledger


def check_chain(commits: Iterable[Commit], *, before: str) -> None:
    """Each commit must name the one before it; the first one, `before`."""
    for commit in commits:
        if commit.before != before:
            raise Damaged(
                f"{COMMITS}/{commit.number:012d} follows another commit than the one before it: "
                f"two copies of a journal are mixed; restore it from one copy"
            )
        before = commit.id


def claim(commits: Commits, make: Callable[[Ledger], Commit]) -> Ledger:
    """Own the journal: make the next commit, whichever number that turns out to be. Returns the ledger with it (rule 2).

    `make` gives the first commit of a new fence after this ledger; it is called again when another run was faster.
    """
    commits.make_folders()
    while True:
        ledger = open_ledger(commits)
        sync_newest(commits, ledger)
        commit = make(ledger)
        if commit.number != ledger.number + 1 or commit.before != ledger.id or commit.fence <= ledger.fence:
            raise LogError(f"the first commit of a run must follow commit {ledger.number} with a fence above {ledger.fence}")
        # Where single files have been merged away since, their numbers can be made again. Such a commit is nothing.
        if commits.create(commit) and commits.newest_snapshot() < commit.number:
            ledger.apply(commit)
            return ledger


def sync_newest(commits: Commits, ledger: Ledger) -> None:
    """Make the newest commit and the segments that it names durable: after kill -9 they may be there and not yet on the disk.

    What is older was synced before the newest was made.
    """
    disk = commits.disk
    with explained(COMMITS):
        for folder in (COMMITS, MERGED, SNAPSHOTS):
            disk.sync_folder(folder)
    newest = commits.read(ledger.number) if ledger.number > commits.newest_snapshot() else None
    if newest is None:  # in a merged file, which was durable before its snapshot was made
        return
    segments = {frame.segment for frame in newest.frames}
    for path in sorted(map(segment_path, segments)):
        try:
            disk.sync_file(path)
        except FileNotFoundError as error:
            raise Missing(f"{path} is missing, and commit {ledger.number} names it; restore it from a copy") from error
        except OSError as error:
            raise refusal(path, error) from error
    if segments:
        with explained(SEGMENTS):
            disk.sync_folder(SEGMENTS)
