"""The mill of a run: the planner in this process, and a query for each lane, started again where one was lost."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from millstream.core.graph import Graph
from millstream.core.ledger import Commit, Ledger, Source
from millstream.errors import Fenced, MillstreamError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.notes import Notes
from millstream.journal.opening import claim, open_ledger, sync_newest
from millstream.log.checks import check_lane, check_noted, check_segments
from millstream.log.folder import Folder, Pinned, sync_folder
from millstream.mill.actions import Moment, Settings
from millstream.mill.beginning import plant_of, rows_to_redo
from millstream.mill.channel import Listener
from millstream.mill.driving import Ended, PlannerThread, wall_clock
from millstream.mill.messages import Redo
from millstream.mill.planner import Planner, first_commit
from millstream.spark.lanes import LaneSettings, start_lane
from millstream.spark.launch import Died, Launcher, where
from millstream.spark.options import Options
from millstream.targets.checks import Ends
from millstream.timestamp import SECOND, Timestamp

FIRST_CHECKPOINT = 15.0  # seconds after a start
MAX_RESTARTS = 5  # of a lane's query, within
RESTARTS_WITHIN = 60.0  # seconds

# Of the mills of this process: a lane has workers of Spark's to itself while it runs, and the next run takes them over.
_places: set[int] = set()
_placing = threading.Lock()


class Journal:
    """The journal of a folder, from the side of a run that starts: first checked, then claimed."""

    def __init__(self, folder: Folder, graph: Graph, pinned: Pinned) -> None:
        self._folder, self._graph, self._pinned = folder, graph, pinned
        self.disk = LocalDisk(folder.journal)
        self.commits = Commits(self.disk)
        self.notes = Notes(self.disk)

    def check(self) -> Ledger:
        """Before anything is changed: what commits name is there, and checkpoints, log and deliveries belong to them."""
        with self._folder.naming():
            return self._check()

    def _check(self) -> Ledger:
        self.commits.make_folders()
        ends = Ends.of(self._folder, self._graph)
        ledger = open_ledger(self.commits)
        for lane in range(self._pinned.lanes):
            check_lane(self._folder, lane, ledger)
        check_segments(self.commits, ledger, [redo for of_lane in self.redo(ledger).values() for redo in of_lane])
        for name in self._graph.injections:
            source = ledger.sources.get(name, Source())
            if not source.finished:
                check_noted(self._folder, name, source.batch, self.notes)
        ends.check(self._folder, self._graph, ledger)
        sync_newest(self.commits, ledger)
        return ledger

    def claim(self, clock: Callable[[], Timestamp]) -> Ledger:
        """The first commit of a new fence: from here on an older run can change nothing (rules 1 and 2)."""
        graph, plant = self._graph, plant_of(self._graph, buckets=self._pinned.buckets, lanes=self._pinned.lanes)

        def make(ledger: Ledger) -> Commit:
            at = Moment(clock(), time.monotonic())
            return first_commit(graph, ledger, fence=ledger.fence + 1, plant=plant, id_=uuid.uuid4().hex, at=at)

        return claim(self.commits, make)

    def redo(self, ledger: Ledger) -> dict[int, list[Redo]]:
        """For each lane, the changed rows that no checkpoint has for sure."""
        return rows_to_redo(self.commits, ledger, lanes=self._pinned.lanes)


class Milling:
    """Planner and lanes."""

    def __init__(self, launcher: Launcher, journal: Journal, *, clock: Callable[[], Timestamp] = wall_clock, host: str | None) -> None:
        self._launcher = launcher
        self.journal = journal
        self.ledger = journal.claim(clock)
        self.fence = self.ledger.fence
        self._secret = secrets.token_bytes(32)
        self._run = uuid.uuid4().hex  # a folder that is restored from a copy has the same id and the same fence again
        self._listener = Listener(host, launcher.options.channel_port)
        planner = Planner(
            launcher.graph,
            self.ledger,
            settings=_settings(launcher.options),
            redo=journal.redo(self.ledger),
            folded=journal.commits.newest_snapshot(),
            new_id=lambda: uuid.uuid4().hex,
            at=Moment(clock(), time.monotonic()),
        )
        self.thread = PlannerThread(planner, journal.commits, self._listener, self._secret, clock=clock, before_join=self._sync_checkpoint)
        self._queries: dict[int, StreamingQuery] = {}
        self._restarts: dict[int, deque[float]] = {}
        self._synced: dict[Path, int] = {}
        self._closing = threading.Event()
        with _placing:
            self._place = next(place for place in itertools.count() if place not in _places)
            _places.add(self._place)

    @property
    def address(self) -> str:
        return self._listener.address

    @property
    def secret(self) -> str:
        return self._secret.hex()

    def start(self) -> None:
        """The planner, then a query for each lane: after the first commit of the fence (rule 2)."""
        self.thread.start()
        for lane in range(self._launcher.pinned.lanes):
            self._queries[lane] = self._start(lane)

    def look(self) -> None:
        """Has the planner ended, or has a lane's query died? A lane that was lost comes back by itself."""
        self.raise_error()
        for lane, query in self._queries.items():
            if query.isActive or self._closing.is_set():
                continue
            error = query.exception() or RuntimeError("its query was stopped from outside")
            if self.thread.ended.wait(0.2):  # what the planner met comes before what followed from it
                self.raise_error()
            self._queries[lane] = self._again(lane, query, error)

    def raise_error(self) -> None:
        error = self.thread.error
        if isinstance(error, Ended):
            raise Died("the mill", (Fenced if error.kind == Fenced.__name__ else MillstreamError)(str(error)))
        if error is not None:
            raise Died("the planner", error) from error

    def close(self) -> None:
        """The planner ends, lanes with it, then their queries: a bare stop would let a lane run on for seconds."""
        if self._closing.is_set():
            return
        self._closing.set()
        self.thread.end()
        for query in self._queries.values():
            query.stop()
        _places.discard(self._place)

    def _start(self, lane: int) -> StreamingQuery:
        query = f"lane {lane}"
        launcher, pinned = self._launcher, self._launcher.pinned
        settings = LaneSettings(
            run=self._run,
            journal=str(launcher.folder.journal),
            number=lane,
            lanes=pinned.lanes,
            buckets=pinned.buckets,
            address=self.address,
            secret=self.secret,
            graph=launcher.packed,
            memory=launcher.options.lane_memory,
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
        return self._launcher.relaunch(f"lane {lane}")

    def _sync_checkpoint(self, lane: int) -> None:
        """Spark syncs none of its files; what a lane joined with must outlive a power loss before it lets the journal go (rule 14)."""
        folder = self._launcher.folder.checkpoint(f"lane {lane}")
        for path, _, names in os.walk(folder):
            new = [file for name in names if self._synced.get(file := Path(path) / name) != _modified(file)]
            for file in new:
                if (modified := _modified(file)) >= 0:
                    _sync(file)
                    self._synced[file] = modified
            if new:
                sync_folder(Path(path))


def _modified(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return -1  # Spark tidies up beside us


def _sync(file: Path) -> None:
    try:
        handle = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
