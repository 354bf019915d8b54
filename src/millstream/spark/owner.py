"""One run at a time: an operating-system lock held by the JVM, and a fence number that every commit carries."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from millstream.errors import FolderBusy, LogError
from millstream.log.folder import Folder, Pinned, read_json, write_json
from millstream.log.status import is_held

MAX_TRIES = 5
LOCK_TIMEOUT = 20.0  # seconds that the JVM of a driver that was killed may take to follow it

# The locks of this process. A process that closes a file gives up all its locks on it, so the file of a folder that
# is held here must not even be opened.
_held: set[str] = set()


class Owner(msgspec.Struct):
    """Who runs on a folder."""

    process: int
    fence: int


def refuse_if_held(folder: Folder) -> None:
    """What the lock will say, before Spark is started for it. The JVM of a driver that is dead is waited for."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while is_held(folder):
        if _owner_lives(folder) or time.monotonic() > deadline:
            raise FolderBusy(_busy(folder))
        time.sleep(0.1)


def _owner_lives(folder: Folder) -> bool:
    try:
        owner = read_json(folder.run / "owner.json", Owner)
    except LogError:  # what lies in run/ may be torn: it is worth nothing after its run
        owner = None
    if owner is None:
        return False
    try:
        os.kill(owner.process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    with suppress(OSError):
        return ") Z " not in Path(f"/proc/{owner.process}/stat").read_text()  # dead, and nobody has asked how it ended
    return True


class Lock:
    """Held as long as the JVM lives, however it dies."""

    def __init__(self, spark: SparkSession, folder: Folder) -> None:
        self._path = str(folder.lock.resolve())  # however the folder is called
        if self._path in _held:
            raise FolderBusy(_busy(folder))
        jvm: Any = spark.sparkContext._jvm
        self._file = jvm.java.io.RandomAccessFile(str(folder.lock), "rw")
        for _ in range(MAX_TRIES):
            try:
                self._lock = self._file.getChannel().tryLock()
            except Py4JJavaError as error:
                raise LogError(f"{folder.lock} cannot be locked: {error.java_exception.getMessage()}") from None
            if self._lock is not None:
                _held.add(self._path)
                return
            time.sleep(0.1)  # somebody who asks for the status holds it for a moment
        self._file.close()
        raise FolderBusy(_busy(folder))

    def release(self) -> None:
        _held.discard(self._path)
        self._lock.release()
        self._file.close()


def _busy(folder: Folder) -> str:
    return f"another run holds {folder.path}; stop it first, or give this one a folder of its own"


def own(folder: Folder, fence: int) -> None:
    """Say who runs here, for whoever finds the folder busy."""
    folder.run.mkdir(exist_ok=True)
    write_json(folder.run / "owner.json", Owner(os.getpid(), fence), durable=False)


def pin(folder: Folder, topology: str, *, buckets: int, lanes: int) -> Pinned:
    """Fix, at the first start, what state and checkpoints depend on."""
    pinned = Pinned(topology, uuid.uuid4().hex, str(folder.path), max(buckets, lanes), lanes)
    write_json(folder.pinned, pinned)
    return pinned
