"""Commits by number, and what many of them become: merged files and a snapshot of the ledger.

A commit is a file that only one can create. A thousand of them are merged: first into one file, then a snapshot of the
ledger after the last is written, then the single files go, but for the first of every fence (rules 1 and 19). Single files
at or below the newest snapshot are never read: one may be there that a run made which started while they went (rule 2).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millstream.core.ledger import Commit, Ledger, decode_commit, decode_ledger, encode_commit, encode_ledger
from millstream.errors import LogError
from millstream.journal.disk import Disk
from millstream.journal.errors import Damaged, Missing, explained, refusal
from millstream.journal.sealed import decoded, seal, unseal, unseal_all

COMMITS = "commits"
MERGED = "merged"
SNAPSHOTS = "snapshots"


class Snapshot(msgspec.Struct, frozen=True):
    """The ledger as it was after a commit, encoded: it can be written by another thread while the ledger goes on."""

    number: int
    first: frozenset[int]  # the first commit of every fence
    content: bytes

    @classmethod
    def of(cls, ledger: Ledger) -> Snapshot:
        return cls(ledger.number, frozenset(ledger.first), seal(encode_ledger(ledger)))


class _Head(msgspec.Struct):
    """What the chain needs of a commit; the rest is not decoded."""

    number: int
    id: str
    before: str


_decode_head = msgspec.msgpack.Decoder(_Head).decode


class Commits:
    """The commits of a journal."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def make_folders(self) -> None:
        with explained(COMMITS):
            for folder in (COMMITS, MERGED, SNAPSHOTS):
                self.disk.make_folder(folder)

    def create(self, commit: Commit) -> bool:
        """Make the commit, durable; False if another has its number, and then nothing was changed.

        Where the outcome is not known it is read back: own content means committed; anything else raises (rule 3).
        """
        path, content = _commit_path(commit.number), _readable(commit)
        try:
            if self.disk.create_whole(path, seal(content)):
                self.disk.sync_folder(COMMITS)
                return True
        except OSError as error:
            if not self._is_there(commit):
                raise refusal(path, error) from error
        else:
            if not self._is_there(commit):  # NFS says "taken" of an own link whose answer was lost
                return False
        with explained(path):
            self.disk.sync_folder(COMMITS)
        return True

    def _is_there(self, commit: Commit) -> bool:
        found = self.read(commit.number)
        return found is not None and found.id == commit.id

    def read(self, number: int) -> Commit | None:
        """The single file of a commit; None if there is none. Whether to believe it: `after`."""
        path = _commit_path(number)
        content = self._content(path)
        if content is None:
            return None
        commit = unseal(path, content, decode_commit)
        if commit.number != number:
            raise Damaged(f"{path} holds commit {commit.number}; restore it from a copy")
        return commit

    def after(self, number: int) -> list[Commit] | None:
        """The commits after this one to the end, from their single files; None if a snapshot has taken some of them in.

        A missing number is the end, and what was read is to be believed, only if no snapshot above `number` is there
        afterwards (rule 4): single files go once one is, and a run that starts just then may make such a number again.
        """
        if self.newest_snapshot() > number:
            return None
        commits: list[Commit] = []
        while (commit := self.read(number + len(commits) + 1)) is not None:
            commits.append(commit)
        return commits if self.newest_snapshot() <= number else None

    def highest(self) -> int:
        """The highest number that has a single file; 0 if there is none."""
        with explained(COMMITS):
            return max(self._numbers(COMMITS), default=0)

    def newest_snapshot(self) -> int:
        """The number of the newest snapshot; 0 if there is none."""
        with explained(SNAPSHOTS):
            return max(self._numbers(SNAPSHOTS), default=0)

    def write_snapshot(self, snapshot: Snapshot) -> None:
        """Durable when this returns. One that is already there was made from the same commits, and stands."""
        path = _snapshot_path(snapshot.number)
        with explained(path):
            self.disk.create_whole(path, snapshot.content)
            self.disk.sync_folder(SNAPSHOTS)

    def read_snapshot(self, number: int) -> Ledger:
        """The ledger after this commit. `Missing` if there is no such snapshot: a newer one has taken its place."""
        path = _snapshot_path(number)
        content = self._content(path)
        if content is None:
            raise Missing(f"{path} is missing; restore it from a copy")
        ledger = unseal(path, content, decode_ledger)
        if ledger.number != number:
            raise Damaged(f"{path} holds the ledger of commit {ledger.number}; restore it from a copy")
        return ledger

    def merge(self, first: int, last: int) -> None:
        """Concatenate single commits into one file, durable when this returns. `Missing` if one is not there."""
        sealed = []
        before = None
        for number in range(first, last + 1):
            path = _commit_path(number)
            content = self._content(path)
            if content is None:
                raise Missing(f"{path} is missing; restore it from a copy")
            head = unseal(path, content, _decode_head)
            if head.number != number or before not in (None, head.before):
                raise Damaged(f"{path} does not follow the commit before it; restore both from one copy")
            before = head.id
            sealed.append(content)
        path = f"{MERGED}/{first:012d}-{last:012d}"
        with explained(path):
            self.disk.create_whole(path, b"".join(sealed))
            self.disk.sync_folder(MERGED)

    def compact(self, snapshot: Snapshot) -> None:
        """Merge the commits up to this snapshot, write it, and let go of what these replace.

        May run beside the thread that commits. A run that was overtaken does no harm: what it writes is true, and what it
        removes has been replaced. If another run has merged in the meantime nothing is left to do.
        """
        first = self.newest_snapshot() + 1
        if first > snapshot.number:
            return
        try:
            self.merge(first, snapshot.number)
        except Missing:
            if self.newest_snapshot() >= first:
                return
            raise
        self.write_snapshot(snapshot)
        with explained(COMMITS):
            for number in self._numbers(COMMITS):  # listed, so that what a crash left goes too
                if number <= snapshot.number and number not in snapshot.first:
                    self.disk.remove(_commit_path(number))
            for number in self._numbers(SNAPSHOTS):
                if number < snapshot.number:
                    self.disk.remove(_snapshot_path(number))

    def merged_commits(self, first: int, last: int) -> Iterator[Commit]:
        """Commits from merged files, in order. `Missing` where no merged file has the next one, or no longer."""
        for path, content in self._merged(first, last):
            yield decoded(path, content, decode_commit)

    def span(self, first: int, last: int) -> Iterator[Commit]:
        """Commits first to last, wherever they are. `Missing` where the next one is nowhere."""
        while first <= last:
            found = self.after(first - 1)
            if found is None:  # a snapshot is above it: up to there only the merged files count
                yield from self.merged_commits(first, upto := min(last, self.newest_snapshot()))
                first = upto + 1
            elif found:
                yield from found[: last - first + 1]
                first = found[-1].number + 1
            else:
                raise Missing(f"{_commit_path(first)} is missing; restore it from a copy")

    def id_of(self, number: int) -> str | None:
        """The id of a commit of the chain; None if it is not there, or its merged file no longer is."""
        if number > self.newest_snapshot():
            commit = self.read(number)
            if number > self.newest_snapshot():
                return None if commit is None else commit.id
        try:
            return next(decoded(path, content, _decode_head).id for path, content in self._merged(number, number))
        except Missing:
            return None

    def drop_merged(self, below: int) -> None:
        """Remove the merged files whose commits are all before this number: declared no longer needed (rule 13)."""
        with explained(MERGED):
            for _, last, path in self._merged_files():
                if last < below:
                    self.disk.remove(path)

    def _merged(self, first: int, last: int) -> Iterator[tuple[str, bytes]]:
        """Encoded commits first to last with the file of each. Files may overlap where runs overtook one another."""
        files = self._merged_files()
        while first <= last:
            covering = [(end, start, path) for start, end, path in files if start <= first <= end]
            if not covering:
                raise Missing(f"{MERGED}/ has no file with commit {first}; restore it from a copy")
            end, start, path = max(covering)
            content = self._content(path)
            if content is None:
                raise Missing(f"{path} is missing; restore it from a copy")
            found = list(unseal_all(path, content))
            if len(found) != end - start + 1:
                raise Damaged(f"{path} holds {len(found)} commits; restore it from a copy")
            upto = min(last, end)
            for each in found[first - start : upto - start + 1]:
                yield path, each
            first = upto + 1

    def _merged_files(self) -> list[tuple[int, int, str]]:
        """First and last commit and path of every merged file."""
        files = []
        with explained(MERGED):
            for name in self.disk.names(MERGED):
                first, _, last = name.partition("-")
                if first.isdecimal() and last.isdecimal():
                    files.append((int(first), int(last), f"{MERGED}/{name}"))
        return files

    def _numbers(self, folder: str) -> list[int]:
        """What is there by number; what somebody else put there is left alone."""
        return [int(name) for name in self.disk.names(folder) if name.isdecimal()]

    def _content(self, path: str) -> bytes | None:
        with explained(path):
            try:
                return self.disk.read(path)
            except FileNotFoundError:
                return None


def _readable(commit: Commit) -> bytes:
    """A commit as it is written. What could not be read back would spoil the folder for every start after it (some 10 µs)."""
    content = encode_commit(commit)
    try:
        decode_commit(content)
    except msgspec.DecodeError as error:
        raise LogError(
            f"commit {commit.number} was not made, for nobody could read it: {error}. That is a fault of Millstream's: please report it; "
            "the folder is as it was"
        ) from error
    return content


def _commit_path(number: int) -> str:
    return f"{COMMITS}/{number:012d}"


def _snapshot_path(number: int) -> str:
    return f"{SNAPSHOTS}/{number:012d}"
