"""Bringing in what Spark reads: tasks key, time and deal the values and append frames; each batch leaves a note for the planner."""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from millstream.core.extract import believable
from millstream.core.lanes import Lanes
from millstream.core.parts import NO_LANE, RECORDS_PER_PART, Columns, Frame
from millstream.core.route import Dealer
from millstream.errors import MillstreamError
from millstream.injector import BoundedDisorder
from millstream.journal.disk import LocalDisk
from millstream.journal.names import ByTask, prefix_of
from millstream.journal.notes import Note, Notes
from millstream.journal.segments import SegmentWriter
from millstream.log.folder import sync_folder
from millstream.mill.channel import connect
from millstream.mill.messages import Noted, encode_message
from millstream.sources.dealing import SHOWN, Intake, Taken
from millstream.spark.failure import reported
from millstream.spark.ship import unpack
from millstream.timestamp import Duration, Timestamp, describe


class InjectorSettings(msgspec.Struct, frozen=True):
    """What the parts of an injector need to know, in whichever process they wake up."""

    journal: str
    checkpoint: str  # of its query: what Spark has planned is synced before a note is left
    fence: int
    injector: str
    graph: str
    lanes: int
    buckets: int
    address: str
    secret: str


@dataclass
class Injected(WriterCommitMessage):
    """What one task left."""

    frames: list[Frame] = field(default_factory=list)
    marks: dict[str, Timestamp] = field(default_factory=dict)  # by partition of the source, up to when it is complete
    injected: int = 0
    dead: int = 0


