"""Taking streams out: a query for each delivery, from the log to its target."""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from millstream.core.backlog import LogFile, Position
from millstream.core.codec import value_decoder
from millstream.core.graph import StreamPlan
from millstream.delivery import ConsoleTarget, Delivery, DeltaTarget, FileTarget, FunctionTarget, MemoryTarget
from millstream.errors import LogError, TopologyError
from millstream.injector import Format
from millstream.log.folder import Folder, sync_folder, write_json
from millstream.log.maintenance import live_files
from millstream.log.staged import MICROSECONDS, read_records, write_parquet
from millstream.log.table import NO_HOOKS, newest_version, tail
from millstream.log.typed import Column, column
from millstream.record import Record
from millstream.spark.failure import reported
from millstream.spark.ship import unpack

WAIT = 5.0
POLL = 0.05
ROWS_A_PART = 200_000  # of one task; it must not depend on the machine, for a repeated epoch has the same parts
ROWS_AN_EPOCH = 1_000_000
QUIET_COMMITS = 100  # without a record for a delivery, until it says that it has seen them: retention waits for it
WIRE = "key STRING, value STRING, timestamp TIMESTAMP, id STRING"


class DeliverySettings(msgspec.Struct, frozen=True):
    """What the parts of a delivery need to know, in whichever process they wake up."""

    folder: str
    run: str  # the identity of the folder, so that a target can tell two of them apart
    delivery: str
    stream: str
    tables: tuple[str, ...]
    graph: str
    target: str = ""
    format: Format | None = None


class Taken(msgspec.Struct, frozen=True):
    """How far a delivery has come: an offset in Spark's log."""

    epoch: int
    positions: dict[str, Position]


class LogSource(DataSource):
    """A stream of the log as a source, and the targets that are written by tasks as a sink."""

    @classmethod
    def name(cls) -> str:
        return "millstream-log"

    def schema(self) -> str:
        return WIRE

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogReader(self._settings())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        settings = self._settings()
        return DeltaWriter(settings) if settings.format is None else FileWriter(settings)

    def _settings(self) -> DeliverySettings:
        return msgspec.json.decode(self.options["settings"], type=DeliverySettings)


@dataclass
class Part(InputPartition):
    files: list[tuple[str, str]]  # table, path


class LogReader(DataSourceStreamReader):
    """Sees final epochs only: what a commit of the log names."""

    def __init__(self, settings: DeliverySettings) -> None:
        self._settings = settings
        self._folder = Folder(settings.folder)

    def initialOffset(self) -> dict[str, Any]:
        return _offset(Taken(-1, {}))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with reported(f"delivery {self._settings.delivery!r}"):
            taken = msgspec.convert(start, Taken)
            # Spark asks only once all before `start` is delivered for good.
            write_json(self._folder.consumer(f"deliver {self._settings.delivery}"), taken.positions, durable=False)
            deadline = time.monotonic() + WAIT
            scanned = taken
            while True:
                rows, scanned = self._look(scanned)
                if (
                    rows
                    or sum(p.version - taken.positions[t].version for t, p in scanned.positions.items() if t in taken.positions)
                    > QUIET_COMMITS
                ):
                    return _offset(Taken(taken.epoch + 1, scanned.positions))
                if time.monotonic() >= deadline:
                    return start
                time.sleep(POLL)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with reported(f"delivery {self._settings.delivery!r}"):
            if start == end:  # Spark plans an empty range too
                return []
            first, last = msgspec.convert(start, Taken), msgspec.convert(end, Taken)
            parts = [Part([])]
            rows = 0
            for file in self._files(first.positions, last.positions):
                if rows + file.rows > ROWS_A_PART and parts[-1].files:
                    parts.append(Part([]))
                    rows = 0
                parts[-1].files.append((file.table, file.path))
                rows += file.rows
            return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        with reported(f"delivery {self._settings.delivery!r}"):
            for table, path in partition.files:
                records = read_records(self._folder.table(table) / path)
                id_ = pc.binary_join_element_wise(table, records["epoch"].cast(pa.string()), records["sequence"].cast(pa.string()), "/")
                named = pa.table([records["key"], records["value"], records["timestamp"], id_], names=["key", "value", "timestamp", "id"])
                yield from named.to_batches()

    def _look(self, taken: Taken) -> tuple[int, Taken]:
        """How many records of this stream have come since, up to the bound of an epoch, and how far that is."""
        positions = dict(taken.positions)
        rows = 0
        for table in self._settings.tables:
            if table not in positions:
                version = newest_version(self._folder.table(table))
                rows += sum(file.rows for file in self._snapshot(table, version))
                positions[table] = Position(version + 1)
                continue
            for commit in tail(self._folder.table(table), table, positions[table]):
                rows += sum(file.rows for file in commit.files if file.stream == self._settings.stream)
                positions[table] = commit.end
                if rows >= ROWS_AN_EPOCH:
                    break
        return rows, Taken(taken.epoch, positions)

    def _files(self, first: dict[str, Position], last: dict[str, Position]) -> Iterator[LogFile]:
        for table in self._settings.tables:
            start, end = first.get(table), last[table]
            if start is None:
                # The first epoch of a delivery begins with what the table holds then: older commits may be gone.
                yield from self._snapshot(table, end.version - 1)
                continue
            for commit in tail(self._folder.table(table), table, start, end):
                yield from (file for file in commit.files if file.stream == self._settings.stream and file.rows)

    def _snapshot(self, table: str, version: int) -> list[LogFile]:
        found = live_files(DeltaTable(str(self._folder.table(table)), version=version), table)
        return sorted((file for file in found if file.stream == self._settings.stream), key=lambda file: file.path)


