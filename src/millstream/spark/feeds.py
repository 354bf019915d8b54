"""The inputs of a run: what feeds its injectors, and when each of them has ended."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from millstream.core.graph import InputPlan
from millstream.core.lanes import Lanes
from millstream.core.ledger import Commit, Ledger, SourceProgress
from millstream.core.route import Dealer
from millstream.errors import TopologyError
from millstream.injector import Injection
from millstream.journal.disk import LocalDisk
from millstream.journal.names import VALUES, ByThread, prefix_of
from millstream.journal.segments import SegmentWriter
from millstream.log.checks import check_injector
from millstream.mill.driving import wall_clock
from millstream.source import BYTES_PER_PIECE, ReadBy, SourceContext
from millstream.sources.dealing import Intake
from millstream.sources.history import ALL, HistoryReader, HistoryThread
from millstream.sources.pieces import context_of
from millstream.sources.thread import SourceThread
from millstream.spark.datasource import InjectorSink
from millstream.spark.ending import QUERY_TIMEOUT, join_all, stop_queries, wait_for
from millstream.spark.injectors import InjectorSettings
from millstream.spark.launch import Died, Launcher, make_active, where
from millstream.spark.planning import Planning
from millstream.spark.sources import frame_of

log = logging.getLogger("millstream")

TRIGGER = "200 milliseconds"


class Feeds:
    """For each injector that has not ended: a thread that reads its source, or of a DataFrame a query, or a thread that writes it."""

    def __init__(self, launcher: Launcher, planner: Planning, settings: Callable[[str], InjectorSettings], *, must_end: bool) -> None:
        self._launcher, self._planner, self._settings, self._must_end = launcher, planner, settings, must_end
        self._injections = launcher.graph.injections
        self.queries: dict[str, StreamingQuery] = {}
        self._threads: dict[str, SourceThread] = {}
        self._histories: dict[str, HistoryThread] = {}
        self._wholes: dict[str, threading.Thread] = {}
        self._broken: dict[str, BaseException] = {}
        self._stopped = threading.Event()
        self._given_up: set[str] = set()  # queries that did not stop in time
        self._said: set[str] = set()  # inputs of threads that have ended, and were logged so

    @property
    def _reading(self) -> list[SourceThread | HistoryThread]:
        """Threads that read; a copy, for another thread starts more of them."""
        return [*self._threads.values(), *self._histories.values()]

    @property
    def ended(self) -> bool:
        """No query is left that could bring more."""
        return not self.queries

    def start(self) -> None:
        known = self._planner.ledger.sources
        for read in self._launcher.graph.inputs:
            before = known.get(read.history, SourceProgress())
            if read.from_oldest and not before.finished:
                self._histories[read.reader] = history = self._history_of(read, before)
                history.start()
        for name, injection in self._injections.items():
            source = known.get(name)
            if source is None or not source.finished:
                self._start(name, injection)
            else:
                self._say_what_is_left(injection)

    def on_commit(self, commit: Commit) -> None:
        for thread in self._reading:
            thread.on_commit(commit)

    @property
    def troubles(self) -> list[str]:
        """Sources that cannot be reached, or have something to say."""
        return [trouble for thread in self._reading if (trouble := thread.trouble) is not None]

    def lags(self) -> Mapping[str, Mapping[str, int]]:
        """By injector and partition, how many records are known to be there that were not read yet."""
        return {name: lag for name, thread in list(self._threads.items()) if (lag := thread.lag())}

    def look(self) -> None:
        """Once around: has one died, or ended?"""
        self._look_at_threads()
        self._say_ended()
        for name, query in list(self.queries.items()):
            if query.isActive:
                continue
            failure = query.exception()
            if failure is not None:
                self._again(name, failure)
            else:
                raise Died(where(f"inject {name}"), RuntimeError("its query was stopped from outside"), f"inject {name}")

    def drain(self, look: Callable[[], None]) -> None:
        """Take in what the sources have now; those that can go on later are not ended. An iterable has what it has given.

        It takes as long as they have something, and `look` is called meanwhile: lanes that are lost come back by it, and what
        it raises ends the wait.
        """
        for name in list(self.queries):
            wait_for(partial(self._end, name), name=f"millstream drains {name}", look=look)
        for reads in self._threads.values():
            reads.finish()
        waiting = [*self._wholes.values(), *self._reading]
        while any(thread.is_alive() for thread in waiting):  # they wait for room, and lanes make some
            join_all(waiting, 0.2)
            look()
        self._look_at_threads()

    def stop(self) -> None:
        """Whatever is not read yet is read by the next run. What does not stop in time is given up, with a warning."""
        self._stopped.set()
        self._say_ended()
        for reads in self._reading:
            reads.stop()
        for name, thread in self._wholes.items():
            if thread.is_alive():
                self._launcher.spark.sparkContext.cancelJobsWithTag(self._launcher.called(f"inject {name}"))
        late = stop_queries({name: query for name, query in self.queries.items() if name not in self._given_up}, QUERY_TIMEOUT)
        self._given_up.update(late)
        for name in late:
            log.warning(
                "gave up on injector %r: Spark is in a batch of it, and did not stop it within %.0f s; the next run reads it again",
                name,
                QUERY_TIMEOUT,
            )

    def join(self, seconds: float) -> list[str]:
        """After `stop`: wait for the threads of inputs; returns those that still run. An iterable may be silent for ever."""
        late = join_all([*self._reading, *self._wholes.values()], seconds)
        return [*late, *(reads.left_running for reads in self._threads.values() if reads.left_running is not None)]

    def _start(self, name: str, injection: Injection) -> None:
        launcher = self._launcher
        if injection.source.read_by is ReadBy.DRIVER:
            self._refuse_endless(name, ends=injection.source.bounded)
            self._threads[name] = self._thread_of(injection)
            self._threads[name].start()
            return
        frame = frame_of(launcher.spark, injection)
        options = {"settings": msgspec.json.encode(self._settings(name)).decode()}
        if not frame.isStreaming:
            self._start_whole(name, lambda: frame.write.format(InjectorSink.name()).mode("append").options(**options).save())
            return
        self._refuse_endless(name, ends=False)
        check_injector(launcher.folder, name, self._taken(name))  # only now is it known to be a streaming one
        query = f"inject {name}"
        writer = frame.writeStream.format(InjectorSink.name()).options(**options).queryName(launcher.called(query))
        writer = writer.option("checkpointLocation", f"file://{launcher.folder.checkpoint(query)}").trigger(processingTime=TRIGGER)
        self.queries[name] = launcher.launch(query, writer.start)

    def _refuse_endless(self, name: str, *, ends: bool) -> None:
        if self._must_end and not ends:
            raise TopologyError(
                f"injector {name!r} never ends, so the run would never be drained; "
                "give it a bounded source, such as ms.files(..., bounded=True), or stop it yourself"
            )

    def _context_of(self, injection: Injection) -> SourceContext:
        folder, known = self._launcher.folder.inputs / injection.name, self._planner.ledger.sources.get(injection.name)
        return context_of(injection, known, folder=folder, max_bytes=min(self._launcher.options.max_bytes_per_epoch, BYTES_PER_PIECE))

    def _say_what_is_left(self, injection: Injection) -> None:
        """An input that has ended stays ended: its low watermark is +∞, and whatever came now would be late for ever."""
        left = injection.source.left_over(self._context_of(injection))
        if left is None:
            log.info("injector %r has ended, and is asked for nothing more", injection.name)
        else:
            log.warning("injector %r has ended with %d records, and %s", injection.name, self._injected(injection.name), left)

    def _thread_of(self, injection: Injection) -> SourceThread:
        intake = Intake(injection, self._dealer())
        return SourceThread(injection, self._context_of(injection), intake, self._new_writer(), self._planner, clock=wall_clock)

    def _history_of(self, read: InputPlan, known: SourceProgress) -> HistoryThread:
        """What came before the first epoch of a new reader."""
        launcher, planner = self._launcher, self._planner
        ledger, stream = planner.ledger, read.stream.name
        upto, after = ledger.readers[read.history].since - 1, int(known.positions.get(ALL, 0))
        newest = min(upto, ledger.latest.get(stream, 0))
        reader = HistoryReader(read, self._dealer(), LocalDisk(launcher.folder.log), after=after, upto=upto)
        log.info("computation %r is new to %r: it begins with the oldest record that the log has", read.computation, stream)

        def is_logged(known: Ledger) -> bool:
            """Or all that is not is none of the log's: a stream may not have been kept."""
            return known.logged >= newest or not any(segment.records > known.logged for segment in known.segments.values())

        return HistoryThread(read, reader, self._new_writer(), planner, is_logged=lambda: planner.read(is_logged))

    def _dealer(self) -> Dealer:
        pinned = self._launcher.pinned
        return Dealer(self._launcher.graph, Lanes(pinned.buckets, pinned.lanes))

    def _new_writer(self) -> SegmentWriter:
        planner = self._planner
        return SegmentWriter(planner.disk, prefix_of(ByThread(VALUES, planner.ledger.fence)), lambda: uuid.uuid4().hex)

    def _start_whole(self, name: str, save: Callable[[], None]) -> None:
        """A batch DataFrame is written in one batch, by a thread: the rest of the run does not wait for it."""

        def work() -> None:
            try:
                if self._taken(name) < 0 and self._planner.notes.next(name, -1) is None:
                    make_active(self._launcher.spark)
                    self._launcher.spark.sparkContext.addJobTag(self._launcher.called(f"inject {name}"))
                    save()
                self._planner.take_notes(name)
            except BaseException as error:  # whatever it is, the run must not go on without this input
                if not self._stopped.is_set():  # what was cancelled is read by the next run
                    self._broken[name] = error  # found by the next look: a thread has nobody to raise to

        thread = self._wholes[name] = threading.Thread(target=work, name=f"millstream injects {name}", daemon=True)
        thread.start()

    def _injected(self, name: str) -> int:
        return self._planner.ledger.sources[name].injected

    def _taken(self, name: str) -> int:
        known = self._planner.ledger.sources.get(name)
        return -1 if known is None else known.batch

    def _look_at_threads(self) -> None:
        for name, error in self._broken.items():
            raise Died(where(f"inject {name}"), error) from error
        for name, reads in self._threads.items():
            if reads.error is not None:
                raise Died(where(f"inject {name}"), reads.error) from reads.error
        for name, history in self._histories.items():
            if history.error is not None:
                raise Died(f"the history of {name}", history.error) from history.error

    def _say_ended(self) -> None:
        """Of those that a thread brings in, a commit says so."""
        for name in (*self._threads, *self._wholes):
            source = self._planner.ledger.sources.get(name)
            if source is not None and source.finished and name not in self._said:
                self._said.add(name)
                log.info("injector %r has ended: all of its input is read", name)

    def _end(self, name: str) -> None:
        """Let a query take in what is there now, and stop it."""
        done = False
        while not done:
            query = self.queries[name]
            try:
                query.processAllAvailable()
                query.stop()
                done = True
            except StreamingQueryException as error:
                self._again(name, error)
        self._planner.take_notes(name)

    def _again(self, name: str, error: BaseException) -> None:
        self.queries[name] = self._launcher.again(f"inject {name}", self.queries[name], error)
