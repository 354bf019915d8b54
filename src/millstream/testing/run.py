"""A run without Spark: planner, lane and journal in this process, and nothing between them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

from millstream.core.arrivals import Packet, gather
from millstream.core.epoch import Summary
from millstream.core.graph import Graph
from millstream.core.lanes import Lanes
from millstream.core.ledger import (
    Commit,
    Ledger,
    Plant,
    SourceChange,
    SourceProgress,
    decode_commit,
    decode_ledger,
    encode_commit,
    encode_ledger,
)
from millstream.core.mill import Mill
from millstream.core.parts import NO_LANE, Columns, Frame, Part, RowsPart
from millstream.core.planning import Backlog, Limits, Plan, Waiting, plan_epoch, readers_of
from millstream.core.route import Dealer
from millstream.core.standing import Standing
from millstream.mill.held import Held, decode_changes
from millstream.record import Record
from millstream.testing.memory import SEGMENT, MemoryJournal, MemoryStore
from millstream.timestamp import Timestamp

BUCKETS = 4
LANE = 0  # there is one
EPOCHS_PER_CHECKPOINT = 100


class Stored(NamedTuple):
    """A record of a stream, as a commit has it. Its id is origin, major and minor, numbered as on Spark."""

    id: tuple[str, int, int]
    key: str
    value: bytes
    timestamp: Timestamp

    def record(self, decode: Callable[[bytes], Any]) -> Record[Any]:
        origin, major, minor = self.id
        return Record(self.key, decode(self.value), self.timestamp, False, f"{origin}/{major}/", minor)


class MemoryRun:
    """Plans, runs and commits epochs as a run does. An epoch that is not committed leaves nothing and is planned afresh."""

    def __init__(self, graph: Graph, *, clock: Timestamp) -> None:
        self.graph = graph
        self.lanes = Lanes(BUCKETS, 1)
        self.limits = Limits(1_000_000, 1 << 40)  # of an epoch
        self.log: dict[str, list[Stored]] = {name: [] for name in graph.streams}
        self.crashing = False
        self.failed: int | None = None  # the epoch that did last, until one is committed
        self.dealer = Dealer(graph, self.lanes)
        self._inputs: dict[tuple[str, str], tuple[int, ...]] = {}  # by stream and, where it has parts of its own, reader
        for read in graph.inputs:
            place = (read.stream.name, read.reader if read.rekeyed else "")
            self._inputs[place] = (*self._inputs.get(place, ()), read.index)
        self._journal, self._store = MemoryJournal(), MemoryStore()
        self.held = Held(self._store, memory=None)
        self._changed_rows: list[RowsPart] = []  # of the epochs since the last checkpoint
        self._fed: list[Frame] = []  # what came from outside and no commit has yet
        self._changes: dict[str, SourceChange] = {}
        self._listened = dict.fromkeys(graph.injections, clock)  # when each last spoke, or could have
        outline = graph.outline
        plant = Plant(list(graph.nodes), list(graph.injections), timeless=outline.timeless, untimed=outline.untimed, buckets=BUCKETS)
        self.ledger = Ledger()
        nothing_before = {name: SourceChange(finished=True) for name in outline.histories}
        self.ledger.apply(Commit(1, "1", "", 1, clock, readers=readers_of(outline, {}, since=2), sources=nothing_before, plant=plant))
        self._begin()

    # What comes from outside.

    def feed(self, stream: str, records: list[Stored]) -> None:
        """Records from outside: the next commit names them, and its epoch may take them."""
        if records:
            origin, major, _ = records[0].id
            columns = Columns(
                [r.key for r in records], [r.value for r in records], [r.timestamp for r in records], [r.id[2] for r in records]
            )
            frame = self._journal.append(self.dealer.deal(stream, origin, major, columns, lane=NO_LANE), lane=NO_LANE)
            self._fed.append(frame)
            self._await(frame)

    def _await(self, fed: Frame) -> None:
        for part in fed.parts:
            self._backlog.add(Waiting(self.ledger.number + 1, fed.segment, part))

    def taken(self, injector: str) -> int:
        """How many values it has had."""
        return int(self.sources[injector].positions.get("", 0))

    def change(self, injector: str, change: SourceChange, *, clock: Timestamp) -> None:
        """Something of a source is new; the next commit says so."""
        self._listened[injector] = clock
        self.sources[injector].change(change, number=self.ledger.number + 1)
        self._changes[injector] = change.after(self._changes.get(injector))

    # An epoch.

    def epoch(self, clock: Timestamp, *, always: bool = False) -> bool:
        """The next one, if one is due or `always`; says whether there was one, be it one that crashed."""
        plan = plan_epoch(
            self.graph.outline,
            self.ledger,
            self._standing,
            self._backlog,
            self.sources,
            clock=clock,
            limits=self.limits,
            lanes=self.lanes,
            here=(LANE,),
            always=always or bool(self._fed or self._changes),
            listened=self._listened,
        )
        if plan is None:
            return False
        try:
            commit = self._attempt(plan)
        except BaseException:
            self.failed = plan.header.epoch
            self._recover()
            raise
        if self.crashing:
            self.crashing = False
            self._recover()
        else:
            self._commit(commit)
        return True

    def _attempt(self, plan: Plan) -> Commit:
        """Run an epoch, up to its commit."""
        known, header = self.ledger, plan.header
        frames, summaries = list(self._fed), list[Summary]()
        if plan.taken or plan.due:
            frame, summaries = self._work(plan)
            if frame.parts or frame.rows is not None:
                frames.append(frame)
        return Commit(
            number=header.epoch,
            id=f"{header.epoch}",
            before=known.id,
            fence=known.fence,
            now=header.now,
            low_watermarks=plan.low_watermarks,
            promises={name: upto for name, upto in plan.promises.items() if known.promises.get(name) != upto},
            idle=plan.idle,
            took={SEGMENT: [waiting.part.offset for waiting in plan.taken]} if plan.taken else {},
            frames=frames,
            summaries=summaries,
            sources=self._changes,
        )

    def _work(self, plan: Plan) -> tuple[Frame, list[Summary]]:
        """What the lane does."""
        parts = [waiting.part for waiting in plan.taken]
        packets = [Packet(self._inputs[p.stream, p.reader], p.stream, p.origin, p.major, self._journal.part(p)) for p in parts]
        outcome = self._mill.run(plan.header, gather(packets, self.graph.injections), plan.due, self.held)
        dealt = [
            each
            for stream, columns in outcome.productions.items()
            for each in self.dealer.deal(stream, stream, plan.header.epoch, columns, lane=LANE)
        ]
        return self._journal.append(dealt, lane=LANE, changes=outcome.changes), outcome.summaries

    def _commit(self, commit: Commit) -> None:
        """The epoch is committed; it goes on with what a new process would read."""
        commit = decode_commit(encode_commit(commit))
        self.ledger.apply(commit)
        self._fed, self._changes, self.failed = [], {}, None
        for summary in commit.summaries:
            for name, report in summary.reports.items():
                self._standing.put(name, summary.bucket, report.minima)
        for frame in commit.frames:
            for part in frame.parts:
                if not part.reader:
                    self.log[part.stream] += _stored(part, self._journal.part(part))
                if not self.ledger.awaited(part, commit.number):
                    self._journal.remove([part.offset])
                elif frame.lane == LANE:  # what came from outside waits already
                    self._backlog.add(Waiting(commit.number, SEGMENT, part))
            if frame.rows is not None:
                self._changed_rows.append(frame.rows)
        self._journal.remove(commit.took.get(SEGMENT, ()))
        if commit.number % EPOCHS_PER_CHECKPOINT == 0:
            self._checkpoint()

    def _checkpoint(self) -> None:
        self.held.checkpoint(b"")
        self._journal.remove(rows.offset for rows in self._changed_rows)
        self._changed_rows = []

    def _recover(self) -> None:
        """What a new process finds: the ledger as it is written, rows by redo, and what no commit has taken."""
        self.ledger = decode_ledger(encode_ledger(self.ledger))
        self.held.forget()
        self.held.redo(decode_changes(self._journal.rows(rows)) for rows in self._changed_rows)
        self._checkpoint()
        self._begin()

    def _begin(self) -> None:
        """All that is known by the ledger, and by what the sources have beyond it."""
        graph, known = self.graph, self.ledger
        self._mill = Mill(graph, self.lanes.bucket)
        self._standing = Standing(graph.outline, known)
        self.sources = {name: deepcopy(known.sources.get(name, SourceProgress())) for name in graph.outline.injectors}
        for name, change in self._changes.items():
            self.sources[name].change(change, number=known.number + 1)
        self._backlog = Backlog(graph.outline)
        for segment, waiting in known.waiting.items():
            for number, part in waiting.values():
                self._backlog.add(Waiting(number, segment, part))
        for frame in self._fed:
            self._await(frame)


def _stored(part: Part, columns: Columns) -> list[Stored]:
    found = zip(columns.minors, columns.keys, columns.values, columns.timestamps, strict=True)
    return [Stored((part.origin, part.major, minor), key, value, timestamp) for minor, key, value, timestamp in found]
