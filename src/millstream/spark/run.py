"""A run: planner, lanes, inputs and ends of a topology on one folder, watched until it is stopped, drained or fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from millstream import arguments
from millstream.core.graph import compile_topology
from millstream.errors import Failure, Fenced, LogError, RunFailed, TopologyError
from millstream.journal.ownership import Ownership
from millstream.log.folder import Folder
from millstream.log.moving import settle
from millstream.log.status import Status, status_from, status_of
from millstream.mill.driver_messages import Question
from millstream.mill.driving import wall_clock
from millstream.spark.datasource import SOURCES
from millstream.spark.ending import JOIN_TIMEOUT, if_java_lives, join_all
from millstream.spark.ends import Deliveries
from millstream.spark.failure import full_error, java_died, kind_of
from millstream.spark.feeds import Feeds
from millstream.spark.injectors import InjectorSettings
from millstream.spark.launch import Died, Launcher, cause_of
from millstream.spark.milling import Milling, RunJournal
from millstream.spark.options import DRAINED, Options, Until, agree
from millstream.spark.owner import Lock, own, pin, refuse_if_held
from millstream.spark.session import channel_host, lanes_for, session_for
from millstream.spark.ship import pack
from millstream.spark.telling import Telling
from millstream.spark.waiting import WriteWaiter
from millstream.spark.writing import Writer
from millstream.topology import Topology

log = logging.getLogger("millstream")

WATCH_INTERVAL = 0.5  # seconds between two looks at the queries
DRAIN_INTERVAL = 0.1  # the same where somebody waits for the end
NOTES_INTERVAL = 1.0  # seconds between two looks for notes whose message was lost, and between two words on how it stands
BUCKETS = 16
STOP_TIMEOUT = 120.0  # seconds that stop() waits for checkpoints, for the log and for deliveries


class Run:
    """A topology that runs. `start` makes one."""

    def __init__(
        self,
        topology: Topology,
        at: str | Path,
        spark: SparkSession | None,
        until: Until | None,
        options: Options,
        deliver_anew: Collection[str] = (),
    ) -> None:
        self._graph = compile_topology(topology)
        for name in deliver_anew:
            if name not in self._graph.deliveries:
                there = ", ".join(map(repr, self._graph.deliveries)) or "none"
                raise TopologyError(f"deliver_anew: there is no delivery called {name!r}; there is {there}")
        self._folder = Folder(at)
        self._options, self._until = options, until
        self._failure: RunFailed | None = None
        self._ended = threading.Event()
        self._halting = threading.Event()  # stop() or drain() has taken over from the watcher
        self._closing = threading.Event()
        self._ending = threading.Lock()
        self._looking = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="millstream watches", daemon=True)
        pinned = self._folder.open()
        if pinned is not None and pinned.topology != self._graph.name:
            raise LogError(
                f"{self._folder.path} is the folder of the topology {pinned.topology!r}, not of {self._graph.name!r}; "
                "give it a folder of its own"
            )
        refuse_if_held(self._folder)
        spark_log = None if options.show_spark_log else self._folder.spark_log
        self._spark, self._spark_log = session_for(spark, spark_log=spark_log, sources=SOURCES)
        self._lock = Lock(self._spark, self._folder)
        with self._folder.usable(), ExitStack() as undo:
            undo.callback(if_java_lives, self._lock.release)
            if pinned is None:
                pinned = pin(
                    self._folder, self._graph.name, buckets=options.buckets or BUCKETS, lanes=options.lanes or lanes_for(self._spark)
                )
            agree(pinned, options)
            self._pinned = pinned
            self._launcher = Launcher(self._spark, self._folder, self._graph, pack(self._graph), pinned, options)
            journal = RunJournal(self._folder, self._graph, pinned, anew=deliver_anew)
            ledger = journal.check()
            if pinned.at != str(self._folder.path):
                settle(self._folder, pinned)
            self._mill = Milling(self._launcher, journal, host=channel_host(self._spark))
            undo.callback(self._mill.planner.join, JOIN_TIMEOUT)
            undo.callback(if_java_lives, self._mill.close)
            own(self._folder, self._mill.fence)
            planner = self._mill.planner
            self._owner = Ownership(journal.commits, self._mill.fence, lambda: planner.ledger.number)
            self._deliveries = Deliveries(self._graph, self._folder, journal, planner, self._mill.fence, self._owner)
            undo.callback(self._deliveries.join, JOIN_TIMEOUT)
            undo.callback(self._deliveries.stop, 0, 0.0)
            self._writer = Writer(self._graph, self._folder, journal, planner, options, self._mill.fence)
            undo.callback(self._writer.join, JOIN_TIMEOUT)
            undo.callback(self._writer.end)
            self._feeds = Feeds(self._launcher, planner, self._injector_settings, must_end=until is DRAINED)
            self._waiting = WriteWaiter(self._graph, planner, self._deliveries, self._writer)
            self._telling = Telling(self._folder, self._graph.name, planner, self._feeds, self._deliveries, self._writer)
            undo.callback(self._telling.end)
            planner.watchers += [self._deliveries.on_commit, self._writer.on_commit, self._feeds.on_commit, self._waiting.on_commit]
            undo.callback(self._feeds.join, JOIN_TIMEOUT)
            undo.callback(if_java_lives, self._feeds.stop)
            try:
                with self._launcher.settings():
                    self._start()
            except (Py4JError, ConnectionError) as error:
                if not java_died(error):
                    raise
                raise self._failed(Died("the start of the run", error)) from error
            undo.pop_all()
        log.info("topology %r runs on %s from epoch %d on, %d lanes", self._graph.name, self._folder.path, ledger.number, pinned.lanes)
        self._watcher.start()

    # What a user calls.

    def status(self) -> Status:
        """Low watermarks, lags, counts, timers, epochs: of every computation and stream."""
        planner = self._mill.planner
        if planner.ended.is_set():
            return status_of(self._folder.path)
        try:
            now = self._telling.now()
        except Exception:
            if not planner.ended.is_set():
                raise
            return status_of(self._folder.path)  # it ended while it was asked; why is for `wait` to raise
        return planner.read(lambda ledger: status_from(ledger, self._graph.name, running=self.active, now=wall_clock())).add(now)

    def wait_for(self, delivery: str, position: object, *, of: str | None = None, timeout: float | None = None) -> int | None:
        """Until a delivery has all that a place in a source has caused, so that its writer reads its own write. Returns an epoch: whatever
        has the stream up to it, by the ledger of its table for example, shows the write. None if the time is over, or the run has
        ended, first; raises what made the run fail.

        `position` is what a writer got back: of Kafka a delivered message or (topic, partition, offset), of PostgreSQL an LSN, or an
        epoch, which is a number. `of` names the injector where that is not clear. What a timer tells later is not waited for.

            run.wait_for("view", connection.execute("SELECT pg_current_wal_lsn()").fetchone()[0], timeout=5)
        """

        def goes_on() -> bool:
            self._raise()
            return self.active

        return self._waiting.wait_for(delivery, position, of, timeout, goes_on)

    def stop(self) -> None:
        """Commit the open epoch, checkpoint every lane, deliver what is committed, and stop. A later run goes on from there.

        What a source would still give is not waited for. What takes too long to end (a thread inside an iterable one second, others
        ten, a query 30, lanes, log and deliveries two minutes each) is given up, with a warning that names it, and left to the next
        run.
        """
        self._halt("stopping", self._stop_inputs)

    def drain(self) -> None:
        """Take in what the sources have now, mill and deliver it all, then stop. Unbounded inputs are not ended: they can go on later.

        It waits for as long as that takes: for files and streaming DataFrames up to what they had when it was called, for all of
        a bounded one and of a batch DataFrame, and for the values that an iterable has given; one that is silent is not waited for.
        """
        self._halt("draining", self._drain_inputs)

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

    def _start(self) -> None:
        try:
            self._writer.start()
            self._deliveries.start()
            self._mill.start()
            self._feeds.start()
        except Died as died:
            raise self._failed(died) from died.error

    def _injector_settings(self, name: str) -> InjectorSettings:
        return InjectorSettings(
            journal=str(self._folder.journal),
            checkpoint=str(self._folder.checkpoint(f"inject {name}")),
            fence=self._mill.fence,
            injector=name,
            graph=self._launcher.packed,
            lanes=self._pinned.lanes,
            buckets=self._pinned.buckets,
            address=self._mill.planner.address,
            secret=self._mill.planner.secret.hex(),
        )

    # Watching.

    def _watch(self) -> None:
        noted = time.monotonic()
        while not self._closing.is_set():
            try:
                with self._looking:
                    self._look()
                if time.monotonic() - noted >= NOTES_INTERVAL:
                    noted = time.monotonic()
                    for name in list(self._feeds.queries):
                        self._mill.planner.take_notes(name)
                    if not self._halting.is_set():
                        self._telling.tell()
            except Died as died:
                self._fail(died)
            except Exception as error:
                self._fail(Died("the run", error))
            self._mill.planner.ended.wait(DRAIN_INTERVAL if self._until is DRAINED else WATCH_INTERVAL)

    def _look(self) -> None:
        """Once around: has something died, has an input ended, is all done?"""
        if self._halting.is_set():
            return
        self._look_for_failures()
        self._feeds.look()
        if self._until is DRAINED and self._feeds.ended and self._is_drained():
            self._finish()
            self._end()

    def _look_for_failures(self) -> None:
        self._mill.look()
        self._deliveries.look(lambda where, error: Died(where, error))
        self._writer.look(lambda where, error: Died(where, error))

    def _is_drained(self) -> bool:
        return bool(self._mill.planner.ask(Question.DRAINED)) and self._is_delivered()

    def _is_delivered(self) -> bool:
        """Whether deliveries and the log have all that is committed; nothing more comes, so the writer does not wait for it."""
        newest = self._mill.planner.ledger.number
        self._writer.flush(newest)
        return not self._deliveries.behind(newest) and not self._writer.behind(newest)

    # Ending.

    def _halt(self, where: str, finish_inputs: Callable[[], None]) -> None:
        """Take over from the watcher, finish what is to be finished, and end; only once."""
        with self._looking:
            self._halting.set()
        if not self._ended.is_set():
            try:
                finish_inputs()
                self._finish()
                self._end()
            except Died as died:
                self._fail(died)
            except Exception as error:  # Spark or the disk went away under our hands; nobody else would end the run now
                self._fail(Died(where, error))
        self._raise()

    def _stop_inputs(self) -> None:
        self._feeds.stop()

    def _drain_inputs(self) -> None:
        self._feeds.drain(self._look_for_failures)
        self._wait_for(lambda: bool(self._mill.planner.ask(Question.IDLE)) and self._is_delivered(), None)

    def _finish(self) -> None:
        """Checkpoints of every lane, then log and deliveries up to the last commit, then the last commit of all."""
        planner = self._mill.planner
        planner.stop()
        if not self._wait_for(lambda: bool(planner.ask(Question.STOPPED)), STOP_TIMEOUT):
            log.warning("gave up on lanes: not all were saved within %.0f s; the next run redoes what is not", STOP_TIMEOUT)
        newest = planner.ledger.number
        late = [*self._deliveries.stop(newest, STOP_TIMEOUT), *self._writer.stop(newest, STOP_TIMEOUT)]
        self._look_for_failures()
        planner.close()
        if late:
            log.warning("%s did not get all that is committed within %.0f s; the next run goes on there", ", ".join(late), STOP_TIMEOUT)

    def _wait_for(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Until it holds; False if the time is over first."""
        deadline = None if seconds is None else time.monotonic() + seconds
        pause = 0.01
        while not condition():
            self._look_for_failures()
            if deadline is not None and time.monotonic() > deadline:
                return False
            self._mill.planner.ended.wait(pause)
            pause = min(2 * pause, WATCH_INTERVAL)
        return True

    def _fail(self, died: Died) -> None:
        if self._failure is None:
            self._failure = self._failed(died)
        self._end()

    def _failed(self, died: Died) -> RunFailed:
        log = None if self._spark_log is None else str(self._spark_log)
        if self._was_overtaken(died):
            cause, kind = f"a newer run owns {self._folder.path}; this one stops", Failure.OVERTAKEN
        else:
            cause, kind = cause_of(died, self._folder), kind_of(died.where, died.error)
        failure = RunFailed(cause, full_error(died.error), log, kind)
        failure.__cause__ = died.error
        return failure

    def _was_overtaken(self, died: Died) -> bool:
        """What a newer run has removed is missing to this one: only an owner blames the disk, whoever met it (rule 12)."""
        if isinstance(died.error, Fenced):
            return True
        try:
            return isinstance(died.error, LogError) and not self._owner()
        except LogError:  # what is wrong with the folder is told already
            return False

    def _end(self) -> None:
        """Only once: whoever comes later waits until it is done, but for the watcher, which is waited for."""
        if not self._ending.acquire(blocking=False):
            if threading.current_thread() is not self._watcher:
                self._ended.wait()
            return
        self._closing.set()
        ends = (self._feeds.stop, partial(self._deliveries.stop, 0, 0.0), self._writer.end, self._mill.close)
        try:
            for deed in (self._telling.end, *ends, self._join, self._lock.release):
                try:
                    deed()
                except (Py4JError, ConnectionError) as error:  # a Java process that died takes queries and lock with it; the rest ends here
                    self._failure = self._failure or self._failed(Died("the end of the run", error))
        finally:
            epoch = self._mill.planner.ledger.number
            if self._failure is None:
                log.info("topology %r on %s has stopped after epoch %d", self._graph.name, self._folder.path, epoch)
            else:
                log.info("topology %r on %s failed after epoch %d: %s", self._graph.name, self._folder.path, epoch, self._failure)
            self._ended.set()

    def _join(self) -> None:
        """Before the lock goes: the next run on the folder is to meet no thread of this one."""
        late = [*self._feeds.join(JOIN_TIMEOUT), *self._deliveries.join(JOIN_TIMEOUT), *self._writer.join(JOIN_TIMEOUT)]
        late += [*self._mill.planner.join(JOIN_TIMEOUT), *join_all([self._watcher], JOIN_TIMEOUT)]
        if late:
            log.warning(
                "gave up on threads that have not ended: %s; one that is in an iterable or a function of yours ends when that returns",
                ", ".join(map(repr, late)),
            )

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure


