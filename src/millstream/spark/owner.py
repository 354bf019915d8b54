"""One run at a time: an operating-system lock held by the JVM, and a fence number that every commit asserts."""

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

from millstream.core.graph import Graph
from millstream.errors import FolderBusy, LogError
from millstream.log.folder import Folder, Pinned, read_json, write_json
from millstream.log.status import is_held
from millstream.log.table import Table

TRIES = 5
PASSING = 20.0  # seconds that the JVM of a driver that was killed may take to follow it

# The locks of this process. A process that closes a file gives up all its locks on it, so the file of a folder that
# is held here must not even be opened.
_held: set[str] = set()


class Owner(msgspec.Struct):
    """Who runs on a folder."""

    process: int
    fence: int


def refuse_if_held(folder: Folder) -> None:
    """What the lock will say, before Spark is started for it. The JVM of a driver that is dead is waited for."""
    deadline = time.monotonic() + PASSING
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
        self._path = str(folder.lock)
        if self._path in _held:
            raise FolderBusy(_busy(folder))
        jvm: Any = spark.sparkContext._jvm
        self._file = jvm.java.io.RandomAccessFile(str(folder.lock), "rw")
        for _ in range(TRIES):
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


def take_over(folder: Folder, graph: Graph) -> int:
    """Raise the fence of every table above all that stand; returns it. An older run that wakes up can change nothing."""
    tables = [Table(folder.table(name), name, 0) for name in graph.tables]
    for table in tables:
        table.path.mkdir(parents=True, exist_ok=True)
        table.create()
    fence = 1 + max(table.fence() for table in tables)
    for table in tables:
        Table(table.path, table.name, fence).raise_fence()
    folder.run.mkdir(exist_ok=True)
    for stale in ("stop", "mill.json"):
        (folder.run / stale).unlink(missing_ok=True)
    write_json(folder.run / "owner.json", Owner(os.getpid(), fence), durable=False)
    return fence


def pin(folder: Folder, graph: Graph, *, buckets: int, partitions: int) -> Pinned:
    """Fix, at the first start, what state and checkpoints depend on."""
    pinned = Pinned(graph.name, uuid.uuid4().hex, str(folder.path), spread(buckets, partitions), partitions)
    write_json(folder.pinned, pinned)
    return pinned


def spread(buckets: int, partitions: int) -> list[int]:
    """Labels for the buckets that Spark's hash spreads evenly over the partitions: it leaves many empty otherwise."""
    most = -(-buckets // partitions)
    labels: list[int] = []
    taken = [0] * partitions
    label = 0
    while len(labels) < buckets:
        partition = _hash(label) % partitions
        if taken[partition] < most:
            taken[partition] += 1
            labels.append(label)
        label += 1
    return labels


def _hash(label: int) -> int:
    """Murmur3 of one 32-bit integer with seed 42, signed: what Spark partitions by. A test compares it with Spark's own."""
    mixed = label * 0xCC9E2D51 & 0xFFFFFFFF
    mixed = (mixed << 15 | mixed >> 17) * 0x1B873593 & 0xFFFFFFFF
    found = 42 ^ mixed
    found = (found << 13 | found >> 19) & 0xFFFFFFFF
    found = (found * 5 + 0xE6546B64 & 0xFFFFFFFF) ^ 4
    found = (found ^ found >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    found = (found ^ found >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    found ^= found >> 16
    return found - (1 << 32) if found >= 1 << 31 else found
