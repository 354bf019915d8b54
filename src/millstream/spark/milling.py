"""The mill of a run: the planner in a process of its own, and a query for each lane, started again where one was lost."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Collection

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

from millstream.core.graph import Graph
from millstream.core.ledger import Commit, Ledger, SourceProgress
from millstream.errors import Fenced, TopologyError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.notes import Notes
from millstream.journal.opening import claim, open_ledger, sync_newest
from millstream.log.checks import check_lane, check_noted, check_segments
from millstream.log.folder import Folder, Pinned
from millstream.log.moving import check_place
from millstream.mill.actions import Moment, Settings
from millstream.mill.beginning import check_holds, check_order, check_since, first_commit, plant_of, rows_to_redo
from millstream.mill.driving import Ended, wall_clock
from millstream.mill.messages import Redo
from millstream.source import ReadBy
from millstream.sources.checking import check_source
from millstream.sources.same import check_same, sources_of
from millstream.spark.ending import QUERY_TIMEOUT, stop_queries
from millstream.spark.lanes import LaneSettings, start_lane
from millstream.spark.launch import Died, Launcher, where
from millstream.spark.options import Options
from millstream.spark.planning import Planning
from millstream.targets.checks import Ends, check_targets
from millstream.targets.steps import forget_steps
from millstream.targets.written import place_of
from millstream.timestamp import SECOND, Timestamp

log = logging.getLogger("millstream")

FIRST_CHECKPOINT = 15.0  # seconds after a start
MAX_RESTARTS = 5  # of a lane's query, within
RESTARTS_WITHIN = 60.0  # seconds

# Of the mills of this process: a lane has workers of Spark's to itself while it runs, and the next run takes them over.
_places: set[int] = set()
_placing = threading.Lock()


class RunJournal:
    """The journal of a folder, from the side of a run that starts: first checked, then claimed."""

    def __init__(self, folder: Folder, graph: Graph, pinned: Pinned, *, anew: Collection[str] = ()) -> None:
        """`anew` are deliveries that begin once more, with all that the log holds."""
        self._folder, self._graph, self.pinned, self._anew = folder, graph, pinned, anew
        self.disk = LocalDisk(folder.journal)
        self.commits = Commits(self.disk)
        self.notes = Notes(self.disk)

    def check(self) -> Ledger:
        """Before anything is changed: what commits name is there, and checkpoints, log and deliveries belong to them."""
        with self._folder.naming():
            return self._check()

    def _check(self) -> Ledger:
        check_no_loop(self._graph)
        check_targets(self._folder, self._graph, self.pinned.id, anew=self._anew)
        self.commits.make_folders()
        ends = Ends.of(self._folder, self._graph)
        ledger = open_ledger(self.commits)
        check_order(self._graph, ledger)
        check_holds(self._graph, ledger)
        check_since(self._graph, ledger)
        check_same(self._graph.injections, ledger)
        for lane in range(self.pinned.lanes):
            check_lane(self._folder, lane, ledger)
            check_place(self._folder, lane, self.pinned.at)
        check_segments(self.commits, ledger, [redo for of_lane in self.redo(ledger).values() for redo in of_lane])
        for name, injection in self._graph.injections.items():
            source = ledger.sources.get(name, SourceProgress())
            if injection.source.read_by is ReadBy.DRIVER:
                check_source(injection, source, self._folder.inputs / name)
            elif not source.finished:
                check_noted(self._folder, name, source.batch, self.notes)
        ends.check(self._folder, self._graph, ledger, anew=self._anew)
        sync_newest(self.commits, ledger)
        return ledger

    def claim(self, now: Timestamp) -> Ledger:
        """The first commit of a new fence: from here on an older run can change nothing (rules 1 and 2)."""
        for name in self._anew:  # first: were this left out by a crash, the delivery would go on where it was
            forget_steps(self._folder.delivery(name))
        outline, plant = self._graph.outline, plant_of(self._graph.outline, buckets=self.pinned.buckets, lanes=self.pinned.lanes)

        def make(ledger: Ledger) -> Commit:
            at = Moment(now, time.monotonic())
            said = msgspec.structs.replace(plant, sources=sources_of(self._graph.injections, ledger))
            return first_commit(outline, ledger, fence=ledger.fence + 1, plant=said, id_=uuid.uuid4().hex, at=at, anew=self._anew)

        return claim(self.commits, make)

    def redo(self, ledger: Ledger) -> dict[int, list[Redo]]:
        """For each lane, the changed rows that no checkpoint has for sure."""
        return rows_to_redo(self.commits, ledger, lanes=self.pinned.lanes)


def check_no_loop(graph: Graph) -> None:
    """Refuse a delivery of files whose own files an injector of the same topology would read: the run would never end."""
    for name, delivery in graph.deliveries.items():
        place = place_of(delivery)
        written = None if place is None else place.files()
        for injection in graph.injections.values():
            if written is not None and injection.source.would_read(written):
                raise TopologyError(
                    f"delivery {name!r}: injector {injection.name!r} reads {injection.source.describe()}, and would read the files that "
                    f"are delivered to {written.parent}; deliver to another folder"
                )


class Milling:
    """Planner and lanes."""

    def __init__(self, launcher: Launcher, journal: RunJournal, *, host: str | None, clock: Timestamp | None = None) -> None:
        """With `clock` the planner has no clock but this one, as `planner.set_clock` sets it."""
        self._launcher = launcher
        self.journal = journal
        self.ledger = journal.claim(wall_clock() if clock is None else clock)
        self.fence = self.ledger.fence
        self._run = uuid.uuid4().hex  # a folder that is restored from a copy has the same id and the same fence again
        self.planner = Planning(launcher.graph, launcher.folder, self.ledger)
        try:
            self.planner.begin(_settings(launcher.options), host=host, port=launcher.options.channel_port, clock=clock)
        except BaseException:
            self.planner.end()
            raise
        self._queries: dict[int, StreamingQuery] = {}
        self._restarts: dict[int, deque[float]] = {}
        self._closing = threading.Event()
        with _placing:
            self._place = next(place for place in itertools.count() if place not in _places)
            _places.add(self._place)

    def start(self) -> None:
        """The planner, then a query for each lane: after the first commit of the fence (rule 2)."""
        self.planner.start()
        for lane in range(self._launcher.pinned.lanes):
            self._queries[lane] = self._start(lane)

    def look(self) -> None:
        """Has the planner ended, or has a lane's query died? A lane that was lost comes back by itself."""
        self.raise_error()
        for lane, query in self._queries.items():
            if query.isActive or self._closing.is_set():
                continue
            error = query.exception() or RuntimeError("its query was stopped from outside")
            if self.planner.ended.wait(0.2):  # what the planner met comes before what followed from it
                self.raise_error()
            self._queries[lane] = self._again(lane, query, error)

    def raise_error(self) -> None:
        error = self.planner.error
        if isinstance(error, Ended):
            raise Died("the mill", Fenced(str(error)) if error.kind == Fenced.__name__ else error)
        if error is not None:
            raise Died("the planner", error) from error

    def close(self) -> None:
        """The planner ends, lanes with it, then their queries: a bare stop would let a lane run on for seconds."""
        if self._closing.is_set():
            return
        self._closing.set()
        self.planner.end()
        try:
            late = stop_queries({f"lane {lane}": query for lane, query in self._queries.items()}, QUERY_TIMEOUT)
        finally:
            _places.discard(self._place)
        if late:
            log.warning("gave up on %s: Spark has not stopped what it runs there within %.0f s", ", ".join(late), QUERY_TIMEOUT)

    def _start(self, lane: int) -> StreamingQuery:
        query = f"lane {lane}"
        launcher, pinned = self._launcher, self._launcher.pinned
        settings = LaneSettings(
            run=self._run,
            journal=str(launcher.folder.journal),
            number=lane,
            lanes=pinned.lanes,
            buckets=pinned.buckets,
            address=self.planner.address,
            secret=self.planner.secret.hex(),
            graph=launcher.packed,
            memory=launcher.options.lane_memory,
            records_at_once=launcher.options.max_records_per_epoch,
        )
        checkpoint, workers = launcher.folder.checkpoint(query), f"{self._place} {lane}"
        name = launcher.called(query)
        return launcher.launch(query, lambda: start_lane(launcher.spark, settings, name=name, checkpoint=checkpoint, workers=workers))

    def _again(self, lane: int, dead: StreamingQuery, error: BaseException) -> StreamingQuery:
        restarts = self._restarts.setdefault(lane, deque())
        now = time.monotonic()
        while restarts and now - restarts[0] > RESTARTS_WITHIN:
            restarts.popleft()
        restarts.append(now)
        if len(restarts) > MAX_RESTARTS:
            raise Died(where(f"lane {lane}"), error, f"lane {lane}") from error
        dead.stop()  # it may be dying still, and have its name until it is gone
        log.warning("lane %d was lost, and is started again: %s", lane, str(error).partition("\n")[0])
        return self._launcher.relaunch(f"lane {lane}")


def _settings(options: Options) -> Settings:
    return Settings(
        max_records=options.max_records_per_epoch,
        max_bytes=options.max_bytes_per_epoch,
        linger=options.linger / SECOND,
        checkpoint_every=options.checkpoint_every / SECOND,
        first_checkpoint=FIRST_CHECKPOINT,
        lane_timeout=options.lane_timeout / SECOND,
        backlog_records=4 * options.max_records_per_epoch,
        backlog_bytes=4 * options.max_bytes_per_epoch,
    )