def start(
    topology: Topology,
    *,
    at: str | Path,
    spark: SparkSession | None = None,
    until: Until | None = None,
    options: Options | None = None,
    deliver_anew: Sequence[str] = (),
) -> Run:
    """Start a topology on the folder `at` and return at once. A run on a folder that was used before goes on where it was.

    Deliveries that are named in `deliver_anew` begin once more, with all that the log holds: for a target that was lost, or that
    is from another copy than the folder. Records have the ids that they had.
    """
    if not isinstance(topology, Topology):
        raise TopologyError(f"start({topology!r}): give a ms.Topology")
    at = arguments.path("start", at)
    if spark is not None and not isinstance(spark, SparkSession):
        raise TopologyError(f"start(spark={spark!r}): give a SparkSession, or leave it out")
    if until is not None and not isinstance(until, Until):
        raise TopologyError(f"start(until={until!r}): give ms.DRAINED, or leave it out")
    if options is not None and not isinstance(options, Options):
        raise TopologyError(f"start(options={options!r}): give ms.Options(...), or leave it out")
    if isinstance(deliver_anew, str) or not isinstance(deliver_anew, Collection):
        raise TopologyError(f"start(deliver_anew={deliver_anew!r}): give a list of names of deliveries, such as ['counts']")
    return Run(topology, at, spark, until, options or Options(), deliver_anew)
