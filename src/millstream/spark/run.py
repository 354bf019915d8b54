"""A run: all queries of a topology on one folder, watched until it is stopped, drained or fails."""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.core.backlog import LogFile, Position
from millstream.core.graph import MILL, compile_topology, table_of
from millstream.errors import LogError, RunFailed
from millstream.injector import FileSource, ValueSource
from millstream.log.folder import Folder, read_json
from millstream.log.intact import check_injector, check_log, check_spool
from millstream.log.maintenance import Keeper, LiveFile, live_files
from millstream.log.status import Status, status_of
from millstream.log.table import Table, newest_version, open_table, tail
from millstream.spark.datasource import SOURCES
from millstream.spark.deliver import start_delivery
from millstream.spark.failure import all_words, explained
from millstream.spark.inject import is_finished
from millstream.spark.inputs import Inputs
from millstream.spark.launch import Died, Launcher
from millstream.spark.mill import Settings, start_mill
from millstream.spark.options import DRAINED, Options, Until, agree
from millstream.spark.owner import Lock, pin, refuse_if_held, take_over
from millstream.spark.planner import MillState
from millstream.spark.session import cores, session_for
from millstream.spark.ship import pack
from millstream.topology import Topology

WATCH = 0.25  # seconds between two looks at the queries
MAINTAIN = 2.0  # seconds between two looks at the tables
BUCKETS = 16
PATIENCE = 120.0  # seconds that stop() waits for the epoch under way


