"""Bringing outside data in: any source of Spark's, its values keyed, timed and staged in tasks, one commit an epoch."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from millstream.core.codec import encode_value
from millstream.core.extract import EARLIEST, OTHER_UNITS, Extractor, FarFuture, Refused
from millstream.core.graph import DEAD_LETTERS, table_of
from millstream.core.low_watermark import merge
from millstream.core.plan import Source, read_source
from millstream.errors import RecordError
from millstream.injector import BoundedDisorder, FileSource, Format, Injection
from millstream.log.folder import Folder
from millstream.log.staged import MICROSECONDS, RECORDS, StagedFile, stage
from millstream.log.table import Table, newest_note
from millstream.record import DeadLetter, Errors
from millstream.spark.failure import reported
from millstream.spark.ship import unpack
from millstream.timestamp import Timestamp

SHOWN = 300  # characters of a bad value that a message shows


class InjectorSettings(msgspec.Struct, frozen=True):
    """What the parts of an injector need to know, in whichever process they wake up."""

    folder: str
    fence: int
    injector: str
    graph: str
    run: str  # no two runs have the same, even if a folder is restored from a copy and a fence comes again


@dataclass
class Injected(WriterCommitMessage):
    """What one task left."""

    files: list[StagedFile] = field(default_factory=list)
    complete: dict[str, Timestamp] = field(default_factory=dict)  # by partition of the source
    injected: int = 0
    dead: int = 0


class InjectorWriter(DataSourceStreamArrowWriter):
    """Stages in tasks; commits in the driver. The first commit of an epoch wins, a repeated one is skipped."""

    def __init__(self, settings: str) -> None:
        self._settings = msgspec.json.decode(settings, type=InjectorSettings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Injected:
        context = TaskContext.get()
        assert context is not None
        return _write(self._settings, iterator, int(context.getLocalProperty("streaming.sql.batchId") or 0), context.partitionId())

    def commit(self, messages: list[Any], batchId: int) -> None:
        _commit(self._settings, messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Nothing is visible yet, so there is nothing to undo."""


