"""A run: all queries of a topology on one folder, watched until it is stopped, drained or fails."""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.core.backlog import LogFile, Position
from millstream.core.graph import MILL, compile_topology, table_of
from millstream.errors import LogError, MillstreamError, RunFailed, TopologyError
from millstream.injector import DataFrameSource, FileSource, Injection, ValueSource
from millstream.log.folder import Folder, read_json
from millstream.log.intact import check_injector, check_log
from millstream.log.maintenance import Keeper, LiveFile, live_files
from millstream.log.status import Status, status_of
from millstream.log.table import Table, newest_version, open_table, tail
from millstream.spark.datasource import SOURCES, InjectorSink
from millstream.spark.deliver import start_delivery
from millstream.spark.failure import all_words, came_too_late, explained
from millstream.spark.inject import InjectorSettings, finish, is_finished
from millstream.spark.mill import Settings, start_mill
from millstream.spark.options import DRAINED, Options, Until, agree
from millstream.spark.owner import Lock, pin, take_over
from millstream.spark.planner import MillState
from millstream.spark.session import cores, query_settings, session_for
from millstream.spark.ship import pack
from millstream.spark.sources import frame_of
from millstream.spark.spool import Feeder
from millstream.topology import Topology

WATCH = 0.25  # seconds between two looks at the queries
MAINTAIN = 2.0  # seconds between two looks at the tables
BUCKETS = 16
RELAUNCHES = 10  # of a query whose planner came too late, on a busy machine
PATIENCE = 120.0  # seconds that stop() waits for the epoch under way


