"""The folder of a run: what lies where, and whose it is."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from millstream.errors import LogError

FORMAT = 2

S = TypeVar("S")

# How messages of the journal and of the log begin that name a file from there.
_OF_JOURNAL = re.compile(r"(commits|merged|snapshots|segments|notes)/")
_OF_LOG = re.compile(r"(_delta_log|\d{4}-\d\d-\d\d)/")

_REMEDIES = [
    ((errno.ENOSPC, errno.EDQUOT), "make room and start again"),
    ((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST), "name a folder that you may write to"),
]


class Pinned(msgspec.Struct, frozen=True):
    """What is fixed when a folder is first used: state and checkpoints depend on it."""

    topology: str
    id: str  # tells this folder from all others, wherever something of it is delivered
    at: str  # where it was at its last start
    buckets: int
    lanes: int
    format: int = FORMAT


class _Format(msgspec.Struct):
    format: int


class Folder:
    """Paths, and small files that are replaced whole."""

    def __init__(self, at: str | Path) -> None:
        self.path = Path(at).absolute()

    @property
    def pinned(self) -> Path:
        return self.path / "topology.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, query: str) -> Path:
        return self.checkpoints / query

    @property
    def inputs(self) -> Path:
        """The files that injectors have found."""
        return self.path / "inputs"

    def delivery(self, name: str) -> Path:
        """How far a delivery has come, and the step that is open."""
        return self.path / "deliveries" / name

    @property
    def run(self) -> Path:
        """What the run that is under way says of itself; worthless after it."""
        return self.path / "run"

    @property
    def spark_log(self) -> Path:
        """What Spark says of itself."""
        return self.path / "spark.log"

    def open(self) -> Pinned | None:
        """What is pinned here; None if the folder is new. Refuses a folder that is something else."""
        with self.usable():
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if not self.pinned.exists():
                strange = sorted(p.name for p in self.path.iterdir() if p not in (self.lock, self.spark_log) and p.suffix != ".tmp")[:3]
                if {"log", "journal", "checkpoints"} & {p.name for p in self.path.iterdir()}:
                    raise LogError(f"{self.pinned} is missing, and the folder of a run is around it; restore it from a copy")
                if strange:
                    raise LogError(f"{self.path} holds {', '.join(strange)}, but no run of Millstream; name an empty or a new folder")
                return None
        return self.read_pinned()

    def read_pinned(self) -> Pinned | None:
        """What is fixed, as it stands; None if there is nothing. Another format is refused by name."""
        found = read_json(self.pinned, _Format)
        if found is not None and found.format != FORMAT:
            raise LogError(f"{self.path} was written in format {found.format}, this version knows {FORMAT}; use the version that wrote it")
        return read_json(self.pinned, Pinned)

    def located(self, message: str) -> str:
        """A message with the whole path of the file that it begins with: whoever reads it has not our place in mind."""
        for inner, begins in ((self.journal, _OF_JOURNAL), (self.log, _OF_LOG)):
            if begins.match(message):
                return f"{inner}/{message}"
        return message

    @contextmanager
    def naming(self) -> Iterator[None]:
        """What is wrong with journal or log inside is reported with the whole path."""
        try:
            yield
        except LogError as error:
            raise type(error)(self.located(str(error))) from error

    @contextmanager
    def usable(self) -> Iterator[None]:
        """What the system refuses inside is reported as an error of this folder."""
        try:
            yield
        except ConnectionError:
            raise
        except OSError as error:
            remedy = next((f"; {how}" for those, how in _REMEDIES if error.errno in those), "")
            raise LogError(f"{self.path} cannot be used: {error.strerror or error}{remedy}") from error


def read_json(path: Path, kind: type[S]) -> S | None:
    """A small file, checked; None if it is not there. A torn or foreign one is refused by name."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}") from error
    value, _, seal = content.partition(b"\n")
    if seal and seal != _seal(value):
        raise LogError(f"{path} is damaged: its checksum does not fit; restore it from a copy")
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise LogError(f"{path} is damaged: {error}; restore it from a copy") from error


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace a small file whole, with a checksum in its second line: a reader sees the old one or the new one."""
    content = msgspec.json.encode(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, content + b"\n" + _seal(content), durable=durable)


def replace_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """A reader sees the old file or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def _seal(content: bytes) -> bytes:
    return b"%d" % zlib.crc32(content)


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
