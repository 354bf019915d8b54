"""The planner: which epoch runs next, on which lanes, and when it is committed.

A state machine: events in, actions out, time in the events. The rules that it keeps stand by number in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from millstream.core.lanes import Lanes
from millstream.core.ledger import Commit, Ledger
from millstream.core.outline import Outline
from millstream.core.parts import Frame
from millstream.core.planning import Backlog, Limits, Waiting, ended, listen_anew, overlook, plan_epoch
from millstream.core.standing import Standing
from millstream.journal.leftovers import Leftovers
from millstream.mill.actions import Action, Close, End, Fed, Fold, Look, Moment, Remove, Send, Settings, Warn, Write
from millstream.mill.checkpointing import checkpoints
from millstream.mill.messages import NO_TRY, Busy, Failed, GoAway, Joining, PeekFor, Range, Redo, Report, Returned, Welcome, Work
from millstream.mill.offered import Offered
from millstream.mill.opened import Opened
from millstream.mill.peeking import Peeks
from millstream.mill.pending import Pending, live_sources
from millstream.mill.retention import needed_from
from millstream.mill.seats import Seat
from millstream.mill.watching import came_back, next_tick, watch
from millstream.timestamp import Duration

TOGETHER = "journal and checkpoints belong together: restore both from one copy"
MEMORY = "It may be killed for lack of memory: give lanes less (lane_memory), or epochs (max_records_per_epoch), or the machine more"


class Planner:
    """Made after the first commit of its fence, with the ledger that has it."""

    def __init__(
        self,
        outline: Outline,
        ledger: Ledger,
        *,
        settings: Settings,
        redo: Mapping[int, Iterable[Redo]],
        folded: int,  # the newest snapshot
        new_id: Callable[[], str],
        at: Moment,
    ) -> None:
        self.outline, self.ledger, self.settings, self._new_id = outline, ledger, settings, new_id
        self._lanes = Lanes(ledger.plant.buckets, ledger.plant.lanes)
        self.seats = [Seat(lane, redo.get(lane, ()), at.seconds) for lane in range(self._lanes.count)]
        self._by_connection: dict[int, Seat] = {}
        self.pending = Pending(outline, settings, live_sources(ledger.sources), at)
        listen_anew(self.pending.sources, clock=at.clock)
        self.standing, self.backlog = Standing(outline, ledger), Backlog(outline)
        waiting = [Waiting(number, segment, part) for segment, of in ledger.waiting.items() for number, part in of.values()]
        for each in sorted(waiting, key=lambda each: (each.epoch, each.part.oldest)):  # what lanes read stands in segments by lane
            self.backlog.add(each)
        self.offered = Offered(self._lanes.count, ledger.sources, at.clock)
        self._inputs: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for read in outline.inputs:
            self._inputs.setdefault((read.stream, read.reader if read.rekeyed else ""), []).append((read.index, read.reader))
        self._peeks = Peeks(self._lanes)
        self.opened: Opened | None = None
        self._writing: Commit | None = None
        self._tries, self._folded = 0, folded
        self._scale = 1.0  # of the limits of an epoch: less after one that was too large
        # When the last epoch began, and the last without lanes.
        self.began, self.emptied = at.seconds - settings.linger, at.seconds - settings.empty_every
        self._deaf = self._put_off = False  # sources are not read, for the backlog is full; an epoch is due, and waits for its time
        self._stopping = self._closing = self._over = False

    # What can be asked.

    @property
    def idle(self) -> bool:
        """Nothing is under way, and nothing waits."""
        return self.opened is None and self._writing is None and not (self.pending.fed or self.offered or self.backlog.records)

    @property
    def rests(self) -> bool:
        """Idle, and nothing is put off: neither an epoch that only moves low watermarks, nor what is due for a lane that is away."""
        return self.idle and not self._put_off and all(seat.here for seat in self.seats)

    @property
    def drained(self) -> bool:
        """Every input has ended and everything that it caused is done."""
        sources = [self.ledger.sources.get(name) for name in self.outline.injectors]
        if not self.idle or not all(source is not None and source.finished for source in sources):
            return False
        known = {name: lw for name, lw in self.ledger.low_watermarks.items() if name in self.outline.nodes}
        return not self.outline.nodes or (len(known) == len(self.outline.nodes) and ended(known))

    @property
    def stopped(self) -> bool:
        """Every lane has checkpointed since it was asked to stop, and a later join has proved it."""
        return self._stopping and self.opened is None and self._writing is None and all(seat.is_safe for seat in self.seats)

    @property
    def has_room(self) -> bool:
        """Whether sources may be read: the backlog is what holds them back."""
        settings, waits = self.settings, self.backlog
        return waits.records < settings.backlog_records and waits.size < settings.backlog_bytes and waits.parts < settings.backlog_parts

    # Events from lanes.

    def on_join(self, connection: int, join: Joining, commit_of_state: str | None, at: Moment) -> list[Action]:
        """A lane comes. `commit_of_state` is the id of the commit that its state says it is of, as the journal has it."""
        if self._over:
            return [Send(connection, GoAway())]  # nobody plans for it any more
        seat, state, free = self.seats[join.lane], join.state, self.ledger.free_rows(join.lane)
        if join.attempt <= seat.attempt:
            return [Close(connection)]  # an older attempt, even if no newer one is connected (rule 5)
        wrong = ""
        if state.at.epoch > self.ledger.number:
            wrong = f"of epoch {state.at.epoch}, and the journal ends with {self.ledger.number}"
        elif state.at.epoch and commit_of_state != state.at.commit and not self.ledger.knows(join.lane, state.at):
            wrong = f"of epoch {state.at.epoch} of another copy of this folder"
        elif state.at.epoch < free:
            wrong = f"of epoch {state.at.epoch}, and later ones were proved up to {free}"
        if wrong:
            return [Close(connection), Look(f"the checkpoint of lane {join.lane} is {wrong}; {TOGETHER}")]
        actions = came_back(seat, at)
        if seat.connection is not None:
            actions += [Close(seat.connection), *self.on_lost(seat.connection, at, counted=False)]
        if state != self.ledger.checkpoints.get(join.lane):
            self.pending.prove(join.lane, state)
        seat.sit(connection, join.attempt, state, join.process, at.seconds)
        self._by_connection[connection] = seat
        actions.append(Send(connection, Welcome(self.ledger.number, seat.behind(self.ledger.number))))
        if self.opened is not None and self.opened.awaits(seat.lane):
            actions.append(self._give(seat, self.opened, at))  # no report of it was read (rule 8)
        return actions + self._go_on(at)

    def on_lost(self, connection: int, at: Moment, *, counted: bool = True) -> list[Action]:
        """A connection ended: its lane fails its task, and Spark begins another attempt."""
        seat = self._by_connection.pop(connection, None)
        if seat is None or seat.connection != connection:
            return []
        returned = seat.checkpointing is not None
        seat.leave(at.seconds)
        if returned or not counted:
            return []
        if seat.lost_too_often(at.seconds):
            last = f": {seat.error}" if seat.error else ""
            return [End("LaneLost", f"lane {seat.lane} was lost {len(seat.losses)} times within a minute{last}")]
        opened = self.opened
        if opened is None or opened.lost(seat.lane) < 2:
            return []
        if opened.is_smallest(seat.lane):
            return [End("LaneLost", f"lane {seat.lane} died twice of epoch {opened.epoch}, which cannot be made smaller. {MEMORY}")]
        return self._abort(at, smaller=True)

    def on_report(self, connection: int, report: Report, at: Moment) -> list[Action]:
        """Read only from the admitted connection while it is open, and for the try that is open."""
        seat, opened = self._by_connection.get(connection), self.opened
        if seat is None or opened is None:
            return []
        seat.reported(report, at.seconds)
        return self._commit(at) if opened.take_report(seat.lane, report) and opened.is_complete else []

    def on_failed(self, connection: int, failed: Failed, at: Moment) -> list[Action]:
        """An epoch cannot be run: nothing of it stays, and a repaired program goes on from the one before."""
        seat, opened = self._by_connection.get(connection), self.opened
        if seat is None:
            return []
        seat.error = failed.message
        if failed.try_number == NO_TRY:
            return [Look(failed.message)]
        if opened is None or (failed.epoch, failed.try_number) != (opened.epoch, opened.try_number):
            return []
        too_large = failed.kind == MemoryError.__name__
        if too_large and not opened.is_smallest(seat.lane):
            return self._abort(at, smaller=True)
        end = Look(failed.message) if failed.kind in ("Missing", "Damaged") else End(failed.kind, failed.message)
        return [*self._abort(at, smaller=False), End(failed.kind, f"{failed.message}. {MEMORY}") if too_large else end]

    def on_busy(self, connection: int, busy: Busy, at: Moment) -> list[Action]:
        if (seat := self._by_connection.get(connection)) is not None:
            seat.hear(busy, at.seconds)
        return []

    def on_returned(self, connection: int, returned: Returned, at: Moment) -> list[Action]:
        """A lane has written back. That frees nothing: Spark may take another attempt's (rule 14)."""
        if (seat := self._by_connection.get(connection)) is not None:
            seat.checkpointed, seat.young = at.seconds, False
        return []

    # Events from the ends.

    def on_fed(self, fed: Fed, at: Moment) -> list[Action]:
        """A source has brought something; it is named by the next commit that is not under way, and may be taken by its epoch."""
        # Or it would be silent in whom nobody has looked at in a long epoch.
        self.offered.listen(self.pending.sources, at.clock, spoke=fed.injector)
        if not self.pending.feed(fed, self.ledger, at):
            return []
        number = self.ledger.number + (1 if self._writing is None else 2)
        for segment, part in [(frame.segment, part) for frame in fed.frames for part in frame.parts]:
            self.backlog.add(Waiting(number, segment, part))
        return self._go_on(at)

    def on_offered(self, ranges: list[Range], at: Moment) -> list[Action]:
        """A source has something for lanes to read. What is not read is offered again by the next run."""
        self.offered.add(ranges)
        return self._go_on(at)

    def on_unread(self, injector: str, partitions: list[str] | None, at: Moment) -> list[Action]:
        """Which partitions of a source have something that was not given yet; None if it cannot be reached now."""
        self.offered.listen(self.pending.sources, at.clock)  # to what was unread until now
        self.offered.hear(injector, partitions)
        return self._go_on(at)

    def on_logged(self, upto: int, at: Moment) -> list[Action]:
        """The log has all up to this epoch, synced."""
        self.pending.log(upto, self.ledger, at)
        return []

    def on_delivered(self, delivery: str, upto: int, at: Moment) -> list[Action]:
        self.pending.deliver(delivery, upto, self.ledger, at)
        return []

    def on_peek(self, question: PeekFor, at: Moment) -> list[Action]:
        self._peeks.add(question)
        return self._go_on(at)

    def on_leftovers(self, found: Leftovers, at: Moment) -> list[Action]:
        """A look has found what no commit names; what of it is an orphan is declared free by the next one (rule 13)."""
        self.pending.suspect(found, self.ledger, at)
        return []

    def on_tick(self, at: Moment) -> list[Action]:
        watched = [] if self._over else watch(self, at)  # lanes that were sent away are not missed
        return watched + self._fold() + self._go_on(at)

    def on_stop(self, at: Moment) -> list[Action]:
        """The open epoch is committed, then every lane checkpoints; the backlog stays."""
        self._stopping = True
        return self._go_on(at)

    def on_close(self, at: Moment) -> list[Action]:
        """The last commit, with what joins have proved and where log and deliveries are; then lanes are sent away."""
        self._closing = True
        if self.opened is not None or self._writing is not None:
            return []
        return self._send_away() if self.pending.is_empty else [self._write(self._new_commit(at))]

    # After a commit.

    def on_committed(self, at: Moment) -> list[Action]:
        """The commit is durable: it is the epoch."""
        commit, opened = self._writing, self.opened
        assert commit is not None
        self.ledger.apply(commit)
        for summary in commit.summaries:
            for name, report in summary.reports.items():
                self.standing.put(name, summary.bucket, report.minima)
        for frame in commit.frames:
            if frame.lane >= 0:  # what sources fed waits already
                self.seats[frame.lane].committed(commit.number, frame)
                for part in frame.parts:
                    if self.ledger.awaited(part, commit.number):
                        self.backlog.add(Waiting(commit.number, frame.segment, part))
        for seat in self.seats:
            seat.losses = []
            if opened is not None and opened.ran(seat):
                seat.known = commit.number
            if seat.lane in commit.checkpoints:
                seat.let_go(self.ledger.free_rows(seat.lane))
        self._writing = self.opened = None
        self._scale = min(1.0, self._scale * 2)
        removed: list[Action] = [] if commit.free is None else [Remove(commit.free.segments, commit.free.notes)]
        return removed + self._fold() + (self._send_away() if self._closing else self._go_on(at))

    def on_taken(self) -> list[Action]:
        """The number of the commit was taken: a newer run owns the folder (rule 3)."""
        return [End("Fenced", "a newer run owns the folder; this one stops")]

    # Going on.

    def _go_on(self, at: Moment) -> list[Action]:
        """Between two epochs: tell lanes to checkpoint, then plan."""
        if self.opened is not None or self._writing is not None or self._over:
            return []
        actions = self._peeks.send(self.seats, self.ledger.number)
        actions += checkpoints(self.seats, self.ledger, self.settings, at, stopping=self._stopping)
        if self._stopping:  # what was fed is named still
            return [*actions, self._write(self._new_commit(at))] if self.pending.fed else actions
        self._put_off = at.seconds < self.began + self.settings.linger
        return actions if self._put_off else actions + self._plan(at)

    def _plan(self, at: Moment) -> list[Action]:
        settings, positions = self.settings, self.pending.positions_due_in(at)
        if self._deaf:
            self.offered.listen_anew(self.pending.sources, at.clock)
        self._deaf = not self.has_room
        here = {seat.lane for seat in self.seats if seat.here}
        limit = min(settings.max_bytes, settings.read_bytes * len(here))
        # After an epoch that was too large, one that takes parts reads nothing: else the two together were never small enough.
        reads = self._scale == 1.0 or self.backlog.records == 0
        # Where the backlog is full, a source of which nothing is in it has its turn still: others may fill it all the time.
        but = () if self.has_room else self.backlog.streams()
        sources = self.pending.sources
        # Before any are taken: what this epoch reads is not known before the next.
        holding = self.offered.holding(sources)
        self.offered.listen(sources, at.clock)
        ranges = self.offered.take(int(limit * self._scale), here, sources, seconds=at.seconds, but=but) if reads else []
        quiet = not self.pending.fed and at.seconds < self.emptied + settings.empty_every
        plan = plan_epoch(
            self.outline,
            self.ledger,
            self.standing,
            self.backlog,
            sources,
            clock=at.clock,
            limits=Limits(max(1, int(settings.max_records * self._scale)), max(1, int(settings.max_bytes * self._scale))),
            lanes=self._lanes,
            here=here,
            always=bool(self.pending.fed or ranges) or (positions is not None and positions <= 0),
            holding=holding,
            listened=self.offered.listened,
        )
        self._put_off = plan is not None and quiet and not plan.taken and not plan.due and not ranges
        if plan is None or self._put_off:
            return []
        self._tries += 1
        self.opened, self.began = Opened(plan, ranges, self._tries, self._lanes, at.seconds), at.seconds
        if not self.opened.lanes:
            self.emptied = at.seconds
            return self._commit(at)
        return [self._give(self.seats[lane], self.opened, at) for lane in self.opened.lanes]

    def _give(self, seat: Seat, opened: Opened, at: Moment) -> Action:
        assert seat.connection is not None
        seat.begin(at.seconds)
        given, header, committed = opened.give(seat, self._who_gets), opened.plan.header, self.ledger.number
        due, ranges = opened.due_of(seat.lane), opened.ranges_of(seat.lane)
        return Send(seat.connection, Work(opened.try_number, header, given, due, committed, seat.behind(committed), ranges))

    def _who_gets(self, waiting: Waiting) -> tuple[int, ...]:
        """The inputs that a part goes to: those whose readers read from its epoch on."""
        wanted = self._inputs.get((waiting.part.stream, waiting.part.reader), [])
        return tuple(index for index, reader in wanted if self.ledger.readers[reader].since <= waiting.epoch)

    def _commit(self, at: Moment) -> list[Action]:
        opened, known = self.opened, self.ledger
        assert opened is not None
        plan, reports = opened.plan, [opened.reports[lane] for lane in opened.lanes]
        reads = {assigned.range.injector for assigned in opened.ranges}
        took = Duration(int((at.seconds - opened.began) * 1_000_000))
        overlook({name: source for name, source in self.pending.sources.items() if name in reads}, took, clock=at.clock)
        kept, news = self.offered.settle(opened.read(), at)
        for fed in kept:
            self.pending.feed(fed, known, at)  # what was read and how far go into one commit
        commit = self._new_commit(at, [frame for report in reports for frame in report.frames])
        commit.now = plan.header.now
        commit.low_watermarks = plan.low_watermarks
        commit.promises = {n: upto for n, upto in plan.promises.items() if known.promises.get(n) != upto}
        commit.took, commit.idle = opened.took(), plan.idle
        commit.summaries = [summary for report in reports for summary in report.summaries]
        return [*map(Warn, news), self._write(commit)]

    def _new_commit(self, at: Moment, frames: Iterable[Frame] = ()) -> Commit:
        """The next commit, with the frames of lanes and all that rides along."""
        known = self.ledger
        commit = Commit(known.number + 1, self._new_id(), known.id, known.fence, max(known.now, at.clock), frames=list(frames))
        self.pending.ride(commit, known, {seat.segment for seat in self.seats}, at, last=self._closing)
        return commit

    def _write(self, commit: Commit) -> Write:
        self._writing = commit
        return Write(commit)

    def _abort(self, at: Moment, *, smaller: bool) -> list[Action]:
        """Every lane that ran the open epoch fails its task; its parts wait again, and it is planned anew."""
        opened = self.opened
        assert opened is not None
        self.opened = None
        self.backlog.give_back(opened.plan.taken)
        self.offered.give_back(opened.ranges)
        if smaller:
            self._scale = opened.halved(self.settings.max_records)
        actions: list[Action] = []
        for seat in (self.seats[lane] for lane in opened.lanes):
            if seat.connection is not None:
                actions.append(Close(seat.connection))
                self.on_lost(seat.connection, at, counted=False)
        return actions

    def _fold(self) -> list[Action]:
        """Counted from the newest snapshot, whoever made it: runs that die before they have made so many would never merge."""
        if self.ledger.number - self._folded < self.settings.fold_every:
            return []
        self._folded = self.ledger.number
        return [Fold(self._folded, needed_from(self.ledger))]

    def _send_away(self) -> list[Action]:
        self._over = True
        return [Send(seat.connection, GoAway()) for seat in self.seats if seat.connection is not None]

    def next_tick(self, at: Moment) -> float | None:
        """In how many seconds something may be due though nothing comes; None if never."""
        return next_tick(self, at)
