"""The inputs of a run: what feeds its injectors, and when each of them has ended."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from millstream.core.lanes import Lanes
from millstream.core.route import Dealer
from millstream.errors import TopologyError
from millstream.injector import DataFrameSource, FileSource, Injection, ValueSource
from millstream.journal.names import VALUES, ByThread, prefix_of
from millstream.journal.segments import SegmentWriter
from millstream.log.checks import check_injector, checkpoint_of, files_planned
from millstream.mill.actions import Fed
from millstream.mill.driving import wall_clock
from millstream.sources.dealing import Intake
from millstream.sources.values import ValuesThread
from millstream.spark.datasource import InjectorSink
from millstream.spark.injectors import InjectorSettings
from millstream.spark.launch import Died, Launcher, make_active, where
from millstream.spark.planning import Planning
from millstream.spark.sources import files_there, frame_of

log = logging.getLogger("millstream")

TRIGGER = "200 milliseconds"
# Of files, unless one has more: lanes run what one batch brought while the next is read, so the first must not be all there is.
BYTES_PER_BATCH = 16 << 20


class Feeds:
    """For each injector that has not ended: a query, a thread that takes values, or a thread that writes a batch DataFrame."""

    def __init__(self, launcher: Launcher, planner: Planning, settings: Callable[[str], InjectorSettings], *, must_end: bool) -> None:
        self._launcher, self._planner, self._settings, self._must_end = launcher, planner, settings, must_end
        self._injections = launcher.graph.injections
        self.queries: dict[str, StreamingQuery] = {}
        self._values: dict[str, ValuesThread] = {}
        self._wholes: dict[str, threading.Thread] = {}
        self._broken: dict[str, Exception] = {}
        self._there: dict[str, set[str]] = {}  # files that a bounded injector has to read
        self._stopped = threading.Event()

    @property
    def ended(self) -> bool:
        """No query is left that could bring more."""
        return not self.queries

    def start(self) -> None:
        known = self._planner.ledger.sources
        for name, injection in self._injections.items():
            source = known.get(name)
            if source is None or not source.finished:
                self._start(name, injection)
            elif isinstance(injection.source, FileSource):
                self._say_what_came_later(name, injection.source)

    def look(self) -> None:
        """Once around: has one died, or ended?"""
        self._look_at_threads()
        for name, query in list(self.queries.items()):
            if query.isActive:
                continue
            failure = query.exception()
            if failure is not None:
                self._again(name, failure)
            elif self._injections[name].source.bounded:
                self._finish(name)
            else:
                raise _cut_off(name)

    def drain(self) -> None:
        """Take in what the sources have now; those that can go on later are not ended."""
        for name in list(self.queries):
            self._end(name)
        for thread in self._wholes.values():
            thread.join()
        for values in self._values.values():
            values.finish()
        for values in self._values.values():
            while values.is_alive() and not self._planner.ended.is_set():  # it waits for room, and lanes make some
                values.join(0.2)
        self._look_at_threads()

    def stop(self) -> None:
        """Whatever is not read yet is read by the next run."""
        self._stopped.set()
        for values in self._values.values():
            values.stop()
        for query in list(self.queries.values()):
            query.stop()

    def _start(self, name: str, injection: Injection) -> None:
        launcher, source = self._launcher, injection.source
        if isinstance(source, ValueSource):
            self._start_values(name, injection, source)
            return
        if isinstance(source, FileSource) and source.bounded:
            self._there[name] = files_there(source)
        frame = frame_of(launcher.spark, injection, most=min(BYTES_PER_BATCH, launcher.options.max_bytes_per_epoch))
        options = {"settings": msgspec.json.encode(self._settings(name)).decode()}
        if isinstance(source, DataFrameSource) and not frame.isStreaming:
            self._start_whole(name, lambda: frame.write.format(InjectorSink.name()).mode("append").options(**options).save())
            return
        if self._must_end and not source.bounded:
            raise TopologyError(
                f"injector {name!r} never ends, so the run would never be drained; "
                "give it a bounded source, such as ms.files(..., bounded=True), or stop it yourself"
            )
        if isinstance(source, DataFrameSource):  # only now is it known to be a streaming one
            check_injector(launcher.folder, name, self._taken(name), files=False)
        query = f"inject {name}"
        writer = frame.writeStream.format(InjectorSink.name()).options(**options).queryName(launcher.called(query))
        writer = writer.option("checkpointLocation", f"file://{launcher.folder.checkpoint(query)}")
        writer = writer.trigger(availableNow=True) if source.bounded else writer.trigger(processingTime=TRIGGER)
        self.queries[name] = launcher.launch(query, writer.start)

    def _say_what_came_later(self, name: str, source: FileSource[object]) -> None:
        """An input that has ended stays ended: its low watermark is +∞, and whatever came now would be late for ever."""
        later = files_there(source) - files_planned(self._launcher.folder.checkpoint(f"inject {name}"))
        if later:
            log.warning(
                "injector %r has ended, and %d files that came since are not read, such as %s; inject them under another name, "
                "or leave out bounded=True in a new folder",
                name,
                len(later),
                min(later),
            )

    def _start_values(self, name: str, injection: Injection, source: ValueSource[object]) -> None:
        pinned, planner = self._launcher.pinned, self._planner
        intake = Intake(injection, Dealer(self._launcher.graph, Lanes(pinned.buckets, pinned.lanes)))
        known = planner.ledger.sources.get(name)
        values = ValuesThread(
            name,
            source,
            intake,
            SegmentWriter(planner.disk, prefix_of(ByThread(VALUES, planner.ledger.fence)), lambda: uuid.uuid4().hex),
            position=0 if known is None else known.position,
            feed=planner.feed,
            room=planner.room.wait,
            clock=wall_clock,
        )
        self._values[name] = values
        values.start()

    def _start_whole(self, name: str, save: Callable[[], None]) -> None:
        """A batch DataFrame is written in one batch, by a thread: the rest of the run does not wait for it."""

        def work() -> None:
            try:
                if self._taken(name) < 0 and self._planner.notes.next(name, -1) is None:
                    make_active(self._launcher.spark)
                    save()
                self._planner.take_notes(name)
            except Exception as error:
                self._broken[name] = error  # found by the next look: a thread has nobody to raise to

        thread = self._wholes[name] = threading.Thread(target=work, name=f"millstream injects {name}", daemon=True)
        thread.start()

    def _taken(self, name: str) -> int:
        known = self._planner.ledger.sources.get(name)
        return -1 if known is None else known.batch

    def _look_at_threads(self) -> None:
        for name, error in self._broken.items():
            raise Died(where(f"inject {name}"), error) from error
        for name, values in self._values.items():
            if values.error is not None:
                raise Died(where(f"inject {name}"), values.error) from values.error

    def _end(self, name: str) -> None:
        """Let a query take in what is there now, and stop it."""
        done = False
        while not done:
            query = self.queries[name]
            try:
                if self._injections[name].source.bounded:
                    query.awaitTermination()
                else:
                    query.processAllAvailable()
                    query.stop()
                done = True
            except StreamingQueryException as error:
                self._again(name, error)
        self._planner.take_notes(name)
        if self._injections[name].source.bounded and not self._stopped.is_set():
            self._finish(name)  # a query that is stopped meanwhile comes to its end as if it had read all

    def _again(self, name: str, error: BaseException) -> None:
        self.queries[name] = self._launcher.again(f"inject {name}", self.queries[name], error)

    def _finish(self, name: str) -> None:
        """There will never be more: its low watermark is +∞ now."""
        if name in self._there:
            self._check_read(name)
        self._planner.take_notes(name)
        self._planner.feed(Fed(name, [], {}, finished=True))
        log.info("injector %r has ended: all of its input is read", name)
        del self.queries[name]

    def _check_read(self, name: str) -> None:
        """Spark's words for a query that has read all and for one that somebody stopped are the same: what it has planned must
        be done, and be all that was there."""
        checkpoint = checkpoint_of(self._launcher.folder, f"inject {name}")
        unplanned = self._there[name] - files_planned(checkpoint.path)
        if checkpoint.done < checkpoint.planned or any(Path(file).exists() for file in unplanned):
            raise _cut_off(name)


def _cut_off(name: str) -> Died:
    return Died(where(f"inject {name}"), RuntimeError("its query was stopped from outside"), f"inject {name}")
