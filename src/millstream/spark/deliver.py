"""Taking streams out: a query for each delivery, from the log to its target."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery

from millstream.core.backlog import LogFile, Position
from millstream.core.codec import value_decoder
from millstream.core.graph import StreamPlan
from millstream.delivery import ConsoleTarget, Delivery, DeltaTarget, FileTarget, FunctionTarget, MemoryTarget
from millstream.errors import LogError, TopologyError
from millstream.log.folder import Folder, read_json, write_json
from millstream.log.intact import checkpoint_of
from millstream.log.maintenance import LiveFile, live_files
from millstream.log.staged import MICROSECONDS, read_records
from millstream.log.table import newest_version, open_table, read_commit, tail
from millstream.record import Record
from millstream.spark.datasource import LogSource
from millstream.spark.failure import reported
from millstream.spark.targets import DeliverySettings, for_all
from millstream.timestamp import describe

WAIT = 10.0
POLL = 0.05
ROWS_A_PART = 200_000  # of one task; it must not depend on the machine, for a repeated epoch has the same parts
ROWS_AN_EPOCH = 1_000_000
QUIET_COMMITS = 100  # without a record for a delivery, until it says that it has seen them: retention waits for it


class Taken(msgspec.Struct, frozen=True):
    """How far a delivery has come: an offset in Spark's log."""

    positions: dict[str, Position]


@dataclass
class Part(InputPartition):
    files: list[tuple[str, str]]  # table, path


class LogReader(DataSourceStreamReader):
    """Sees final epochs only: what a commit of the log names."""

    def __init__(self, settings: str) -> None:
        self._settings = msgspec.json.decode(settings, type=DeliverySettings)
        self._folder = Folder(self._settings.folder)
        self._checked = False

    def initialOffset(self) -> dict[str, Any]:
        return _offset(Taken({}))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with reported(f"delivery {self._settings.delivery!r}"):
            taken = msgspec.convert(start, Taken)
            self._check(taken)
            # Spark asks only once all before `start` is delivered for good. A table that it has not begun with is needed whole.
            reached = {table: taken.positions.get(table, Position()) for table in self._settings.tables}
            write_json(self._folder.consumer(f"deliver {self._settings.delivery}"), reached, durable=False)
            deadline = time.monotonic() + WAIT
            scanned = taken
            while True:
                rows, scanned = self._look(scanned)
                if rows or sum(scanned.positions[table].version - at.version for table, at in reached.items()) > QUIET_COMMITS:
                    return _offset(scanned)
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

    def _check(self, taken: Taken) -> None:
        """What this delivery is to go on with must still be there, and it must not have been further already."""
        if self._checked:
            return
        consumer = self._folder.consumer(f"deliver {self._settings.delivery}")
        for table, at in (read_json(consumer, dict[str, Position]) or {}).items():
            reached = taken.positions.get(table, Position())
            if table in self._settings.tables and reached < at:
                raise LogError(
                    f"delivery {self._settings.delivery!r} has delivered {self._folder.table(table)} up to version {at.version - 1}, as "
                    f"{consumer} says, but its checkpoint ends with {reached.version - 1}: {_older(self._folder, self._settings.delivery)}"
                )
        for table, at in taken.positions.items():
            path = self._folder.table(table)
            if at.version <= newest_version(path) and read_commit(path, table, at.version) is None:
                raise LogError(
                    f"delivery {self._settings.delivery!r} was away for so long that the log has let go of what it would go on with "
                    f"(version {at.version} of {path}); give it another name: it then begins with what the log holds"
                )
        self._checked = True

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
        return rows, Taken(positions)

    def _files(self, first: dict[str, Position], last: dict[str, Position]) -> Iterator[LogFile | LiveFile]:
        for table in self._settings.tables:
            start, end = first.get(table), last.get(table)
            if end is None:  # a table that is new since this epoch was planned
                continue
            if start is None:
                # The first epoch of a delivery begins with what the table holds then: older commits may be gone.
                yield from self._snapshot(table, end.version - 1)
                continue
            for commit in tail(self._folder.table(table), table, start, end):
                yield from (file for file in commit.files if file.stream == self._settings.stream and file.rows)

    def _snapshot(self, table: str, version: int) -> list[LiveFile]:
        found = live_files(open_table(self._folder.table(table), version=version), table)
        return sorted((file for file in found if file.stream == self._settings.stream), key=lambda file: file.path)


