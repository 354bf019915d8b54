"""The inputs of a run: what feeds its injectors, and when each of them has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from millstream.core.graph import table_of
from millstream.errors import TopologyError
from millstream.injector import DataFrameSource, FileSource, Injection, ValueSource
from millstream.log.intact import check_injector, checkpoint_of, files_planned
from millstream.log.table import Table
from millstream.spark.datasource import InjectorSink
from millstream.spark.inject import InjectorSettings, finish, is_finished
from millstream.spark.launch import Died, Launcher, make_active, where
from millstream.spark.sources import files_there, frame_of
from millstream.spark.spool import Feeder

TRIGGER = "400 milliseconds"


class Inputs:
    """One query for each injector that has not ended; a batch DataFrame has a thread instead."""

    def __init__(self, launcher: Launcher, *, run: str, must_end: bool) -> None:
        self._launcher, self._run, self._must_end = launcher, run, must_end
        self._injections = launcher.graph.injections
        self.queries: dict[str, StreamingQuery] = {}
        self._feeders: dict[str, Feeder] = {}
        self._wholes: dict[str, threading.Thread] = {}
        self._broken: dict[str, Exception] = {}
        self._there: dict[str, set[str]] = {}  # files that a bounded injector has to read
        self._stopped = threading.Event()

    def start(self) -> None:
        for name, injection in self._injections.items():
            if not is_finished(self._table(name)):
                self._start(name, injection)

    def look(self) -> None:
        """Once around: has one died, or ended?"""
        self._look_at_wholes()
        for name, query in list(self.queries.items()):
            feeder = self._fed(name)
            if feeder is not None and feeder.ended and query.isActive:
                self._end(name)
            elif not query.isActive:
                failure = query.exception()
                if failure is not None:
                    self._again(name, failure)
                elif feeder is None and self._injections[name].source.bounded:
                    self._finish(name)
                else:
                    raise _cut_off(name)

    def drain(self) -> None:
        """Take in what the sources have now; those that can go on later are not ended."""
        for name in list(self.queries):
            feeder = self._feeders.get(name)
            if feeder is not None:
                feeder.stop()
                feeder.join()
                self._fed(name)
            self._end(name)
        for thread in self._wholes.values():
            thread.join()
        self._look_at_wholes()

    def stop(self) -> None:
        """Whatever is not read yet is read by the next run."""
        self._stopped.set()
        for feeder in self._feeders.values():
            feeder.stop()
        for query in list(self.queries.values()):
            query.stop()

    def _start(self, name: str, injection: Injection) -> None:
        launcher, source = self._launcher, injection.source
        if isinstance(source, ValueSource):
            feeder = self._feeders[name] = Feeder(name, source, launcher.folder.spool(name), self._table(name).owned)
            feeder.start()
        if isinstance(source, FileSource) and source.bounded:
            self._there[name] = files_there(source)
        frame = frame_of(launcher.spark, injection, launcher.folder, most=launcher.options.bytes_an_epoch)
        settings = InjectorSettings(str(launcher.folder.path), launcher.fence, name, launcher.packed, self._run)
        options = {"settings": msgspec.json.encode(settings).decode()}
        if isinstance(source, DataFrameSource) and not frame.isStreaming:
            self._start_whole(name, lambda: frame.write.format(InjectorSink.name()).mode("append").options(**options).save())
            return
        if self._must_end and not source.bounded:
            raise TopologyError(
                f"injector {name!r} never ends, so the run would never be drained; "
                "give it a bounded source, such as ms.files(..., bounded=True), or stop it yourself"
            )
        if isinstance(source, DataFrameSource):  # only now is it known to be a streaming one
            check_injector(launcher.folder, name, files=False)
        query = f"inject {name}"
        writer = frame.writeStream.format(InjectorSink.name()).options(**options).queryName(launcher.called(query))
        writer = writer.option("checkpointLocation", f"file://{launcher.folder.checkpoint(query)}")
        writer = writer.trigger(availableNow=True) if self._ends_itself(name) else writer.trigger(processingTime=TRIGGER)
        self.queries[name] = launcher.launch(query, writer.start)

    def _start_whole(self, name: str, save: Callable[[], None]) -> None:
        """A batch DataFrame is written in one commit, by a thread: the rest of the run does not wait for it."""

        def work() -> None:
            try:
                if self._table(name).committed(name) < 0:
                    make_active(self._launcher.spark)
                    save()
                finish(self._table(name))
            except Exception as error:
                self._broken[name] = error  # found by the next look: a thread has nobody to raise to

        thread = self._wholes[name] = threading.Thread(target=work, name=f"millstream injects {name}", daemon=True)
        thread.start()

    def _look_at_wholes(self) -> None:
        for name, error in self._broken.items():
            raise Died(where(f"inject {name}"), error) from error

    def _fed(self, name: str) -> Feeder | None:
        """What feeds an injector with the values of an iterable, if it is sound."""
        feeder = self._feeders.get(name)
        if feeder is not None and feeder.error is not None:
            raise Died(where(f"inject {name}"), feeder.error) from feeder.error
        return feeder

    def _end(self, name: str) -> None:
        """Let a query take in what is there now, and stop it."""
        done = False
        while not done:
            query = self.queries[name]
            try:
                if self._ends_itself(name):
                    query.awaitTermination()
                else:
                    query.processAllAvailable()
                    query.stop()
                done = True
            except StreamingQueryException as error:
                self._again(name, error)
        ended = self._ends_itself(name) or (name in self._feeders and self._feeders[name].ended)
        if ended and not self._stopped.is_set():  # a query that is stopped meanwhile comes to its end as if it had read all
            self._finish(name)

    def _again(self, name: str, error: BaseException) -> None:
        self.queries[name] = self._launcher.again(f"inject {name}", self.queries[name], error)

    def _finish(self, name: str) -> None:
        """There will never be more: its low watermark is +∞ now."""
        if name in self._there:
            self._check_read(name)
        finish(self._table(name))
        del self.queries[name]

    def _check_read(self, name: str) -> None:
        """Spark's words for a query that has read all and for one that somebody stopped are the same: what it has planned must
        be done, and be all that was there."""
        checkpoint = checkpoint_of(self._launcher.folder, f"inject {name}")
        unplanned = self._there[name] - files_planned(checkpoint.path)
        if checkpoint.done < checkpoint.planned or any(Path(file).exists() for file in unplanned):
            raise _cut_off(name)

    def _ends_itself(self, name: str) -> bool:
        """Its query does, when all is read. That of an iterable does not: only the feeder knows when there is no more."""
        return self._injections[name].source.bounded and name not in self._feeders

    def _table(self, name: str) -> Table:
        table = table_of(name)
        return Table(self._launcher.folder.table(table), table, self._launcher.fence)


def _cut_off(name: str) -> Died:
    return Died(where(f"inject {name}"), RuntimeError("its query was stopped from outside"), f"inject {name}")
