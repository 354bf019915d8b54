"""Where a journal lies: the few operations that it needs of a file system, so that a simulated one can stand in for it."""

from __future__ import annotations

import errno
import os
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from millstream.errors import LogError
from millstream.timestamp import Timestamp

OPEN_FILES = 128  # kept open for reading
ASIDE = re.compile(r"\.\d.*-\w+")  # what `create_whole` writes aside: all that it makes have a number for a name
_CHUNKS_PER_WRITE = 1024  # IOV_MAX
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}

_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class Appending(Protocol):
    """A file that was made here and only grows."""

    def append(self, chunks: Sequence[bytes]) -> None:
        """Write all chunks, one after the other. After an error nobody knows how much of them is there."""

    def sync(self) -> None:
        """What was appended survives a power loss once this returns; the folder's entry has its own sync."""

    def close(self) -> None: ...


class Disk(Protocol):
    """Files under a root. Paths are relative to it, with `/`; the root is "". All raise `OSError` as the system does."""

    def create(self, path: str) -> Appending:
        """A new file; `FileExistsError` if the name is taken."""

    def create_whole(self, path: str, content: bytes) -> bool:
        """A new file that has its whole, synced content from the first moment; False if the name is taken.

        The folder is not synced: the entry may go in a power loss. After an `OSError` the file may be there or not.
        """

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes from `offset`: `length` of them, fewer at the end of the file; all of them without a length."""

    def forget(self, path: str) -> None:
        """The next read opens the file anew."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder, in order, without dot-files; nothing if there is no such folder."""

    def asides(self, folder: str) -> list[str]:
        """Files that `create_whole` is writing there, or that one who was killed in it has left; nothing if there is no such folder."""

    def size(self, path: str) -> int: ...

    def modified(self, path: str) -> Timestamp:
        """When a file was last written."""

    def exists(self, path: str) -> bool: ...

    def make_folder(self, path: str) -> None:
        """A folder and those above it, durable, also where another process made it and died before its sync."""

    def sync_folder(self, path: str) -> None:
        """Names that were made in it or removed from it stay so after a power loss."""

    def sync_file(self, path: str) -> None: ...

    def remove(self, path: str) -> None:
        """A file that is not there is fine."""


class LocalDisk:
    """The file system of this machine, or one that it has mounted. May be used by many threads."""

    def __init__(self, root: str | Path, *, unique: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self.root = Path(root)
        self._unique = unique
        self._open: OrderedDict[str, _Handle] = OrderedDict()
        self._lock = threading.Lock()  # over `_open`; never held while a file is read

    def create(self, path: str) -> LocalAppending:
        return LocalAppending(os.open(self.root / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644))

    def create_whole(self, path: str, content: bytes) -> bool:
        final = self.root / path
        aside = final.with_name(f".{final.name}-{self._unique()}")
        file = LocalAppending(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        try:
            try:
                file.append([content])
                os.fsync(file.descriptor)
            finally:
                file.close()
            os.link(aside, final)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise LogError(f"{self.root} is on a file system without hard links; name a folder on one that has them") from error
            raise
        finally:
            aside.unlink(missing_ok=True)
        return True

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length is None:  # a small file that is read once: its descriptor is not kept
            with open(self.root / path, "rb") as file:
                file.seek(offset)
                return file.read()
        handle = self._handle(path)
        content = os.pread(handle.descriptor, length, offset)
        while 0 < len(content) < length:
            more = os.pread(handle.descriptor, length - len(content), offset + len(content))
            if not more:
                break
            content += more
        return content

    def _handle(self, path: str) -> _Handle:
        with self._lock:
            handle = self._open.get(path)
            if handle is not None:
                self._open.move_to_end(path)
                return handle
        handle = _Handle(self.root / path)
        with self._lock:
            self._open[path] = handle
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        return handle

    def forget(self, path: str) -> None:
        with self._lock:
            self._open.pop(path, None)

    def close(self) -> None:
        """Close what is kept open for reading."""
        with self._lock:
            self._open.clear()

    def names(self, folder: str) -> list[str]:
        return [name for name in self._listed(folder) if not name.startswith(".")]

    def asides(self, folder: str) -> list[str]:
        return [f"{folder}/{name}" for name in self._listed(folder) if ASIDE.fullmatch(name)]

    def _listed(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return (self.root / path).stat().st_size

    def modified(self, path: str) -> Timestamp:
        return Timestamp((self.root / path).stat().st_mtime_ns // 1000)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def make_folder(self, path: str) -> None:
        if not self.root.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            _sync(self.root.parent)
        folder = self.root
        for name in path.split("/"):
            (folder / name).mkdir(exist_ok=True)
            _sync(folder)
            folder /= name

    def sync_folder(self, path: str) -> None:
        _sync(self.root / path)

    def sync_file(self, path: str) -> None:
        _sync(self.root / path)

    def remove(self, path: str) -> None:
        self.forget(path)
        (self.root / path).unlink(missing_ok=True)


class LocalAppending:
    """A file descriptor that is only written to."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def append(self, chunks: Sequence[bytes]) -> None:
        left = [memoryview(chunk) for chunk in chunks if chunk]
        while left:
            written = os.writev(self.descriptor, list(islice(left, _CHUNKS_PER_WRITE)))
            done = 0
            while done < len(left) and written >= len(left[done]):
                written -= len(left[done])
                done += 1
            left = left[done:]
            if written:
                left[0] = left[0][written:]

    def sync(self) -> None:
        _sync_data(self.descriptor)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class _Handle:
    """A descriptor that is closed when the last thread that reads through it lets go of it."""

    descriptor = -1

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