class Run:
    """A topology that runs. `start` makes one."""

    def __init__(self, topology: Topology, at: str | Path, spark: SparkSession | None, until: Until | None, options: Options) -> None:
        self._graph = compile_topology(topology)
        self._folder = Folder(at)
        self._options, self._until = options, until
        self._id = uuid.uuid4().hex
        self._failure: RunFailed | None = None
        self._ended = threading.Event()
        self._halting = threading.Event()  # stop() or drain() has taken over from the watcher
        self._closing = threading.Event()
        self._looking = threading.Lock()
        self._injectors: dict[str, StreamingQuery] = {}
        self._feeders: dict[str, Feeder] = {}
        self._wholes: dict[str, threading.Thread] = {}
        self._broken: dict[str, Exception] = {}
        self._deliveries: dict[str, StreamingQuery] = {}
        self._launches: dict[str, Callable[[], StreamingQuery]] = {}
        self._relaunched: Counter[str] = Counter()
        pinned = self._folder.open()
        if pinned is not None and pinned.topology != self._graph.name:
            raise LogError(
                f"{self._folder.path} is the folder of the topology {pinned.topology!r}, not of {self._graph.name!r}; "
                "give it a folder of its own"
            )
        words = None if options.spark_words else self._folder.words
        self._spark, self._words = session_for(spark, words=words, sources=SOURCES)
        self._lock = Lock(self._spark, self._folder)
        try:
            if pinned is None:
                partitions = options.partitions or cores(self._spark)
                pinned = pin(self._folder, self._graph, buckets=options.buckets or max(BUCKETS, partitions), partitions=partitions)
            agree(pinned, options)
            self._pinned = pinned
            self._check()
            self._fence = take_over(self._folder, self._graph)
            self._packed = pack(self._graph)
            _make_active(self._spark)
            with query_settings(self._spark, partitions=pinned.partitions):
                self._start()
        except BaseException:
            self._stop_queries()
            self._lock.release()
            raise
        self._keepers = [Keeper(self._folder, table, retention=options.retention, fence=self._fence) for table in self._graph.tables]
        self._watcher = threading.Thread(target=self._watch, name="millstream watches", daemon=True)
        self._watcher.start()

    # What a user calls.

    def status(self) -> Status:
        """Low watermarks, lags, counts, timers, epochs: of every computation and stream."""
        return status_of(self._folder.path)

    def stop(self) -> None:
        """Finish the epoch under way, publish it, and stop. A later run on the same folder goes on from there."""
        with self._looking:
            self._halting.set()
        if not self._ended.is_set():
            try:
                self._stop_inputs()
                (self._folder.run / "stop").touch()
                self._wait_for(lambda: self._mill_says(lambda state: state.stopped), PATIENCE)
                self._end()
            except (Py4JError, ConnectionError) as error:  # Spark went away under our hands
                self._fail("stopping", error)
        self._raise()

    def drain(self) -> None:
        """Take in what the sources have now, mill and deliver it all, then stop. Unbounded inputs are not ended: they can go on later."""
        with self._looking:
            self._halting.set()
        if not self._ended.is_set():
            try:
                self._drain_inputs()
                self._wait_for(lambda: self._quiet() and not self._undelivered(), None)
                self._end()
            except (Py4JError, ConnectionError) as error:  # Spark went away under our hands
                self._fail("draining", error)
        self._raise()

    def wait(self, timeout: float | None = None) -> bool:
        """Until the run has ended; raises what made it fail. False if the time is over first."""
        done = self._ended.wait(timeout)
        if done:
            self._raise()
        return done

    @property
    def active(self) -> bool:
        return not self._ended.is_set()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.active:
            self.stop()

    # Starting.

    def _check(self) -> None:
        """Look the folder over before anything in it is changed."""
        check_log(self._folder, injectors=self._graph.injections, deliveries=self._graph.deliveries)
        for name, injection in self._graph.injections.items():
            finished = is_finished(Table(self._folder.table(table_of(name)), table_of(name), 0))
            if isinstance(injection.source, FileSource | ValueSource) and not finished:
                check_injector(self._folder, name, files=True)

    def _start(self) -> None:
        graph, options, pinned = self._graph, self._options, self._pinned
        for name, injection in graph.injections.items():
            self._start_injector(name, injection)
        settings = Settings(
            folder=str(self._folder.path),
            fence=self._fence,
            buckets=pinned.buckets,
            parallelism=self._spark.sparkContext.defaultParallelism,
            records=options.records_an_epoch,
            size=options.bytes_an_epoch,
            graph=self._packed,
        )
        self._launches[MILL] = functools.partial(start_mill, self._spark, settings, name=self._name(MILL))
        self._launch(MILL, "the mill")
        for name, delivery in graph.deliveries.items():
            stream = graph.stream_of(delivery.stream)
            called = self._name(f"deliver {name}")
            launch = functools.partial(start_delivery, self._spark, delivery, stream, self._folder, graph=self._packed, name=called)
            self._launches[f"deliver {name}"] = launch
            self._launch(f"deliver {name}", f"delivery {name!r}")

    def _launch(self, query: str, where: str) -> None:
        found = self._begin(where, query, self._launches[query])
        kind, _, name = query.partition(" ")
        if query == MILL:
            self._mill = found
        elif kind == "inject":
            self._injectors[name] = found
        else:
            self._deliveries[name] = found

    def _begin(self, where: str, query: str, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        try:
            return start()
        except (Py4JError, PySparkException) as error:
            raise self._failed(explained(where, error, self._folder.checkpoint(query)), error) from error

    def _start_injector(self, name: str, injection: Injection) -> None:
        table = self._table(name)
        bounded = injection.source.bounded
        if is_finished(table):
            return
        if isinstance(injection.source, ValueSource):
            feeder = self._feeders[name] = Feeder(name, injection.source, self._folder.spool(name))
            feeder.start()
        frame = frame_of(self._spark, injection, self._folder, most=self._options.bytes_an_epoch)
        settings = InjectorSettings(str(self._folder.path), self._fence, name, self._packed, self._id)
        options = {"settings": msgspec.json.encode(settings).decode()}
        if isinstance(injection.source, DataFrameSource) and not frame.isStreaming:
            self._start_whole(name, lambda: frame.write.format(InjectorSink.name()).mode("append").options(**options).save())
            return
        if self._until is DRAINED and not bounded:
            raise TopologyError(
                f"injector {name!r} never ends, so the run would never be drained; "
                "give it a bounded source, such as ms.files(..., bounded=True), or stop it yourself"
            )
        if isinstance(injection.source, DataFrameSource):  # only now is it known to be a streaming one
            check_injector(self._folder, name, files=False)
        writer = frame.writeStream.format(InjectorSink.name()).options(**options).queryName(self._name(f"inject {name}"))
        writer = writer.option("checkpointLocation", f"file://{self._folder.checkpoint(f'inject {name}')}")
        ends = bounded and not isinstance(injection.source, ValueSource)
        writer = writer.trigger(availableNow=True) if ends else writer.trigger(processingTime="400 milliseconds")
        self._launches[f"inject {name}"] = writer.start
        self._launch(f"inject {name}", f"injector {name!r}")

    def _start_whole(self, name: str, save: Callable[[], None]) -> None:
        """A batch DataFrame is written in one commit, by a thread: the rest of the run does not wait for it."""

        def work() -> None:
            try:
                if self._table(name).committed(name) < 0:
                    _make_active(self._spark)
                    save()
                finish(self._table(name))
            except Exception as error:
                self._broken[name] = error  # the watcher finds it: this thread may be faster than the rest of the start

        thread = self._wholes[name] = threading.Thread(target=work, name=f"millstream injects {name}", daemon=True)
        thread.start()

    def _name(self, query: str) -> str:
        """Several runs may share a session, and Spark wants its queries called differently."""
        return f"{self._graph.name} {self._pinned.id[:6]} {query}"

    def _table(self, injector: str) -> Table:
        name = table_of(injector)
        return Table(self._folder.table(name), name, self._fence)

    # Watching.

    def _watch(self) -> None:
        maintained = time.monotonic()
        while not self._closing.is_set():
            try:
                with self._looking:
                    self._look()
                if time.monotonic() - maintained >= MAINTAIN:
                    for keeper in self._keepers:
                        keeper.look_after()
                    maintained = time.monotonic()
            except Exception as error:
                self._fail("the run", error)
            self._closing.wait(WATCH)

    def _look(self) -> None:
        """Once around: has a query died, has an input ended, is all done?"""
        if self._halting.is_set():
            return
        if self._has_died():
            return
        for name, error in self._broken.items():
            self._fail(f"injector {name!r}", error)
            return
        for name, query in list(self._injectors.items()):
            feeder = self._feeders.get(name)
            if feeder is not None and feeder.error is not None:
                self._fail(f"injector {name!r}", feeder.error)
                return
            if feeder is not None and feeder.ended and query.isActive:
                query.processAllAvailable()
                query.stop()
                self._finish(name)
            elif not query.isActive:
                failure = query.exception()
                if failure is not None and self._relaunch(f"inject {name}", f"injector {name!r}", failure):
                    continue
                ends = feeder is None and self._graph.injections[name].source.bounded
                if failure is not None or not ends:
                    self._fail(f"injector {name!r}", failure or RuntimeError("its query was stopped from outside"), f"inject {name}")
                    return
                self._finish(name)
        if (
            self._until is DRAINED
            and not self._injectors
            and self._mill_says(lambda state: state.drained)
            and self._quiet()
            and not self._undelivered()
        ):
            self._end()

    def _has_died(self) -> bool:
        """Whether the mill or a delivery has; the run has failed then."""
        queries = {MILL: (self._mill, "the mill"), **{f"deliver {n}": (q, f"delivery {n!r}") for n, q in self._deliveries.items()}}
        for name, (query, where) in queries.items():
            if not query.isActive:
                error = query.exception() or RuntimeError("the query ended by itself")
                if not self._relaunch(name, where, error):
                    self._fail(where, error, name)
                if self._failure is not None:
                    return True
        return False

    def _relaunch(self, query: str, where: str, error: BaseException) -> bool:
        """Start a query again that a Python process kept waiting for too long; False if that was not what stopped it.

        It goes on where its checkpoint is, as after any other end."""
        if not came_too_late(error) or self._relaunched[query] >= RELAUNCHES:
            return False
        self._relaunched[query] += 1
        try:
            _make_active(self._spark)
            with query_settings(self._spark, partitions=self._pinned.partitions):
                self._launch(query, where)
        except MillstreamError as again:
            self._fail(where, again)
        return True

    def _finish(self, name: str) -> None:
        finish(self._table(name))
        del self._injectors[name]

    def _quiet(self) -> bool:
        """The mill has looked at everything and nothing is due."""
        newest = {table: newest_version(self._folder.table(table)) for table in self._graph.tables}
        return self._mill_says(
            lambda state: state.idle and state.waiting == 0 and all(state.seen.get(t, -1) >= v for t, v in newest.items())
        )

    def _mill_says(self, question: Callable[[MillState], bool]) -> bool:
        state = read_json(self._folder.run / "mill.json", MillState)
        return state is not None and state.fence == self._fence and question(state)

    def _undelivered(self) -> list[str]:
        """Deliveries that have not taken all of their stream yet."""
        behind = []
        for name, delivery in self._graph.deliveries.items():
            stream = self._graph.stream_of(delivery.stream)
            positions = read_json(self._folder.consumer(f"deliver {name}"), dict[str, Position])
            for table in stream.tables:
                path = self._folder.table(table)
                if positions is None or positions.get(table, Position()) == Position():  # not begun: all that the table holds
                    ahead: list[LogFile | LiveFile] = [*live_files(open_table(path), table)]
                else:
                    ahead = [file for commit in tail(path, table, positions[table]) for file in commit.files]
                if any(file.stream == stream.name and file.rows for file in ahead):
                    behind.append(name)
                    break
        return behind

    # Ending.

    def _drain_inputs(self) -> None:
        for name, query in list(self._injectors.items()):
            self._drain_input(name, query)
        for thread in self._wholes.values():
            thread.join()
        for name, error in self._broken.items():
            self._fail(f"injector {name!r}", error)
        self._raise()

    def _drain_input(self, name: str, query: StreamingQuery) -> None:
        feeder = self._feeders.get(name)
        if feeder is not None:
            feeder.stop()
            feeder.join()
            if feeder.error is not None:
                self._fail(f"injector {name!r}", feeder.error)
                self._raise()
        try:
            if self._graph.injections[name].source.bounded and feeder is None:
                query.awaitTermination()
            else:
                query.processAllAvailable()
                query.stop()
        except StreamingQueryException as error:
            self._fail(f"injector {name!r}", error, f"inject {name}")
            self._raise()
        if (feeder is None or feeder.ended) and self._graph.injections[name].source.bounded:
            finish(self._table(name))

    def _wait_for(self, condition: Callable[[], bool], seconds: float | None) -> None:
        """Until it holds, the mill dies, or the time is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not condition():
            if self._has_died():
                return
            if deadline is not None and time.monotonic() > deadline:
                return
            time.sleep(WATCH)

    def _fail(self, where: str, error: BaseException, query: str | None = None) -> None:
        """End the run; `query` is the one that met the error, if one did."""
        if self._overtaken():  # whatever it met first
            cause = f"a newer run owns {self._folder.path}; this one stops"
        else:
            cause = explained(where, error, None if query is None else self._folder.checkpoint(query))
        if self._failure is None:
            self._failure = self._failed(cause, error)
        self._end()

    def _failed(self, cause: str, error: BaseException) -> RunFailed:
        return RunFailed(cause, all_words(error), None if self._words is None else str(self._words))

    def _overtaken(self) -> bool:
        try:
            return Table(self._folder.table(MILL), MILL, self._fence).fence() > self._fence
        except LogError:
            return False  # a damaged table is what is told already

    def _stop_inputs(self) -> None:
        for feeder in self._feeders.values():
            feeder.stop()
        for query in list(self._injectors.values()):
            query.stop()

    def _stop_queries(self) -> None:
        self._stop_inputs()
        for query in [*self._deliveries.values(), *([self._mill] if hasattr(self, "_mill") else [])]:
            query.stop()

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._closing.set()
        if threading.current_thread() is not self._watcher:
            self._watcher.join()  # it may be looking after a table, and must not do so without the lock
        try:
            self._stop_queries()
            self._lock.release()
        except (Py4JError, ConnectionError) as error:  # a Java process that died takes queries and lock with it
            self._failure = self._failure or self._failed(explained("ending the run", error), error)
        finally:
            self._ended.set()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure


def _make_active(spark: SparkSession) -> None:
    """Spark looks our sources and sinks up in the session that is active in the thread; making a DataFrame makes it so."""
    spark.createDataFrame([], "nothing INT")


def start(
    topology: Topology, *, at: str | Path, spark: SparkSession | None = None, until: Until | None = None, options: Options | None = None
) -> Run:
    """Start a topology on the folder `at` and return at once. A run on a folder that was used before goes on where it was."""
    return Run(topology, at, spark, until, options or Options())