class Run:
    """A topology that runs. `start` makes one."""

    def __init__(self, topology: Topology, at: str | Path, spark: SparkSession | None, until: Until | None, options: Options) -> None:
        self._graph = compile_topology(topology)
        self._folder = Folder(at)
        self._options, self._until = options, until
        self._failure: RunFailed | None = None
        self._ended = threading.Event()
        self._halting = threading.Event()  # stop() or drain() has taken over from the watcher
        self._closing = threading.Event()
        self._looking = threading.Lock()
        self._queries: dict[str, StreamingQuery] = {}  # the mill's and the deliveries'
        pinned = self._folder.open()
        if pinned is not None and pinned.topology != self._graph.name:
            raise LogError(
                f"{self._folder.path} is the folder of the topology {pinned.topology!r}, not of {self._graph.name!r}; "
                "give it a folder of its own"
            )
        refuse_if_held(self._folder)
        words = None if options.spark_words else self._folder.words
        self._spark, self._words = session_for(spark, words=words, sources=SOURCES)
        self._lock = Lock(self._spark, self._folder)
        with self._folder.usable(), ExitStack() as undo:
            undo.callback(_if_java_lives, self._lock.release)
            if pinned is None:
                partitions = options.partitions or cores(self._spark)
                pinned = pin(self._folder, self._graph, buckets=options.buckets or max(BUCKETS, partitions), partitions=partitions)
            agree(pinned, options)
            self._check()
            self._fence = take_over(self._folder, self._graph)
            self._keepers = [self._keeper(table) for table in self._graph.tables]
            self._launcher = Launcher(self._spark, self._folder, self._graph, pack(self._graph), pinned, self._fence, options)
            self._inputs = Inputs(self._launcher, run=uuid.uuid4().hex, must_end=until is DRAINED)
            undo.callback(_if_java_lives, self._stop_queries)
            with self._launcher.settings():
                self._start()
            undo.pop_all()
        self._watcher = threading.Thread(target=self._watch, name="millstream watches", daemon=True)
        self._watcher.start()

    # What a user calls.

    def status(self) -> Status:
        """Low watermarks, lags, counts, timers, epochs: of every computation and stream."""
        return status_of(self._folder.path)

    def stop(self) -> None:
        """Finish the epoch under way, publish it, and stop. A later run on the same folder goes on from there."""
        self._halt("stopping", self._finish_epoch)

    def drain(self) -> None:
        """Take in what the sources have now, mill and deliver it all, then stop. Unbounded inputs are not ended: they can go on later."""
        self._halt("draining", self._finish_all)

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
            if is_finished(Table(self._folder.table(table_of(name)), table_of(name), 0)):
                continue
            if isinstance(injection.source, FileSource | ValueSource):
                check_injector(self._folder, name, files=True)
            if isinstance(injection.source, ValueSource):
                check_spool(self._folder, name)

    def _keeper(self, table: str) -> Keeper:
        deliveries = self._graph.deliveries.items()
        readers = [MILL, *(f"deliver {name}" for name, told in deliveries if table in self._graph.stream_of(told.stream).tables)]
        return Keeper(self._folder, table, readers=readers, retention=self._options.retention, fence=self._fence)

    def _start(self) -> None:
        try:
            self._inputs.start()
            self._launch(MILL, functools.partial(start_mill, self._spark, self._settings()))
            for name, delivery in self._graph.deliveries.items():
                stream = self._graph.stream_of(delivery.stream)
                start = functools.partial(start_delivery, self._spark, delivery, stream, self._folder, graph=self._launcher.packed)
                self._launch(f"deliver {name}", start)
        except Died as died:
            raise self._failed(died) from died.error

    def _launch(self, query: str, start: Callable[..., StreamingQuery]) -> None:
        self._queries[query] = self._launcher.launch(query, functools.partial(start, name=self._launcher.called(query)))

    def _settings(self) -> Settings:
        return Settings(
            folder=str(self._folder.path),
            fence=self._fence,
            buckets=self._launcher.pinned.buckets,
            parallelism=self._spark.sparkContext.defaultParallelism,
            records=self._options.records_an_epoch,
            size=self._options.bytes_an_epoch,
            graph=self._launcher.packed,
        )

    # Watching.

    def _watch(self) -> None:
        maintained = time.monotonic()
        while not self._closing.is_set():
            try:
                with self._looking:
                    self._look()
                if time.monotonic() - maintained >= MAINTAIN and not self._closing.is_set():
                    for keeper in self._keepers:
                        keeper.look_after()
                    maintained = time.monotonic()
            except Died as died:
                self._fail(died)
            except Exception as error:
                self._fail(Died("the run", error))
            self._closing.wait(WATCH)

    def _look(self) -> None:
        """Once around: has a query died, has an input ended, is all done?"""
        if self._halting.is_set():
            return
        self._look_at_queries()
        self._inputs.look()
        if (
            self._until is DRAINED
            and not self._inputs.queries
            and self._mill_says(lambda state: state.drained)
            and self._quiet()
            and not self._undelivered()
        ):
            self._end()

    def _look_at_queries(self) -> None:
        for name, query in self._queries.items():
            if not query.isActive:
                self._queries[name] = self._launcher.again(name, query, query.exception() or RuntimeError("the query ended by itself"))

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

    def _halt(self, where: str, finish: Callable[[], None]) -> None:
        """Take over from the watcher, finish what is to be finished, and end; only once."""
        with self._looking:
            self._halting.set()
        if not self._ended.is_set():
            try:
                finish()
                self._end()
            except Died as died:
                self._fail(died)
            except Exception as error:  # Spark or the disk went away under our hands; nobody else would end the run now
                self._fail(Died(where, error))
        self._raise()

    def _finish_epoch(self) -> None:
        self._inputs.stop()
        (self._folder.run / "stop").touch()
        self._wait_for(lambda: self._mill_says(lambda state: state.stopped), PATIENCE)

    def _finish_all(self) -> None:
        self._inputs.drain()
        self._wait_for(lambda: self._quiet() and not self._undelivered(), None)

    def _wait_for(self, condition: Callable[[], bool], seconds: float | None) -> None:
        """Until it holds, or the time is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not condition():
            self._look_at_queries()
            if deadline is not None and time.monotonic() > deadline:
                return
            time.sleep(WATCH)

    def _fail(self, died: Died) -> None:
        if self._failure is None:
            self._failure = self._failed(died)
        self._end()

    def _failed(self, died: Died) -> RunFailed:
        newer = f"a newer run owns {self._folder.path}; this one stops"
        cause = newer if self._overtaken() else cause_of(died, self._folder)  # whatever it met first
        return RunFailed(cause, all_words(died.error), None if self._words is None else str(self._words))

    def _overtaken(self) -> bool:
        try:
            return Table(self._folder.table(MILL), MILL, self._fence).fence() > self._fence
        except LogError:
            return False  # a damaged table is what is told already

    def _stop_queries(self) -> None:
        self._inputs.stop()
        for query in self._queries.values():
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
            self._failure = self._failure or self._failed(Died("the end of the run", error))
        finally:
            self._ended.set()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure


def cause_of(died: Died, folder: Folder) -> str:
    try:
        return explained(died.where, died.error, None if died.query is None else folder.checkpoint(died.query))
    except Exception as error:  # whoever looks for the file to blame may stumble over it; the run must end all the same
        return f"{died.where} stopped: {died.error}; what is to blame could not be looked for: {error}"


def _if_java_lives(deed: Callable[[], None]) -> None:
    """A Java process that died takes queries and lock with it; then it is its death that is told."""
    with suppress(Py4JError, ConnectionError):
        deed()


def start(
    topology: Topology, *, at: str | Path, spark: SparkSession | None = None, until: Until | None = None, options: Options | None = None
) -> Run:
    """Start a topology on the folder `at` and return at once. A run on a folder that was used before goes on where it was."""
    return Run(topology, at, spark, until, options or Options())