def _offset(taken: Taken) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(taken)
    return found


@dataclass
class Written(WriterCommitMessage):
    """What one task left: a file, or none, with its size and rows."""

    part: int
    path: str = ""
    size: int = 0
    rows: int = 0


@dataclass
class Values:
    """Typed values of a stream, from their JSON text to a column."""

    decode: Callable[[bytes | str], Any]
    column: Column

    def table(self, batches: list[pa.RecordBatch]) -> pa.Table:
        whole = pa.Table.from_batches(batches)
        values = self.column.array([self.decode(text) for text in whole["value"].to_pylist()])
        return pa.table(
            [whole["key"].cast(pa.string()), values, whole["timestamp"].cast(MICROSECONDS), whole["id"].cast(pa.string())],
            schema=self.schema,
        )

    @property
    def schema(self) -> pa.Schema:
        fields = [("key", pa.string()), ("value", self.column.type), ("timestamp", MICROSECONDS), ("id", pa.string())]
        return pa.schema([pa.field(name, kind) for name, kind in fields])


@functools.lru_cache(maxsize=32)
def _values(packed: str, stream: str) -> Values:
    kind = unpack(packed).streams[stream].value_type
    return Values(value_decoder(kind), column(kind))


class DeltaWriter(DataSourceStreamArrowWriter):
    """Files in tasks, one commit an epoch. A repeated epoch is known by its transaction and skipped."""

    def __init__(self, settings: DeliverySettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with reported(f"delivery {self._settings.delivery!r}"):
            batches = [batch for batch in iterator if batch.num_rows]
            if not batches:
                return Written(_part())
            table = _values(self._settings.graph, self._settings.stream).table(batches)
            target = Path(self._settings.target)
            target.mkdir(parents=True, exist_ok=True)
            name = f"{uuid.uuid4().hex}.parquet"
            return Written(_part(), name, write_parquet(target / name, table), table.num_rows)

    def commit(self, messages: list[Any], batchId: int) -> None:
        with reported(f"delivery {self._settings.delivery!r}"):
            told = self._settings
            schema = _values(told.graph, told.stream).schema
            table = _target(told, schema)
            writer = f"millstream/{told.run}/{told.delivery}"
            done = table.transaction_version(writer)
            files = [message for message in messages if message.rows]
            if (done is not None and done >= batchId) or not files:
                return
            now = int(time.time() * 1000)
            actions: list[AddAction | RemoveAction] = [
                AddAction(f.path, f.size, {}, now, True, msgspec.json.encode({"numRecords": f.rows}).decode()) for f in files
            ]
            properties = CommitProperties(app_transactions=[Transaction(writer, batchId)])
            try:
                table.create_write_transaction(
                    actions, "append", schema, commit_properties=properties, post_commithook_properties=NO_HOOKS if batchId % 50 else None
                )
            except CommitFailedError as error:
                raise LogError(f"another writer delivers to {told.target} as this delivery; stop it: {error}") from error

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Files that no commit names are not part of the table."""


@functools.lru_cache(maxsize=32)
def _opened(path: str) -> DeltaTable:
    return DeltaTable(path)


def _target(settings: DeliverySettings, schema: pa.Schema) -> DeltaTable:
    path = settings.target
    if not DeltaTable.is_deltatable(path):
        DeltaTable.create(path, schema, mode="ignore")
    table = _opened(path)
    table.update_incremental()
    standing = pa.schema(table.schema().to_arrow())
    if standing.names != schema.names or pa.schema(standing).field("value").type != schema.field("value").type:
        raise LogError(
            f"the table {path} holds values of {standing.field('value').type}, the stream {settings.stream!r} now carries "
            f"{schema.field('value').type}; deliver it to another path, or keep the old type"
        )
    return table


def _part() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


class FileWriter(DataSourceStreamArrowWriter):
    """A file for each part of an epoch, moved to its final name by the commit. A repeated epoch has the same names."""

    def __init__(self, settings: DeliverySettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with reported(f"delivery {self._settings.delivery!r}"):
            batches = [batch for batch in iterator if batch.num_rows]
            if not batches:
                return Written(_part())
            staging = Path(self._settings.target) / ".staging"
            staging.mkdir(parents=True, exist_ok=True)
            path = staging / uuid.uuid4().hex
            if self._settings.format is Format.PARQUET:
                table = _values(self._settings.graph, self._settings.stream).table(batches)
                return Written(_part(), path.name, write_parquet(path, table), table.num_rows)
            rows = 0
            with path.open("wb") as file:
                for batch in batches:
                    for line in _lines(batch):
                        file.write(line)
                    rows += batch.num_rows
                file.flush()
                os.fsync(file.fileno())
                return Written(_part(), path.name, file.tell(), rows)

    def commit(self, messages: list[Any], batchId: int) -> None:
        with reported(f"delivery {self._settings.delivery!r}"):
            told = self._settings
            assert told.format is not None
            target = Path(told.target)
            target.mkdir(parents=True, exist_ok=True)
            for message in messages:
                if message.rows:
                    final = f"{told.delivery}-{told.run[:8]}-{batchId:09d}-{message.part:04d}.{told.format.value}"
                    os.replace(target / ".staging" / message.path, target / final)
            sync_folder(target)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """What is staged is not delivered."""


class _Line(msgspec.Struct):
    key: str
    value: msgspec.Raw
    timestamp: Any
    id: str


def _lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    columns = (batch.column(name).to_pylist() for name in ("key", "value", "timestamp", "id"))
    for key, value, timestamp, id_ in zip(*columns, strict=True):
        yield encode(_Line(key, msgspec.Raw(value), timestamp, id_)) + b"\n"


def start_delivery(spark: SparkSession, delivery: Delivery, stream: StreamPlan, folder: Folder, *, run: str, graph: str) -> StreamingQuery:
    target = delivery.target
    settings = DeliverySettings(str(folder.path), run, delivery.name, stream.name, stream.tables, graph)
    if isinstance(target, DeltaTarget):
        settings = msgspec.structs.replace(settings, target=str(Path(target.path).absolute()))
    elif isinstance(target, FileTarget):
        settings = msgspec.structs.replace(settings, target=str(Path(target.path).absolute()), format=target.format)
    options = {"settings": msgspec.json.encode(settings).decode()}
    writer = spark.readStream.format(LogSource.name()).options(**options).load().writeStream.queryName(f"deliver {delivery.name}")
    writer = writer.option("checkpointLocation", str(folder.checkpoint(f"deliver {delivery.name}")))
    if isinstance(target, DeltaTarget | FileTarget):
        return writer.format(LogSource.name()).options(**options).start()
    return writer.foreachBatch(_call(delivery, value_decoder(stream.value_type))).start()


def _call(delivery: Delivery, decode: Callable[[bytes | str], Any]) -> Callable[[DataFrame, int], None]:
    """The targets that live in the driver's own process."""
    target = delivery.target

    def deliver(frame: DataFrame, epoch: int) -> None:
        with reported(f"delivery {delivery.name!r}"):
            rows = frame.toArrow().sort_by([("timestamp", "ascending"), ("id", "ascending")])
            times = rows["timestamp"].cast(MICROSECONDS).cast(pa.int64()).to_pylist()
            values = [decode(text) for text in rows["value"].to_pylist()]
            records = [Record(*row) for row in zip(rows["key"].to_pylist(), values, times, strict=True)]
            if isinstance(target, MemoryTarget):
                target.take(epoch, records)
            elif isinstance(target, FunctionTarget):
                target.call(epoch, records)
            elif isinstance(target, ConsoleTarget):
                _print(delivery.name, target, records)
            else:
                raise TopologyError(f"delivery {delivery.name!r}: {target!r} is not a target that Millstream knows")

    return deliver


def _print(name: str, target: ConsoleTarget, records: list[Record[Any]]) -> None:
    from millstream.timestamp import describe

    if len(records) > target.at_most:
        print(f"{name}: … {len(records) - target.at_most:,} more")
    for record in records[-target.at_most :]:
        print(f"{name}: {describe(record.timestamp)}  {record.key}  {record.value}", flush=True)
