"""Two places to play the same scene: the driver in this process, and the mill on Spark.

On Spark the scene is played through the log: what is sent is committed to the injector's table as its query would, the
mill's own query plans, runs and publishes, and a file says what time it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import millstream as ms
from millstream.core.backlog import Position
from millstream.core.codec import encode_value, value_decoder
from millstream.core.epoch import Tally
from millstream.core.extract import Extractor
from millstream.core.graph import DEAD_LETTERS, compile_topology, table_of
from millstream.core.low_watermark import merge
from millstream.core.plan import Source
from millstream.injector import Injected
from millstream.log.folder import Folder, read_json
from millstream.log.staged import MICROSECONDS, RECORDS, read_records, stage
from millstream.log.status import status_of
from millstream.log.table import Table, newest_version, tail
from millstream.spark.failure import came_too_late, told_in
from millstream.spark.mill import Settings, start_mill
from millstream.spark.owner import pin, take_over
from millstream.spark.planner import MillState
from millstream.spark.session import query_settings
from millstream.spark.ship import pack
from millstream.testing import Driver
from tests.waiting import wait_until

V = TypeVar("V")
LAUNCHES = 10  # of a query whose planner comes up too late, on a busy machine


class Stage(Protocol):
    """What a scene may do."""

    def send(self, stream: ms.Stream[V], *values: V) -> None: ...
    def advance(
        self,
        *,
        low_watermark: ms.Timestamp | None = None,
        now: ms.Timestamp | None = None,
        of: ms.Stream[Any] | None = None,
        partition: str = "",
    ) -> None: ...
    def jump(self, now: ms.Timestamp) -> None: ...
    def finish(self, of: ms.Stream[Any] | None = None) -> None: ...
    def crash(self, *, low_watermark: ms.Timestamp | None = None, now: ms.Timestamp | None = None) -> None: ...
    def read(self, stream: ms.Stream[V]) -> list[ms.Record[V]]: ...
    def dead_letters(self) -> list[ms.DeadLetter]: ...
    def low_watermark(self, name: str) -> ms.Timestamp: ...
    def tally(self, computation: str) -> Tally: ...
    def keys(self, computation: str) -> int: ...
    def timers(self, computation: str) -> int: ...


class DriverStage(Driver):
    """In process."""

    def advance(
        self,
        *,
        low_watermark: ms.Timestamp | None = None,
        now: ms.Timestamp | None = None,
        of: ms.Stream[Any] | None = None,
        partition: str = "",
    ) -> None:
        if now is not None:
            super().advance(now=now)
        if low_watermark is not None:
            for name in self._named(of):
                self._mark(name, partition, low_watermark)
        self.run()

    def crash(self, *, low_watermark: ms.Timestamp | None = None, now: ms.Timestamp | None = None) -> None:
        super().crash()
        self.advance(low_watermark=low_watermark, now=now)

    def jump(self, now: ms.Timestamp) -> None:
        """The wall clock says this, be it earlier."""
        self._now = now
        self.run()

    def timers(self, computation: str) -> int:  # type: ignore[override]
        return sum(report[computation].timers for report in self._ledger.reports.values() if computation in report)


class SparkStage:
    """On Spark."""

    def __init__(self, topology: ms.Topology, at: Path, spark: SparkSession, partitions: int = 1) -> None:
        self._partitions = partitions  # of one, several buckets all the same; one more makes a small epoch half as long again
        self._graph = compile_topology(topology)
        self._spark, self._folder = spark, Folder(at)
        self._folder.open()
        self._pinned = pin(self._folder, self._graph, buckets=4, partitions=self._partitions)
        self._sources = {name: Source() for name in self._graph.injections}
        self._epochs = dict.fromkeys(self._graph.injections, 0)
        self._clock = at.with_name("clock")
        self._tell(ms.Timestamp(0))
        self._launches = 0

    def begin(self) -> SparkStage:
        self._begin()
        return self

    def send(self, stream: ms.Stream[V], *values: V) -> None:
        assert isinstance(stream, Injected)
        extractor = Extractor(stream.injection)
        found = [extractor.extract(value, {}, now=ms.END_OF_TIME) for value in values]
        count, epoch = len(values), self._epochs[stream.name]
        columns = [
            pa.array([record.key for record in found]),
            pa.array([encode_value(value).decode() for value in values]),
            pa.array([int(record.timestamp) for record in found], pa.int64()).cast(MICROSECONDS),
            pa.array(np.full(count, epoch, np.int64)),
            pa.array(np.arange(count, dtype=np.int64)),
        ]
        table = self._table(stream.name)
        files = stage(table.path, stream.name, pa.table(columns, schema=RECORDS), epoch=epoch)
        self._sources[stream.name].injected += count
        table.commit(files, msgspec.json.encode(self._sources[stream.name]), writer=stream.name, epoch=epoch)
        self._epochs[stream.name] += 1
        self._settle()

    def advance(
        self,
        *,
        low_watermark: ms.Timestamp | None = None,
        now: ms.Timestamp | None = None,
        of: ms.Stream[Any] | None = None,
        partition: str = "",
    ) -> None:
        self._move(low_watermark, now, of, partition)
        self._settle()

    def _move(self, low_watermark: ms.Timestamp | None, now: ms.Timestamp | None, of: ms.Stream[Any] | None, partition: str) -> None:
        if now is not None:
            self._tell(max(now, self._time()))
        if low_watermark is not None:
            for name in self._named(of):
                source = self._sources[name]
                idle_after = self._graph.injections[name].low_watermark.idle_after
                source.marks = merge(source.marks, {partition: low_watermark}, now=self._time(), idle_after=idle_after)
                self._table(name).annotate(msgspec.json.encode(source))

    def jump(self, now: ms.Timestamp) -> None:
        self._tell(now)
        self._settle()

    def finish(self, of: ms.Stream[Any] | None = None) -> None:
        for name in self._named(of):
            self._sources[name].finished = True
            self._table(name).annotate(msgspec.json.encode(self._sources[name]))
        self._settle()

    def crash(self, *, low_watermark: ms.Timestamp | None = None, now: ms.Timestamp | None = None) -> None:
        """The query is torn down wherever it is; the clocks move while nothing runs; and a new one takes over."""
        self._query.stop()
        self._move(low_watermark, now, None, "")
        self._begin()

    def stop(self) -> None:
        if self._launches:
            self._query.stop()

    def read(self, stream: ms.Stream[V]) -> list[ms.Record[V]]:
        plan = self._graph.stream_of(stream)
        decode = value_decoder(plan.value_type)
        return [ms.Record(key, decode(value), timestamp) for key, value, timestamp in self._records(plan.name, plan.tables)]

    def dead_letters(self) -> list[ms.DeadLetter]:
        decode = value_decoder(ms.DeadLetter)
        return [decode(value) for _, value, _ in self._records(DEAD_LETTERS, self._graph.streams[DEAD_LETTERS].tables)]

    def low_watermark(self, name: str) -> ms.Timestamp:
        status = status_of(self._folder.path)
        if name in status.computations:
            return status.computations[name].low_watermark
        return status.streams[name].low_watermark

    def tally(self, computation: str) -> Tally:
        return status_of(self._folder.path).computations[computation].tally

    def keys(self, computation: str) -> int:
        return status_of(self._folder.path).computations[computation].keys

    def timers(self, computation: str) -> int:
        return status_of(self._folder.path).computations[computation].timers

    def _begin(self) -> None:
        self._launch()
        self._settle()

    def _launch(self) -> None:
        self._fence = take_over(self._folder, self._graph)
        self._launches += 1
        settings = Settings(
            str(self._folder.path),
            self._fence,
            self._pinned.buckets,
            self._partitions,
            100_000,
            1 << 28,
            pack(self._graph),
            clock=str(self._clock),
        )
        with query_settings(self._spark, partitions=self._partitions):
            self._query = start_mill(self._spark, settings, name=f"{self._graph.name} {self._pinned.id[:6]} mill")

    def _settle(self) -> None:
        """Until the mill has seen all there is, and nothing is due."""
        wait_until(self._settled)

    def _settled(self) -> bool:
        if not self._query.isActive and came_too_late(self._query.exception()) and self._launches < LAUNCHES:
            self._launch()  # as a run does
        if not self._query.isActive:
            told = told_in(str(self._query.exception()))
            raise ms.RunFailed(told.message if told else str(self._query.exception()))
        state = read_json(self._folder.run / "mill.json", MillState)
        newest = {table: newest_version(self._folder.table(table)) for table in self._graph.tables}
        return (
            state is not None
            and state.fence == self._fence
            and state.idle
            and state.waiting == 0
            and state.clock == self._time()
            and all(state.seen.get(table, -1) >= version for table, version in newest.items())
        )

    def _records(self, stream: str, tables: tuple[str, ...]) -> list[tuple[str, str, ms.Timestamp]]:
        found: list[tuple[str, str, ms.Timestamp]] = []
        for table in tables:
            path = self._folder.table(table)
            for commit in tail(path, table, Position()):
                for file in commit.files:
                    if file.stream == stream:
                        rows = read_records(path / file.path).sort_by("sequence")
                        times = rows["timestamp"].cast(pa.int64()).to_pylist()
                        found += zip(rows["key"].to_pylist(), rows["value"].to_pylist(), times, strict=True)
        return found

    def _table(self, injector: str) -> Table:
        name = table_of(injector)
        return Table(self._folder.table(name), name, self._fence)

    def _time(self) -> ms.Timestamp:
        return ms.Timestamp(int(self._clock.read_text()))

    def _tell(self, now: ms.Timestamp) -> None:
        """Say what time it is; a reader sees the old time or the new one, never half."""
        new = self._clock.with_suffix(".new")
        new.write_text(str(int(now)))
        new.replace(self._clock)

    def _named(self, of: ms.Stream[Any] | None) -> list[str]:
        return [of.name] if isinstance(of, Injected) else list(self._sources)
