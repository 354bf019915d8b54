"""The one query that runs all computations: read from the log, group by bucket, mill, stage."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millstream.core.backlog import Limits, LogFile
from millstream.core.epoch import Header, Summary
from millstream.core.graph import MILL
from millstream.core.plan import Plan, before_all
from millstream.errors import Fenced, LogError
from millstream.log.folder import Folder, write_json
from millstream.log.staged import RECORDS, ROWS_A_FILE, StagedFile, stage
from millstream.log.table import Table
from millstream.spark.datasource import MillSource
from millstream.spark.failure import reported
from millstream.spark.planner import Manifest, Planner, manifest_path
from millstream.spark.ship import mill_of, unpack
from millstream.spark.wire import ARRIVALS, PRODUCTIONS, Routing, from_blob, productions_blob, read_arrivals, split, summary_of, to_blob
from millstream.timestamp import Timestamp

WAIT = 10.0  # seconds that a quiet planner waits before it lets Spark ask again
ROWS_A_TASK = 20_000  # fewer are not worth a task of their own


class Settings(msgspec.Struct, frozen=True):
    """What the parts of the mill need to know, in whichever process they wake up."""

    folder: str
    fence: int
    buckets: list[int]
    parallelism: int
    records: int
    size: int
    graph: str
    clock: str | None = None  # a file that says what time it is, for tests


@dataclass
class Share(InputPartition):
    """What one task reads: files, and the buckets that are due without records."""

    header: bytes
    files: list[tuple[str, str, str]]  # table, stream, path
    due: list[int]


class MillReader(DataSourceStreamReader):
    """Plans in one long-lived process of the driver; reads in tasks."""

    def __init__(self, settings: str) -> None:
        self._settings = msgspec.json.decode(settings, type=Settings)
        self._planner: Planner | None = None

    def initialOffset(self) -> dict[str, Any]:
        return _offset(before_all(unpack(self._settings.graph)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with reported("planning an epoch"):
            plan = self._plans().next_plan(_plan(start), wait=WAIT)
            return start if plan is None else _offset(plan)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:  # Spark plans an empty range too
            return []
        with reported("planning an epoch"):
            plan = _plan(end)
            files = self._plans().files(_plan(start), plan)
            rows = sum(file.rows for file in files)
            tasks = max(1, min(self._settings.parallelism, rows // ROWS_A_TASK))
            header = msgspec.json.encode(plan.header())
            shares = [Share(header, [(f.table, f.stream, f.path) for f in part], []) for part in _deal(files, tasks)]
            shares[0].due = plan.due
            return shares

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        with reported("reading the log"):
            yield from _read(self._settings, partition)

    def _plans(self) -> Planner:
        if self._planner is None:
            told = self._settings
            graph = unpack(told.graph)
            limits = Limits(told.records, told.size)
            clock, scripted = _clock(told.clock), told.clock is not None
            self._planner = Planner(
                Folder(told.folder), graph, fence=told.fence, buckets=len(told.buckets), limits=limits, clock=clock, scripted=scripted
            )
        return self._planner


def _clock(script: str | None) -> Callable[[], Timestamp]:
    """The system's clock, or that of a test."""
    if script is None:
        return lambda: Timestamp(time.time_ns() // 1000)
    return lambda: Timestamp(int(Path(script).read_text()))


def _plan(offset: dict[str, Any]) -> Plan:
    return msgspec.convert(offset, Plan)


def _offset(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(plan)
    return found


def _deal(files: list[LogFile], parts: int) -> list[list[LogFile]]:
    """Files in shares of about the same number of rows."""
    shares: list[list[LogFile]] = [[] for _ in range(parts)]
    rows = [0] * parts
    for file in sorted(files, key=lambda file: -file.rows):
        least = rows.index(min(rows))
        shares[least].append(file)
        rows[least] += file.rows
    return shares


@functools.lru_cache(maxsize=8)
def _routing(packed: str) -> Routing:
    return Routing(unpack(packed))


def _read(settings: Settings, share: Share) -> Iterator[pa.RecordBatch]:
    folder, routing = Folder(settings.folder), _routing(settings.graph)
    header = msgspec.json.decode(share.header, type=Header)
    told = set()
    waiting: list[pa.Table] = []
    for number, (table, stream, path) in enumerate(share.files):
        waiting.append(routing.arrivals(table, stream, folder.table(table) / path))
        if sum(part.num_rows for part in waiting) >= ROWS_A_FILE or number == len(share.files) - 1:
            whole = pa.concat_tables(waiting)
            waiting = []
            for bucket, part in split(whole, len(settings.buckets)):
                told.add(bucket)
                yield _batch(settings.buckets[bucket], to_blob(part, "header", header))
    # Zero rows would call no processor: a due bucket without records gets a blob without records.
    for bucket in share.due:
        if bucket not in told:
            yield _batch(settings.buckets[bucket], to_blob(ARRIVALS.empty_table(), "header", header))


def _batch(label: int, blob: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array([label], pa.int32()), pa.array([blob], pa.binary())], names=["bucket", "blob"])


class SparkShelf:
    """The state of a bucket in a map of Spark's state store; every call is a round trip."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self, key: str) -> bytes | None:
        found = self._state.getValue((key,))
        return None if found is None else bytes(found[0])

    def put(self, key: str, value: bytes) -> None:
        self._state.updateValue((key,), (value,))

    def remove(self, key: str) -> None:
        self._state.removeKey((key,))


class BucketProcessor(StatefulProcessor):
    """Spark's side of a bucket: blobs in, state beside, a blob out."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._shelf = SparkShelf(handle.getMapState("rows", "name STRING", "content BINARY"))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        import pandas as pd  # takes seconds to import, and only this worker needs it

        with reported("running an epoch"):
            bucket = self._settings.buckets.index(int(key[0]))
            tables = sorted(unpack(self._settings.graph).tables)
            header, arrivals = read_arrivals([blob for frame in rows for blob in frame["blob"]], tables)
            productions, summary = mill_of(self._settings.graph).run(bucket, header, arrivals, self._shelf)
            yield pd.DataFrame({"epoch": [header.epoch], "blob": [productions_blob(header, bucket, productions, summary)]})

    def close(self) -> None:
        pass


@dataclass
class Staged(WriterCommitMessage):
    """What one task left."""

    epochs: list[int]
    files: list[StagedFile]
    summaries: list[Summary]


class MillWriter(DataSourceStreamArrowWriter):
    """Stages files in tasks; in the driver, leaves a manifest for the planner to publish."""

    def __init__(self, settings: str) -> None:
        self._settings = msgspec.json.decode(settings, type=Settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        with reported("staging an epoch"):
            table = Folder(self._settings.folder).table(MILL)
            staged = Staged([], [], [])
            parts: list[pa.Table] = []
            for batch in iterator:
                for epoch, blob in zip(batch.column("epoch").to_pylist(), batch.column("blob").to_pylist(), strict=True):
                    part = from_blob(blob)
                    staged.epochs.append(epoch)
                    staged.summaries.append(summary_of(part))
                    parts.append(part.replace_schema_metadata(None))
            if parts:
                staged.files = _stage_streams(table, pa.concat_tables(parts), staged.epochs[0])
            return staged

    def commit(self, messages: list[Any], batchId: int) -> None:
        with reported("recording an epoch"):
            files: list[StagedFile] = []
            summaries: list[Summary] = []
            for message in messages:
                if any(epoch != batchId for epoch in message.epochs):
                    raise LogError(
                        f"Spark runs batch {batchId} with records of epoch {message.epochs[0]}; the checkpoint does not belong to the log"
                    )
                files += message.files
                summaries += message.summaries
            told = self._settings
            path = manifest_path(Folder(told.folder), batchId, told.fence)
            write_json(path, Manifest(batchId, told.fence, files, summaries))
            try:
                _mill_table(told.folder, told.fence).owned()
            except Fenced:  # the newer run has swept the files, and must not find a manifest that names them
                path.unlink()
                raise

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Nothing is visible yet, so there is nothing to undo; the files are swept later by their names."""


@functools.lru_cache(maxsize=8)
def _mill_table(folder: str, fence: int) -> Table:
    """One handle in each process: opening costs, updating does not."""
    return Table(Folder(folder).table(MILL), MILL, fence)


def _stage_streams(table: Path, records: pa.Table, epoch: int) -> list[StagedFile]:
    staged: list[StagedFile] = []
    encoded = records["stream"].combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    for number, stream in enumerate(encoded.dictionary.to_pylist()):
        of_stream = records.filter(pc.equal(encoded.indices, number)).select(RECORDS.names).cast(RECORDS)
        staged += stage(table, stream, of_stream, epoch=epoch)
    return staged


def start_mill(spark: SparkSession, settings: Settings, *, name: str) -> StreamingQuery:
    """The query; its plan is the same for every topology, so that computations come and go without a new checkpoint."""
    options = {"settings": msgspec.json.encode(settings).decode()}
    blobs: DataFrame = spark.readStream.format(MillSource.name()).options(**options).load()
    milled = blobs.groupBy("bucket").transformWithStateInPandas(
        BucketProcessor(settings), outputStructType="epoch BIGINT, blob BINARY", outputMode="Append", timeMode="None"
    )
    checkpoint = f"file://{Folder(settings.folder).checkpoint(MILL)}"
    writer = milled.writeStream.format(MillSource.name()).options(**options).outputMode("append")
    return writer.queryName(name).option("checkpointLocation", checkpoint).start()


assert PRODUCTIONS.names[1:] == RECORDS.names
