"""A disk in memory that tears, forgets and refuses, as real ones do; the same from the same random numbers."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millstream.journal.disk import ASIDE
from millstream.timestamp import Timestamp


class Crash(Exception):
    """The process is killed here."""


@dataclass(slots=True)
class Inode:
    """A file: what a reader sees, and how much of it is on the disk for good."""

    modified: Timestamp
    content: bytearray = field(default_factory=bytearray)
    durable: int = 0
    lost: bool = False  # a sync failed: the kernel has dropped what was not durable, and says so only once


@dataclass
class Faults:
    """What is to go wrong. Countdowns: 0 is the next one, None is never."""

    space: int | None = None  # bytes that can still be written
    sync: int | None = None  # of a file or folder
    answer: bool = False  # the next link happens, and its answer is lost
    taken: bool = False  # the next link happens, and is said to have been there


class SimDisk:
    """Satisfies `Disk`. Every operation is one or more steps; `on_step` is called before each and may raise."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.entries: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}  # the entries as they are on the disk
        self.folders: set[str] = {""}
        self.faults = Faults()
        self.steps = 0
        self.log: list[str] = []
        self.on_step: Callable[[str], None] = lambda what: None
        self.clock: Callable[[], Timestamp] = lambda: Timestamp(0)
        self.boots = 0  # what was open before a power loss is dead
        self._asides = 0

    # What can happen to it.

    def crash_at(self, step: int) -> None:
        """Kill the process before this step, counted from now."""
        last = self.steps + step

        def crash(what: str) -> None:
            if self.steps > last:
                raise Crash(what)

        self.on_step = crash

    def crash(self) -> None:
        """The process is gone: what was written stays, synced or not."""
        self.boots += 1
        self.faults = Faults()
        self.on_step = lambda what: None

    def power_loss(self) -> None:
        """Only what was synced is sure to stay; of everything else, whatever chance leaves."""
        self.crash()
        for path in sorted({*self.entries, *self.durable}):
            now, then = self.entries.get(path), self.durable.get(path)
            kept = now if now is then or self.rng.random() < 0.5 else then
            if kept is None:
                self.entries.pop(path, None)
            else:
                self.entries[path] = kept
        for _, inode in sorted(self.entries.items()):
            self._tear(inode)
        self.durable = dict(self.entries)

    def _tear(self, inode: Inode) -> None:
        tail = inode.content[inode.durable :]
        kept = tail[: self.rng.randint(0, len(tail))]
        if kept and (inode.lost or self.rng.random() < 0.5):  # the size was written, some of the content was not
            hole = self.rng.randint(0, len(kept) - 1)
            kept[hole:] = bytes(len(kept) - hole)
        inode.content[inode.durable :] = kept
        inode.durable, inode.lost = len(inode.content), False

    # What the journal does with it.

    def create(self, path: str) -> SimAppending:
        self._step(f"create {path}")
        return SimAppending(self, self._enter(path), path)

    def create_whole(self, path: str, content: bytes) -> bool:
        folder, _, name = path.rpartition("/")
        self._asides += 1
        aside = f"{folder}/.{name}-{self._asides}"
        self._step(f"create {aside}")
        inode, killed = self._enter(aside), False
        try:
            self._write(inode, [content], aside)
            self._sync(inode, aside)
            self._step(f"link {path}")
            if aside not in self.entries:
                raise _error(FileNotFoundError, errno.ENOENT, aside)
            if path in self.entries:
                return False
            self.entries[path] = inode
            if self.faults.answer:
                self.faults.answer = False
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            if self.faults.taken:
                self.faults.taken = False
                return False
            self._step(f"unlink {aside}")
        except Crash:
            killed = True
            raise
        finally:
            if not killed:  # else nobody removes it
                self.entries.pop(aside, None)
        return True

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self._step(f"read {path}")
        content = self._inode(path).content
        return bytes(content[offset:] if length is None else content[offset : offset + length])

    def forget(self, path: str) -> None:
        self._step(f"forget {path}")

    def names(self, folder: str) -> list[str]:
        self._step(f"names {folder}")
        start = f"{folder}/" if folder else ""
        inside = {path[len(start) :].split("/")[0] for path in (*self.entries, *self.folders) if path.startswith(start)}
        return sorted(name for name in inside if name and not name.startswith("."))

    def asides(self, folder: str) -> list[str]:
        self._step(f"asides {folder}")
        inside = [path for path in self.entries if path.rpartition("/")[0] == folder]
        return sorted(path for path in inside if ASIDE.fullmatch(path.rpartition("/")[2]))

    def size(self, path: str) -> int:
        self._step(f"size {path}")
        return len(self._inode(path).content)

    def modified(self, path: str) -> Timestamp:
        self._step(f"modified {path}")
        return self._inode(path).modified

    def exists(self, path: str) -> bool:
        self._step(f"exists {path}")
        return path in self.entries or path in self.folders

    def make_folder(self, path: str) -> None:
        self._step(f"make {path}")
        parts = path.split("/")
        self.folders |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}

    def sync_folder(self, path: str) -> None:
        self._step(f"sync {path}/")
        if path not in self.folders:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        self._fail_sync(path)
        inside = [each for each in {*self.entries, *self.durable} if each.rpartition("/")[0] == path]
        for each in inside:
            if each in self.entries:
                self.durable[each] = self.entries[each]
            else:
                del self.durable[each]

    def sync_file(self, path: str) -> None:
        self._sync(self._inode(path), path)

    def remove(self, path: str) -> None:
        self._step(f"remove {path}")
        self.entries.pop(path, None)

    # How it does it.

    def _step(self, what: str) -> None:
        self.steps += 1
        self.log.append(what)
        self.on_step(what)

    def _inode(self, path: str) -> Inode:
        if path not in self.entries:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        return self.entries[path]

    def _enter(self, path: str) -> Inode:
        if path.rpartition("/")[0] not in self.folders:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        if path in self.entries:
            raise _error(FileExistsError, errno.EEXIST, path)
        self.entries[path] = Inode(self.clock())
        return self.entries[path]

    def _write(self, inode: Inode, chunks: Sequence[bytes], path: str) -> None:
        content = b"".join(chunks)
        half = self.rng.randint(0, len(content))  # a short write: the process can be killed between the two
        for piece in (content[:half], content[half:]):
            self._step(f"write {path}")
            inode.modified = self.clock()
            if self.faults.space is not None and len(piece) > self.faults.space:
                inode.content += piece[: self.faults.space]
                self.faults.space = 0
                raise _error(OSError, errno.ENOSPC, path)
            if self.faults.space is not None:
                self.faults.space -= len(piece)
            inode.content += piece

    def _sync(self, inode: Inode, path: str) -> None:
        self._step(f"sync {path}")
        try:
            self._fail_sync(path)
        except OSError:
            inode.lost = True
            raise
        if not inode.lost:
            inode.durable = len(inode.content)

    def _fail_sync(self, path: str) -> None:
        if self.faults.sync is not None:
            self.faults.sync -= 1
            if self.faults.sync < 0:
                self.faults.sync = None
                raise _error(OSError, errno.EIO, path)


class SimAppending:
    """Satisfies `Appending`."""

    def __init__(self, disk: SimDisk, inode: Inode, path: str) -> None:
        self._disk, self._inode, self._path = disk, inode, path
        self._boot = disk.boots

    def append(self, chunks: Sequence[bytes]) -> None:
        self._alive()
        self._disk._write(self._inode, chunks, self._path)

    def sync(self) -> None:
        self._alive()
        self._disk._sync(self._inode, self._path)

    def close(self) -> None:
        pass

    def _alive(self) -> None:
        assert self._boot == self._disk.boots, f"{self._path} was opened by a process that is gone"


def _error(kind: type[OSError], number: int, path: str) -> OSError:
    return kind(number, os.strerror(number), path)