class InjectorWriter(DataSourceStreamArrowWriter):
    """Frames in tasks, a note in the driver. A batch that is known already changes nothing."""

    def __init__(self, settings: str) -> None:
        self._settings = msgspec.json.decode(settings, type=InjectorSettings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Injected:
        context = TaskContext.get()
        assert context is not None
        return _write(self._settings, iterator, int(context.getLocalProperty("streaming.sql.batchId") or 0), context.partitionId())

    def commit(self, messages: list[Any], batchId: int) -> None:
        with reported(f"injector {self._settings.injector!r}"):
            _sync_planned(Path(self._settings.checkpoint), batchId)
            _leave(self._settings, messages, batchId, finished=False)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Nothing is visible yet, so there is nothing to undo."""


class WholeWriter(DataSourceArrowWriter):
    """A batch DataFrame: all of it is batch 0, and then it has ended."""

    def __init__(self, settings: str) -> None:
        self._settings = msgspec.json.decode(settings, type=InjectorSettings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Injected:
        context = TaskContext.get()
        assert context is not None
        return _write(self._settings, iterator, 0, context.partitionId())

    def commit(self, messages: list[Any]) -> None:
        with reported(f"injector {self._settings.injector!r}"):
            _leave(self._settings, messages, 0, finished=True)

    def abort(self, messages: list[Any]) -> None:
        """Nothing is visible yet, so there is nothing to undo."""


def _sync_planned(checkpoint: Path, batch: int) -> None:
    """Spark syncs none of its files. Were its plan lost with the power, it would plan the batch with another end (rule 18)."""
    handle = os.open(checkpoint / "offsets" / str(batch), os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_folder(checkpoint / "offsets")


def _leave(settings: InjectorSettings, messages: list[Any], batch: int, *, finished: bool) -> None:
    notes = Notes(LocalDisk(settings.journal))
    if not notes.known(settings.injector, batch):
        marks: dict[str, Timestamp] = {}
        for message in messages:
            for partition, upto in message.marks.items():
                marks[partition] = max(upto, marks.get(partition, upto))
        frames = [frame for message in messages for frame in message.frames]
        injected, dead = (sum(getattr(message, count) for message in messages) for count in ("injected", "dead"))
        notes.leave(Note(settings.injector, batch, settings.fence, frames, marks, injected, dead, finished))
    # The planner answers when there is room: until then, no further batch is read.
    channel = connect(settings.address, bytes.fromhex(settings.secret))
    try:
        channel.send(encode_message(Noted(settings.injector)))
        channel.receive()
    finally:
        channel.close()


def _now() -> Timestamp:
    return Timestamp(time.time_ns() // 1000)


def _write(settings: InjectorSettings, batches: Iterator[pa.RecordBatch], batch: int, task: int) -> Injected:
    with reported(f"injector {settings.injector!r}"):
        work = TaskWork(settings, batch, task, now=_now())
        for some in batches:
            work.take(some)
        return work.finish()


@functools.lru_cache(maxsize=32)
def _intake(packed: str, injector: str, buckets: int, lanes: int) -> Intake:
    """Decoders and caches of keys are made once in each process."""
    graph = unpack(packed)
    return Intake(graph.injections[injector], Dealer(graph, Lanes(buckets, lanes)))


class TaskWork:
    """What one task does with its share of a batch."""

    def __init__(self, settings: InjectorSettings, batch: int, task: int, *, now: Timestamp) -> None:
        self._injection = injection = unpack(settings.graph).injections[settings.injector]
        self._batch, self._number = batch, task << 40
        self._intake = _intake(settings.graph, injection.name, settings.buckets, settings.lanes)
        prefix = prefix_of(ByTask(injection.name, batch))
        self._writer = SegmentWriter(LocalDisk(settings.journal), prefix, lambda: uuid.uuid4().hex)
        self._now = now
        self._waiting, self._letters = Columns(), Columns()
        self._left = Injected()
        columns = isinstance(injection.key, str) and isinstance(injection.timestamp, str) and not callable(injection.partition)
        self._by_columns = columns and isinstance(injection.low_watermark, BoundedDisorder)

    def take(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._by_columns:
            self._take_columns(batch)
        else:
            self._take_values(batch)
        if len(self._waiting) >= RECORDS_PER_PART:
            self._write()

    def finish(self) -> Injected:
        """All frames are synced when this returns."""
        self._write()
        self._writer.roll()
        return self._left

    def _write(self) -> None:
        self._left.injected += len(self._waiting)
        self._left.dead += len(self._letters)
        dealt = self._intake.deal(Taken(self._waiting, self._letters, {}), self._batch)
        if dealt:
            self._left.frames.append(self._writer.write(dealt, lane=NO_LANE))
        self._waiting, self._letters = Columns(), Columns()

    def _take_values(self, batch: pa.RecordBatch) -> None:
        """Python for each record: decode, extract."""
        texts: list[bytes] = batch.column("value").cast(pa.binary()).to_pylist()
        beside = {name[1:].replace("_", " "): batch.column(name).to_pylist() for name in batch.schema.names if name.startswith("_")}
        columns = [dict(zip(beside, cells, strict=True)) for cells in zip(*beside.values(), strict=True)] if beside else None
        blank = [n for n, text in enumerate(texts) if not text or text.isspace()]
        if blank:
            whole = set(range(len(texts))).difference(blank)
            texts = [texts[n] for n in sorted(whole)]
            columns = None if columns is None else [columns[n] for n in sorted(whole)]
        numbers = range(self._number, self._number + len(texts))
        taken = self._intake.read(numbers, texts, now=self._now, major=self._batch, columns=columns)
        self._number += len(texts)
        _extend(self._waiting, taken.records)
        _extend(self._letters, taken.letters)
        self._hear(taken.marks)

    def _take_columns(self, batch: pa.RecordBatch) -> None:
        """No Python for each record: key and timestamp are columns."""
        good = are_good(batch, ahead=self._injection.ahead, now=self._now)
        if pc.sum(good).as_py() != batch.num_rows:
            self._refuse(batch.filter(pc.invert(good)))
            batch = batch.filter(good)
        timestamp = batch.column("_timestamp")
        if batch.num_rows == 0:
            return
        assert isinstance(self._injection.low_watermark, BoundedDisorder)
        disorder = self._injection.low_watermark.by
        partitions = batch.column("_partition") if "_partition" in batch.schema.names else pa.array([""] * batch.num_rows)
        newest = pa.table({"partition": partitions, "at": timestamp}).group_by("partition").aggregate([("at", "max")])
        moved = zip(newest["partition"].to_pylist(), newest["at_max"].to_pylist(), strict=True)
        self._hear({partition: at - disorder for partition, at in moved})
        values = batch.column("value").cast(pa.binary()).to_pylist()
        numbers = list(range(self._number, self._number + batch.num_rows))
        self._number += batch.num_rows
        _extend(self._waiting, Columns(batch.column("_key").to_pylist(), values, timestamp.to_pylist(), numbers))

    def _refuse(self, bad: pa.RecordBatch) -> None:
        """Have the extractor say what is wrong with each of these rows; one that it takes is one of which nobody knows what it is."""
        before = len(self._waiting)
        self._take_values(bad)
        if len(self._waiting) == before:
            return
        waiting, name = self._waiting, self._injection.name
        shown = waiting.values[before].decode(errors="replace")
        raise MillstreamError(
            f"injector {name!r}: the columns of {len(waiting) - before} of its values were found wrong, and the values themselves right, "
            f"such as {shown[:SHOWN]} with key {waiting.keys[before]!r} at {describe(waiting.timestamps[before])}. "
            "That is a fault of Millstream's: please report it. Until it is fixed, give functions of the value as key= and timestamp="
        )

    def _hear(self, complete: dict[str, Timestamp]) -> None:
        marks = self._left.marks
        for partition, upto in complete.items():
            marks[partition] = max(upto, marks.get(partition, upto))


def are_good(batch: pa.RecordBatch, *, ahead: Duration, now: Timestamp) -> pa.Array:
    """Which rows `Extractor.extract` takes, by their columns alone."""
    timestamp = batch.column("_timestamp")
    within = [pc.and_(pc.greater_equal(timestamp, some.start), pc.less(timestamp, some.stop)) for some in believable(ahead=ahead, now=now)]
    good = pc.and_(pc.is_valid(batch.column("_key")), functools.reduce(pc.or_, within))
    if "_partition" in batch.schema.names:
        good = pc.and_(good, pc.is_valid(batch.column("_partition")))
    return pc.fill_null(good, False)


def _extend(columns: Columns, more: Columns) -> None:
    columns.keys += more.keys
    columns.values += more.values
    columns.timestamps += more.timestamps
    columns.minors = [*columns.minors, *more.minors]
