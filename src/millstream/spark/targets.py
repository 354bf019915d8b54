"""Targets that tasks write: Delta tables and folders of files, each epoch once."""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from millstream.core.codec import value_decoder
from millstream.errors import LogError, RecordError
from millstream.injector import Format
from millstream.log.folder import sync_folder
from millstream.log.reading import Line
from millstream.log.staged import MICROSECONDS, write_parquet
from millstream.log.table import NO_HOOKS
from millstream.log.typed import Column, column
from millstream.spark.failure import reported
from millstream.spark.ship import unpack

CHECKPOINT_EVERY = 50  # commits

T = TypeVar("T")


class DeliverySettings(msgspec.Struct, frozen=True):
    """What the parts of a delivery need to know, in whichever process they wake up."""

    folder: str
    identity: str  # so that a target can tell two deliveries apart, whatever their names
    delivery: str
    stream: str
    tables: tuple[str, ...]
    graph: str
    run: str  # each start has its own: a target may be restored from a copy, or made anew, between two of them
    target: str = ""
    format: Format | None = None


def writer_for(settings: str) -> DataSourceStreamArrowWriter:
    told = msgspec.json.decode(settings, type=DeliverySettings)
    return DeltaWriter(told) if told.format is None else FileWriter(told)


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

    stream: str
    decode: Callable[[bytes | str], Any]
    column: Column

    def table(self, batches: list[pa.RecordBatch]) -> pa.Table:
        whole = pa.Table.from_batches(batches)
        values = for_all(lambda texts: self.column.array([self.decode(text) for text in texts]), whole, self.stream)
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
    return Values(stream, value_decoder(kind), column(kind))


_UNFIT = (msgspec.MsgspecError, pa.ArrowException, ValueError, OverflowError, TypeError)


def for_all(change: Callable[[list[str]], T], records: pa.Table, stream: str) -> T:
    """What becomes of the values of records; if one of them is to blame that nothing does, it is named."""
    texts = records["value"].to_pylist()
    try:
        return change(texts)
    except _UNFIT:
        for n, text in enumerate(texts):
            try:
                change([text])
            except _UNFIT as error:
                where = f"record {records['id'][n].as_py()} of stream {stream!r}, key {records['key'][n].as_py()!r}"
                why = f"its value does not fit the type of the stream: {error}; widen the type, and start again"
                raise RecordError(where, why) from error
        raise


class _TargetWriter(DataSourceStreamArrowWriter):
    """A task leaves a file with what came to it, or none."""

    def __init__(self, settings: DeliverySettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with reported(f"delivery {self._settings.delivery!r}"):
            batches = [batch for batch in iterator if batch.num_rows]
            return self._leave(batches) if batches else Written(_part())

    def _leave(self, batches: list[pa.RecordBatch]) -> Written:
        raise NotImplementedError

    def _leave_parquet(self, path: Path, batches: list[pa.RecordBatch]) -> Written:
        path.parent.mkdir(parents=True, exist_ok=True)
        table = _values(self._settings.graph, self._settings.stream).table(batches)
        return Written(_part(), path.name, write_parquet(path, table), table.num_rows)


class DeltaWriter(_TargetWriter):
    """Files in tasks, one commit an epoch. A repeated epoch is known by its transaction and skipped."""

    def _leave(self, batches: list[pa.RecordBatch]) -> Written:
        return self._leave_parquet(Path(self._settings.target) / f"{uuid.uuid4().hex}.parquet", batches)

    def commit(self, messages: list[Any], batchId: int) -> None:
        with reported(f"delivery {self._settings.delivery!r}"):
            told = self._settings
            schema = _values(told.graph, told.stream).schema
            table = _target(told, schema)
            writer = f"millstream/{told.identity}/{told.delivery}"
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
                table.create_write_transaction(actions, "append", schema, commit_properties=properties, post_commithook_properties=NO_HOOKS)
            except CommitFailedError as error:
                raise LogError(f"another writer delivers to {told.target} as this delivery; stop it: {error}") from error
            table.update_incremental()
            if table.version() % CHECKPOINT_EVERY == 0:
                table.create_checkpoint()
                if table.metadata().configuration.get("delta.enableExpiredLogCleanup") != "false":
                    table.cleanup_metadata()  # what is older than the table is told to keep: a month, by itself

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Files that no commit names are not part of the table."""


@functools.lru_cache(maxsize=32)
def _opened(path: str, run: str) -> DeltaTable:
    """One handle for a run; that of an earlier one may know of versions that are not there any more."""
    return DeltaTable(path)


def _target(settings: DeliverySettings, schema: pa.Schema) -> DeltaTable:
    path = settings.target
    if not DeltaTable.is_deltatable(path):
        DeltaTable.create(path, schema, mode="ignore")
    table = _opened(path, settings.run)
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


class FileWriter(_TargetWriter):
    """A file for each part of an epoch, moved to its final name by the commit. A repeated epoch has the same names."""

    def _leave(self, batches: list[pa.RecordBatch]) -> Written:
        path = Path(self._settings.target) / ".staging" / uuid.uuid4().hex
        if self._settings.format is Format.PARQUET:
            return self._leave_parquet(path, batches)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for batch in batches:
                for line in _lines(batch):
                    file.write(line)
            file.flush()
            os.fsync(file.fileno())
            return Written(_part(), path.name, file.tell(), sum(batch.num_rows for batch in batches))

    def commit(self, messages: list[Any], batchId: int) -> None:
        with reported(f"delivery {self._settings.delivery!r}"):
            told = self._settings
            assert told.format is not None
            target = Path(told.target)
            target.mkdir(parents=True, exist_ok=True)
            for message in messages:
                if message.rows:
                    final = f"{told.delivery}-{told.identity[:8]}-{batchId:09d}-{message.part:04d}.{told.format.value}"
                    os.replace(target / ".staging" / message.path, target / final)
            sync_folder(target)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """What is staged is not delivered."""


def _lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    columns = (batch.column(name).to_pylist() for name in ("key", "value", "timestamp", "id"))
    for key, value, timestamp, id_ in zip(*columns, strict=True):
        yield encode(Line(key, msgspec.Raw(value.encode()), timestamp, id_)) + b"\n"
