"""One run at a time: an operating-system lock held by the JVM, and a fence number that every commit asserts."""

from __future__ import annotations

import os
import uuid
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from millstream.core.graph import Graph
from millstream.errors import FolderBusy, LogError, MillstreamError
from millstream.log.folder import Folder, Pinned, write_json
from millstream.log.maintenance import sweep_orphans
from millstream.log.status import Owner
from millstream.log.table import Table


class Lock:
    """Held as long as the JVM lives, however it dies."""

    def __init__(self, spark: SparkSession, folder: Folder) -> None:
        jvm: Any = spark.sparkContext._jvm
        if jvm is None:
            raise MillstreamError("Millstream needs a SparkSession of its own process; it does not run through Spark Connect")
        try:
            self._file = jvm.java.io.RandomAccessFile(str(folder.lock), "rw")
            self._lock = self._file.getChannel().tryLock()
        except Py4JJavaError as error:
            if "OverlappingFileLockException" not in str(error.java_exception):
                raise LogError(f"{folder.lock} cannot be locked: {error.java_exception.getMessage()}") from None
            self._lock = None
        if self._lock is None:
            raise FolderBusy(f"another run holds {folder.path}; stop it first, or give this one a folder of its own")

    def release(self) -> None:
        self._lock.release()
        self._file.close()


def take_over(folder: Folder, graph: Graph) -> int:
    """Raise the fence of every table above all that stand; returns it. An older run that wakes up can change nothing."""
    tables = [Table(folder.table(name), name, 0) for name in graph.tables]
    for table in tables:
        table.path.mkdir(parents=True, exist_ok=True)
        table.create()
    fence = 1 + max(table.fence() for table in tables)
    for table in tables:
        Table(table.path, table.name, fence).raise_fence()
        sweep_orphans(folder, table.name)
    folder.run.mkdir(exist_ok=True)
    for stale in ("stop", "mill.json"):
        (folder.run / stale).unlink(missing_ok=True)
    write_json(folder.run / "owner.json", Owner(os.getpid(), fence), durable=False)
    return fence


def pin(spark: SparkSession, folder: Folder, graph: Graph, *, buckets: int, partitions: int) -> Pinned:
    """Fix, at the first start, what state and checkpoints depend on."""
    labels = _labels(spark, buckets, partitions)
    pinned = Pinned(graph.name, uuid.uuid4().hex, str(folder.path), labels, partitions)
    write_json(folder.pinned, pinned)
    return pinned


def _labels(spark: SparkSession, buckets: int, partitions: int) -> list[int]:
    """Numbers for the buckets that Spark's hash spreads evenly over the partitions: it leaves many empty otherwise."""
    wanted = -(-buckets // partitions)
    candidates = spark.range(buckets * 64).select("id", F.pmod(F.hash(F.col("id").cast("int")), F.lit(partitions)).alias("partition"))
    found: dict[int, list[int]] = {}
    for row in candidates.sort("id").collect():
        of_partition = found.setdefault(row["partition"], [])
        if len(of_partition) < wanted:
            of_partition.append(row["id"])
    return sorted(label for labels in found.values() for label in labels)[:buckets]