def _offset(taken: Taken) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(taken)
    return found


def start_delivery(spark: SparkSession, delivery: Delivery, stream: StreamPlan, folder: Folder, *, graph: str, name: str) -> StreamingQuery:
    target = delivery.target
    identity, run = _identity(folder, delivery.name), uuid.uuid4().hex
    settings = DeliverySettings(str(folder.path), identity, delivery.name, stream.name, stream.tables, graph, run)
    if isinstance(target, DeltaTarget):
        settings = msgspec.structs.replace(settings, target=str(Path(target.path).absolute()))
    elif isinstance(target, FileTarget):
        settings = msgspec.structs.replace(settings, target=str(Path(target.path).absolute()), format=target.format)
    options = {"settings": msgspec.json.encode(settings).decode()}
    writer = spark.readStream.format(LogSource.name()).options(**options).load().writeStream.queryName(name)
    writer = writer.option("checkpointLocation", f"file://{folder.checkpoint(f'deliver {delivery.name}')}")
    if isinstance(target, DeltaTarget | FileTarget):
        return writer.format(LogSource.name()).options(**options).start()
    return writer.foreachBatch(_call(delivery, stream.name, value_decoder(stream.value_type))).start()


def _identity(folder: Folder, delivery: str) -> str:
    """Tells this delivery, counted from its first epoch, from all others that a target may have seen; goes with its checkpoint."""
    path = folder.checkpoint(f"deliver {delivery}") / "identity.json"
    found = read_json(path, str)
    if found is None:
        known = read_json(folder.consumer(f"deliver {delivery}"), dict[str, Position]) or {}
        if any(position != Position() for position in known.values()) or checkpoint_of(folder, f"deliver {delivery}").begun:
            raise LogError(f"{path} is missing, and delivery {delivery!r} has delivered already: {_older(folder, delivery)}")
        found = uuid.uuid4().hex
        write_json(path, found)
    return found


def _older(folder: Folder, delivery: str) -> str:
    """Why a delivery cannot go on without its checkpoint, and what to do."""
    query = f"deliver {delivery}"
    return (
        f"it would deliver twice, or leave something out; restore {folder.checkpoint(query)} from the copy that the log is from, or "
        f"remove it and {folder.consumer(query)} to deliver anew all that the log holds"
    )


def _call(delivery: Delivery, stream: str, decode: Callable[[bytes | str], Any]) -> Callable[[DataFrame, int], None]:
    """The targets that live in the driver's own process."""
    target = delivery.target

    def deliver(frame: DataFrame, epoch: int) -> None:
        with reported(f"delivery {delivery.name!r}"):
            rows = in_order(frame.toArrow())
            times = rows["timestamp"].cast(MICROSECONDS).cast(pa.int64()).to_pylist()
            values = for_all(lambda texts: [decode(text) for text in texts], rows, stream)
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


def in_order(records: pa.Table) -> pa.Table:
    """By time, and those of one time as they were produced: an id is text, and its numbers are to be read as numbers."""
    parts = pc.extract_regex(records["id"], r"^(?P<table>.*)/(?P<epoch>\d+)/(?P<sequence>\d+)$")
    columns = {
        "timestamp": records["timestamp"],
        "table": pc.struct_field(parts, "table"),
        "epoch": pc.struct_field(parts, "epoch").cast(pa.int64()),
        "sequence": pc.struct_field(parts, "sequence").cast(pa.int64()),
    }
    return records.take(pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns]))


def _print(name: str, target: ConsoleTarget, records: list[Record[Any]]) -> None:
    if len(records) > target.at_most:
        print(f"{name}: … {len(records) - target.at_most:,} more")
    for record in records[-target.at_most :]:
        print(f"{name}: {describe(record.timestamp)}  {record.key}  {record.value}", flush=True)
