"""A lane as a Spark query of one task: inside each of its batches epochs run, until a checkpoint is due.

No shuffle stands between source and state: with several lanes in one query, Spark would run the healthy ones again when
an executor is lost. See docs/decisions/0011.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millstream.core.lanes import Lanes
from millstream.journal.disk import LocalDisk
from millstream.journal.names import ByLane, prefix_of
from millstream.journal.segments import SegmentReader, SegmentWriter
from millstream.mill.channel import connect
from millstream.mill.held import Held
from millstream.mill.lane import Lane
from millstream.mill.serving import serve
from millstream.sources.pieces import PiecesReader
from millstream.spark.failure import reported
from millstream.spark.ship import unpack

ENVIRONMENT = "MILLSTREAM_LANE"


class LaneSettings(msgspec.Struct, frozen=True):
    """What a lane needs to know, in whichever process it wakes up."""

    run: str  # of which planner
    journal: str
    number: int
    lanes: int
    buckets: int
    address: str
    secret: str
    graph: str
    memory: int
    records_at_once: int  # that are read of a source


class SparkStore:
    """The state of a lane in a map of Spark's state store; every call is a round trip."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self, key: str) -> bytes | None:
        found = self._state.getValue((key,))
        return None if found is None else bytes(found[0])

    def put(self, key: str, value: bytes) -> None:
        self._state.updateValue((key,), (value,))

    def remove(self, key: str) -> None:
        self._state.removeKey((key,))


# The lane that this process has run, with all that it holds, from one batch to the next.
_kept: dict[tuple[str, int], Lane] = {}


class LaneProcessor(StatefulProcessor):
    """Spark's side of a lane: one row in, and the batch lasts until the next checkpoint."""

    def __init__(self, settings: LaneSettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = SparkStore(handle.getMapState("rows", "name STRING", "content BINARY"))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        import pandas as pd  # takes seconds to import, and only this worker needs it

        for _ in rows:
            pass
        with reported(f"lane {self._settings.number}"):
            run_lane(self._settings, self._store)
        yield pd.DataFrame({"lane": [self._settings.number]})

    def close(self) -> None:
        pass


def run_lane(settings: LaneSettings, store: SparkStore) -> None:
    """One batch of a lane."""
    context = TaskContext.get()
    assert context is not None
    place = (settings.run, settings.number)
    lane = _kept.pop(place, None)
    if lane is None:
        _kept.clear()  # of an earlier run in this process
        lane = _new_lane(settings, store)
    else:
        lane.held.attach(store)
    channel = connect(settings.address, bytes.fromhex(settings.secret))
    process = f"{socket.gethostname()} process {os.getpid()}"
    serve(lane, channel, attempt=context.taskAttemptId(), process=process)
    _kept[place] = lane  # only a lane that returns as it should leaves what it holds


def _new_lane(settings: LaneSettings, store: SparkStore) -> Lane:
    disk = LocalDisk(Path(settings.journal))
    writer = SegmentWriter(disk, prefix_of(ByLane(settings.number)), lambda: uuid.uuid4().hex[:12])
    held = Held(store, memory=settings.memory)
    lanes, graph = Lanes(settings.buckets, settings.lanes), unpack(settings.graph)
    pieces = PiecesReader(graph, lanes, at_once=settings.records_at_once)
    reader = SegmentReader(disk, sleep=time.sleep)
    return Lane(graph, settings.number, lanes, held, writer, reader, pieces.read, time.perf_counter)


def start_lane(spark: SparkSession, settings: LaneSettings, *, name: str, checkpoint: Path, workers: str) -> StreamingQuery:
    """The query. Its plan is the same for every topology, so that computations come and go without a new checkpoint.

    Spark's idle Python workers are one queue for each environment: with one of its own, a lane keeps its process, and with it
    what it holds, from batch to batch. `workers` names that queue; Spark keeps a process for each until its session ends.
    """
    environment = spark.sparkContext.environment
    environment[ENVIRONMENT] = workers
    try:
        control = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
        rows = control.selectExpr(f"CAST({settings.number} AS INT) AS lane").coalesce(1)
        run = rows.groupBy("lane").transformWithStateInPandas(
            LaneProcessor(settings), outputStructType="lane INT", outputMode="Append", timeMode="None"
        )
        writer = run.writeStream.format("noop").outputMode("append").queryName(name)
        return writer.option("checkpointLocation", f"file://{checkpoint}").start()
    finally:
        del environment[ENVIRONMENT]
