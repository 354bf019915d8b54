"""The moment between two epochs: the last one is published, the next one is planned.

Spark asks for the offset after epoch N only once its own `commits/N` stands. So this is the moment at which N is
final: nothing that could still be run again is ever visible to a reader of the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from millstream.core.backlog import Backlog, Limits, LogFile, Position
from millstream.core.epoch import Summary
from millstream.core.graph import MILL, Graph
from millstream.core.low_watermark import next_idle
from millstream.core.plan import Ledger, Plan, Source, ended, first_epoch, no_ledger, of_table, plan_epoch, read_ledger, read_source
from millstream.errors import LogError
from millstream.log.folder import Folder, read_json, write_json
from millstream.log.staged import StagedFile
from millstream.log.table import Table, newest_note, read_commit, tail
from millstream.timestamp import END_OF_TIME, Timestamp

POLL = 0.02  # seconds between two looks at the log; a look costs one failed open for each table
QUIET_POLL = 0.05  # when nothing has come for a while
QUIET_AFTER = 2.0
MANIFESTS_KEPT = 3


class Manifest(msgspec.Struct):
    """What the tasks of an epoch left: the files to publish and what the buckets said."""

    epoch: int
    fence: int
    files: list[StagedFile]
    summaries: list[Summary]


class MillState(msgspec.Struct):
    """What the planner says of itself while it runs."""

    fence: int
    epoch: int
    idle: bool  # nothing is due
    stopped: bool  # it was asked to stop and plans nothing more
    drained: bool
    waiting: int  # records in the log that no epoch has taken yet
    seen: dict[str, int]  # the newest version it has looked at, of each table
    clock: Timestamp | None = None  # what a scripted clock said last


def manifest_path(folder: Folder, epoch: int, fence: int) -> Path:
    return folder.manifests / f"{epoch:012d}-{fence:06d}.json"


def find_manifest(folder: Folder, epoch: int) -> Manifest | None:
    """The manifest of an epoch; of several, that of the newest run: it ran the epoch again."""
    found = sorted(folder.manifests.glob(f"{epoch:012d}-*.json"))
    return read_json(found[-1], Manifest) if found else None


class Planner:
    """Lives in one process of the driver as long as the mill's query runs."""

    def __init__(
        self,
        folder: Folder,
        graph: Graph,
        *,
        fence: int,
        buckets: int,
        limits: Limits,
        clock: Callable[[], Timestamp],
        scripted: bool = False,
    ) -> None:
        self._folder, self._graph, self._fence, self._buckets, self._limits = folder, graph, fence, buckets, limits
        self._table = Table(folder.table(MILL), MILL, fence)
        self._clock, self._scripted = clock, scripted
        self._read = {read.stream.name for read in graph.inputs}
        self._ledger: Ledger | None = None
        self._backlog = Backlog(graph.tables, self._read)
        self._next: dict[str, int] = {}
        self._sources = {name: Source() for name in graph.injections}
        self._planned: tuple[int, list[LogFile]] | None = None
        self._told: MillState | None = None
        self._busy = 0.0  # when something last came

    def next_plan(self, start: Plan, *, wait: float) -> Plan | None:
        """Publish the epoch of `start`, then plan the one after it; None if nothing is due within `wait` seconds."""
        if start.epoch < 0:
            return first_epoch(self._graph, clock=self._clock(), buckets=self._buckets)
        ledger = self._publish(start)
        deadline = time.monotonic() + wait
        told: tuple[bool, Timestamp | None] | None = None
        look, timers_at = True, ledger.next_wall(self._graph.nodes)
        wake = timers_at
        while True:
            stopping = (self._folder.run / "stop").exists()
            look = self._poll() or look
            clock = self._clock()
            if look:
                self._busy = time.monotonic()
            if not stopping and (look or clock >= wake):
                planned = plan_epoch(self._graph, ledger, self._backlog, self._sources, clock=clock, limits=self._limits)
                if planned is not None:
                    self._busy = time.monotonic()
                    self._planned = (planned[0].epoch, planned[1])
                    self._tell(clock, idle=False, stopped=False, drained=False)
                    return planned[0]
                look = False
                told = None
                wake = min(timers_at, self._next_idle(clock))
            if told != (stopping, clock if self._scripted else None):  # an idle run says nothing twice
                told = (stopping, clock if self._scripted else None)
                self._tell(clock, idle=True, stopped=stopping, drained=self._drained(ledger))
            now = time.monotonic()
            if now >= deadline:
                return None
            time.sleep(POLL if now - self._busy < QUIET_AFTER else QUIET_POLL)

    def files(self, start: Plan, end: Plan) -> list[LogFile]:
        """The files that the epoch of `end` delivers: those just planned, or, when it is run again, found anew in the log."""
        if self._planned is not None and self._planned[0] == end.epoch:
            return self._planned[1]
        found: list[LogFile] = []
        for table in self._graph.tables:
            first, last = start.positions.get(table, Position()), end.positions.get(table, Position())
            for commit in tail(self._folder.table(table), table, first, last):
                found += [file for file in commit.files if file.stream in self._read and file.rows]
        return found

    def _publish(self, start: Plan) -> Ledger:
        """Make the epoch of `start` visible, unless it is already. A log that does not fit the checkpoint is refused."""
        ledger = self._ledger
        if ledger is None:
            found = newest_note(self._folder.table(MILL), MILL)
            ledger = no_ledger(self._graph) if found is None else read_ledger(found[1])
        if ledger.plan.epoch == start.epoch - 1:
            manifest = find_manifest(self._folder, start.epoch)
            if manifest is None:
                raise LogError(f"{self._folder.manifests} lacks the manifest of epoch {start.epoch}; restore it from a copy")
            produced: dict[str, int] = {}
            for file in manifest.files:
                produced[file.stream] = produced.get(file.stream, 0) + file.rows
            ledger = ledger.after(start, manifest.summaries, produced)
            self._table.commit(manifest.files, msgspec.json.encode(ledger), writer=MILL, epoch=start.epoch)
            self._sweep(start.epoch)
        elif ledger.plan.epoch != start.epoch:
            raise LogError(
                f"the log of {self._folder.path} ends with epoch {ledger.plan.epoch}, its checkpoint with {start.epoch}: "
                f"they do not belong together; restore both from one copy"
            )
        self._ledger = ledger
        if not self._next:
            self._begin(ledger)
        write_json(self._folder.consumer(MILL), start.positions, durable=False)
        return ledger

    def _begin(self, ledger: Ledger) -> None:
        """Take up the log where the last epoch left it."""
        for table in self._graph.tables:
            position = ledger.plan.positions.get(table, Position())
            self._next[table] = position.version
            path, injector = self._folder.table(table), of_table(self._graph, table)
            first = read_commit(path, table, position.version)
            if first is not None:
                self._take(table, first.version, [f for f in first.files if f.position >= position])
            else:
                self._backlog.add(table, [], position)
            if injector is not None:
                self._sources[injector] = self._source_before(path, table, position.version)
                if first is not None and first.note is not None:
                    self._sources[injector] = read_source(first.note)

    def _source_before(self, path: Path, table: str, version: int) -> Source:
        """What the table said of its source before `version`."""
        for earlier in range(version - 1, -1, -1):
            commit = read_commit(path, table, earlier)
            if commit is None:
                break  # cleaned away: what follows says the same or more
            if commit.note is not None:
                return read_source(commit.note)
        return Source()

    def _poll(self) -> bool:
        """Take in what was committed since the last look."""
        found = False
        for table in self._graph.tables:
            path = self._folder.table(table)
            while (commit := read_commit(path, table, self._next[table])) is not None:
                self._take(table, commit.version, commit.files)
                injector = of_table(self._graph, table)
                if injector is not None and commit.note is not None:
                    self._sources[injector] = read_source(commit.note)
                found = True
        return found

    def _take(self, table: str, version: int, files: Iterable[LogFile]) -> None:
        self._backlog.add(table, files, Position(version + 1))
        self._next[table] = version + 1

    def _next_idle(self, clock: Timestamp) -> Timestamp:
        """When the silence of a partition may move a promise, though nothing comes."""
        return min(
            (
                next_idle(source.marks, idle_after=self._graph.injections[name].low_watermark.idle_after, now=clock)
                for name, source in self._sources.items()
            ),
            default=END_OF_TIME,
        )

    def _drained(self, ledger: Ledger) -> bool:
        """Every input has ended and everything that it caused is done."""
        if self._backlog.rows() or not all(source.finished for source in self._sources.values()):
            return False
        return not self._graph.nodes or ended(
            {name: ledger.plan.low_watermarks[name] for name in self._graph.nodes if name in ledger.plan.low_watermarks}
        )

    def _tell(self, clock: Timestamp, *, idle: bool, stopped: bool, drained: bool) -> None:
        assert self._ledger is not None
        seen = {table: version - 1 for table, version in self._next.items()}
        state = MillState(
            self._fence, self._ledger.plan.epoch, idle, stopped, drained, self._backlog.rows(), seen, clock if self._scripted else None
        )
        if state != self._told:
            write_json(self._folder.run / "mill.json", state, durable=False)
            self._told = state

    def _sweep(self, epoch: int) -> None:
        for old in self._folder.manifests.glob("*.json"):
            if int(old.name[:12]) <= epoch - MANIFESTS_KEPT:
                old.unlink(missing_ok=True)