class WholeWriter(DataSourceArrowWriter):
    """A batch DataFrame: all of it is epoch 0."""

    def __init__(self, settings: str) -> None:
        self._settings = msgspec.json.decode(settings, type=InjectorSettings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Injected:
        context = TaskContext.get()
        assert context is not None
        return _write(self._settings, iterator, 0, context.partitionId())

    def commit(self, messages: list[Any]) -> None:
        _commit(self._settings, messages, 0)

    def abort(self, messages: list[Any]) -> None:
        """Nothing is visible yet, so there is nothing to undo."""


def finish(table: Table) -> None:
    """Say in the log that the input has ended."""
    source = _source(table)
    if not source.finished:
        source.finished = True
        table.annotate(msgspec.json.encode(source))


def is_finished(table: Table) -> bool:
    return _source(table).finished


def _source(table: Table) -> Source:
    found = newest_note(table.path, table.name)
    return Source() if found is None else read_source(found[1])


@functools.lru_cache(maxsize=32)
def _table(settings: InjectorSettings) -> Table:
    """One handle for each table in each process: opening costs, updating does not."""
    name = table_of(settings.injector)
    return Table(Folder(settings.folder).table(name), name, settings.fence)


def _commit(settings: InjectorSettings, messages: list[Any], epoch: int) -> None:
    with reported(f"injector {settings.injector!r}"):
        table = _table(settings)
        if table.committed(settings.injector) >= epoch:
            return
        complete: dict[str, Timestamp] = {}
        files: list[StagedFile] = []
        for message in messages:
            files += message.files
            for partition, upto in message.complete.items():
                complete[partition] = max(upto, complete.get(partition, upto))
        source = _source(table)
        policy = unpack(settings.graph).injections[settings.injector].low_watermark
        source.marks = merge(source.marks, complete, now=_now(), idle_after=policy.idle_after)
        source.injected += sum(message.injected for message in messages)
        source.dead += sum(message.dead for message in messages)
        source.epoch = epoch
        table.commit(files, msgspec.json.encode(source), writer=settings.injector, epoch=epoch)


def _now() -> Timestamp:
    return Timestamp(time.time_ns() // 1000)


def _write(settings: InjectorSettings, batches: Iterator[pa.RecordBatch], epoch: int, task: int) -> Injected:
    with reported(f"injector {settings.injector!r}"):
        injection = unpack(settings.graph).injections[settings.injector]
        table = Folder(settings.folder).table(table_of(settings.injector))
        work = _Work(injection, settings.graph, epoch, task)
        left = Injected()
        for batch in batches:
            for stream, records in work.take(batch):
                left.files += stage(table, stream, records, epoch=epoch)
        for stream, records in work.rest():
            left.files += stage(table, stream, records, epoch=epoch)
        left.complete, left.injected, left.dead = work.complete, work.injected, work.dead
        return left


@functools.lru_cache(maxsize=32)
def _extractor(packed: str, injector: str) -> Extractor:
    injection = unpack(packed).injections[injector]
    return Extractor(injection, strict=not _is_csv(injection))


def _is_csv(injection: Injection) -> bool:
    return isinstance(injection.source, FileSource) and injection.source.format is Format.CSV


ROWS_AT_ONCE = 65_536


class _Work:
    """What one task does with its share of an injector's epoch."""

    def __init__(self, injection: Injection, packed: str, epoch: int, task: int) -> None:
        self._injection, self._epoch, self._first = injection, epoch, task << 40
        self._extractor = _extractor(packed, injection.name)
        self._canonical = _is_csv(injection)
        self._now = _now()
        self._sequence = self._first
        self._waiting: list[pa.Table] = []
        self._letters: list[DeadLetter] = []
        self.complete: dict[str, Timestamp] = {}
        self.injected = self.dead = 0

    def take(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Table]]:
        if batch.num_rows == 0:
            return
        columns = {name for name in batch.schema.names if name.startswith("_")}
        all_columns = (
            not callable(self._injection.key) and not callable(self._injection.timestamp) and not callable(self._injection.partition)
        )
        simple = all_columns and isinstance(self._injection.low_watermark, BoundedDisorder)
        taken = self._columns(batch) if simple else self._functions(batch, columns)
        if taken is not None:
            self._waiting.append(taken)
        if sum(part.num_rows for part in self._waiting) >= ROWS_AT_ONCE:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[str, pa.Table]]:
        if self._waiting:
            yield self._injection.name, pa.concat_tables(self._waiting)
            self._waiting = []
        if self._letters:
            count = len(self._letters)
            values = [encode_value(letter) for letter in self._letters]
            yield DEAD_LETTERS, self._numbered([""] * count, values, [self._now] * count)
            self._letters = []

    def _functions(self, batch: pa.RecordBatch, columns: set[str]) -> pa.Table | None:
        """Python for each record: decode, extract."""
        texts = batch.column("value").to_pylist()
        beside = {name[1:].replace("_", " "): batch.column(name).to_pylist() for name in columns}
        keys: list[str] = []
        values: list[bytes] = []
        timestamps: list[Timestamp] = []
        decode, extract, complete, now = self._extractor.decode, self._extractor.extract, self.complete, self._now
        empty: dict[str, Any] = {}
        for position, text in enumerate(texts):
            if not text or text.isspace():
                continue
            try:
                try:
                    value = decode(text)
                except (msgspec.MsgspecError, ValueError) as error:
                    raise Refused(f"it cannot be decoded: {error}") from error
                found = extract(value, {name: column[position] for name, column in beside.items()} if beside else empty, now=now)
            except Refused as refused:
                self._refuse(refused, text)
                continue
            keys.append(found.key)
            values.append(encode_value(value) if self._canonical else text.encode())
            timestamps.append(found.timestamp)
            upto = complete.get(found.partition)
            if upto is None or found.complete > upto:
                complete[found.partition] = found.complete
        if not keys:
            return None
        self.injected += len(keys)
        return self._numbered(keys, values, timestamps)

    def _columns(self, batch: pa.RecordBatch) -> pa.Table | None:
        """No Python for each record: key and timestamp are columns."""
        timestamp = batch.column("_timestamp")
        limit = int(self._now + self._injection.ahead)
        good = pc.and_(
            pc.and_(pc.is_valid(batch.column("_key")), pc.is_valid(timestamp)),
            pc.and_(pc.less_equal(timestamp, limit), pc.greater_equal(timestamp, int(EARLIEST))),
        )
        if "_partition" in batch.schema.names:
            good = pc.and_(good, pc.is_valid(batch.column("_partition")))
        unit = pc.or_(pc.less(timestamp, OTHER_UNITS.start), pc.greater_equal(timestamp, OTHER_UNITS.stop))
        good = pc.fill_null(pc.and_(good, unit), False)
        if pc.sum(good).as_py() != batch.num_rows:
            for row in batch.filter(pc.invert(good)).to_pylist():
                try:
                    # Told by the same checks as a record that goes through Python.
                    self._extractor.extract(None, {name[1:].replace("_", " "): cell for name, cell in row.items()}, now=self._now)
                except Refused as refused:
                    self._refuse(refused, row["value"])
            batch = batch.filter(good)
            timestamp = batch.column("_timestamp")
        if batch.num_rows == 0:
            return None
        assert isinstance(self._injection.low_watermark, BoundedDisorder)
        disorder = self._injection.low_watermark.by
        partitions = batch.column("_partition") if "_partition" in batch.schema.names else pa.array([""] * batch.num_rows)
        newest = pa.table({"partition": partitions, "at": timestamp}).group_by("partition").aggregate([("at", "max")])
        for partition, at in zip(newest["partition"].to_pylist(), newest["at_max"].to_pylist(), strict=True):
            self.complete[partition] = max(self.complete.get(partition, at - disorder), at - disorder)
        self.injected += batch.num_rows
        return self._numbered(batch.column("_key"), batch.column("value"), timestamp)

    def _numbered(self, keys: Any, values: Any, timestamps: Any) -> pa.Table:
        count = len(keys)
        numbers = np.arange(count, dtype=np.int64) + self._sequence
        self._sequence += count
        columns = [
            keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string()),
            values if isinstance(values, pa.Array) else pa.array(values, pa.binary()).cast(pa.string()),
            (timestamps if isinstance(timestamps, pa.Array) else pa.array(np.array(timestamps, np.int64))).cast(MICROSECONDS),
            pa.array(np.full(count, self._epoch, np.int64)),
            pa.array(numbers),
        ]
        return pa.table(columns, schema=RECORDS)

    def _refuse(self, why: Refused, text: str | None) -> None:
        """A far future is always set aside; anything else by the injector's policy."""
        shown = text or ""
        if self._injection.errors is Errors.FAIL and not isinstance(why, FarFuture):
            cut = shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"
            raise RecordError(
                f"injector {self._injection.name!r}, value {cut}",
                f"{why}. Mend the input or the extractor, or set such values aside with inject(..., errors=ms.Errors.DEAD_LETTER)",
            )
        self.dead += 1
        letter = DeadLetter(self._injection.name, None, None, f"{self._epoch}/{self._sequence}/{self.dead}", str(why), shown)
        self._letters.append(letter)
