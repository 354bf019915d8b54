"""A run: its planner and all that it starts around it, as the run on Spark does, from its first commit to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from millstream.core.graph import Graph
from millstream.core.ledger import Commit, Ledger
from millstream.errors import MillstreamError
from millstream.journal import opening
from millstream.journal.commits import Commits
from millstream.journal.leftovers import journal_folders, sweep_asides
from millstream.journal.notes import Notes
from millstream.mill.actions import Settings
from millstream.mill.beginning import first_commit, plant_of, rows_to_redo
from millstream.mill.planner import Planner
from millstream.timestamp import HOUR
from tests.simulation.deliveries import SimDelivery
from tests.simulation.desk import Desk, Ended
from tests.simulation.inputs import SparkInput
from tests.simulation.scene import Kind
from tests.simulation.sources import ThreadInput
from tests.simulation.spark import Query
from tests.simulation.turns import Event
from tests.simulation.writer import SimWriter

if TYPE_CHECKING:
    from tests.simulation.world import World


class DriverProcess:
    def __init__(self, run: Run) -> None:
        self.run, self.alive = run, True

    def die(self, why: str) -> None:
        if self.alive:
            self.alive = False
            self.run.world.say(f"run {self.run.number} dies: {why}")
            self.run.gone(lossy=True)


NEVER = 1e12  # seconds


def settings_of(world: World) -> Settings:
    choose = world.rng.choice
    drawn = Settings(
        max_records=choose((1, 2, 5, 250_000)),
        linger=choose((0.0, 0.0, 0.005)),
        checkpoint_every=choose((2.0, 20.0, 300.0)),
        checkpoint_rows=choose((3, 10, 1_000)),
        announce=choose((0.5, 5.0)),
        lane_timeout=choose((NEVER, NEVER, 20.0, 100.0)),
        backlog_records=choose((4, 20, 1_000)),
        fold_every=choose((2, 5, 20)),
        positions_every=choose((0.0, 0.5, 1.0)),
        free_every=choose((0.0, 1.0)),
        orphaned_after=choose((0.0, 0.0, 5.0, 3_600.0)),
    )
    return msgspec.structs.replace(drawn, **dict(world.usual.settings))


class Run:
    def __init__(self, world: World, number: int, program: int) -> None:
        self.world, self.number, self.program = world, number, program
        self.process = DriverProcess(self)
        self.state = "starting"
        self.paused = False
        self.want_stop = False
        self.error: BaseException | None = None
        self.graph: Graph = world.scene.graph(program)
        self.commits = Commits(world.disk)
        self.notes = Notes(world.disk)
        self._desk: Desk | None = None
        self.fence = 0
        self.attempts = 0
        self.queries: list[Query] = []
        self.threads: list[ThreadInput] = []
        self.inputs: list[SparkInput] = []
        self.deliveries: list[SimDelivery] = []
        self.writer: SimWriter | None = None
        self.settings = settings_of(world)
        self._stop_said = self._close_said = self._calmly = False
        self.fell_back_under_it = False  # the query of another run, to a state of before this one

    @property
    def desk(self) -> Desk:
        """Once it is up."""
        assert self._desk is not None
        return self._desk

    @property
    def planner(self) -> Planner:
        return self.desk.planner

    @property
    def has_lane_timeout(self) -> bool:
        return self.settings.lane_timeout < NEVER

    # What can happen.

    def events(self) -> Iterator[Event]:
        world, p = self.world, self.world.profile
        name, who = f"run {self.number}", ("planner", self.number)

        def event(weight: float, what: str, act: Callable[[], None]) -> Event:
            return Event(weight, f"{name} {what}", who, self.process, lambda: self.guarded(act))

        if p.kill_driver:
            yield Event(p.kill_driver * 0.3, f"{name} is killed", ("kill", self.number), self.process, lambda: self.process.die("killed"))
        if p.pause or self.paused:
            weight = 0.15 if self.paused else p.pause * 0.2
            yield Event(weight, f"{name} {'wakes' if self.paused else 'sleeps'}", ("pause", self.number), world, self._toggle)
        if self.paused:
            return
        if self.state == "starting":
            yield event(3.0, "starts", self.start)
            return
        yield from self.desk.events()
        for query in self.queries:
            yield from query.events()
        for source in (*self.threads, *self.inputs):
            yield from source.events()
        for delivery in self.deliveries:
            yield from delivery.events()
        if self.writer is not None:
            yield from self.writer.events()
        if (p.stop or self.want_stop) and not self._stop_said:
            yield event(1.0 if self.want_stop else p.stop * 0.2, "is asked to stop", self._stop)
        if self.planner.stopped and not self._close_said and self.ends_are_complete:
            yield event(2.0, "closes", self._close)
        if self._close_said and self.planner.opened is None and not self.desk.greeting:
            yield event(1.0, "has closed", self._closed)

    def _toggle(self) -> None:
        self.paused = not self.paused

    def describe(self) -> str:
        if self._desk is None:
            return f"run {self.number} {self.state}"
        planner = self.planner
        seats = [f"{seat.lane}:{'here' if seat.here else 'away'}{'/ck' if seat.checkpointing else ''}" for seat in planner.seats]
        deliveries = [delivery.describe() for delivery in self.deliveries]
        opened = planner.opened and (planner.opened.epoch, planner.opened.lanes, sorted(planner.opened.reports))
        return (
            f"run {self.number} {self.state} program {self.program}, epoch {planner.ledger.number}, backlog {planner.backlog.records}, "
            f"open {opened}, seats {seats}, idle {planner.idle}, drained {planner.drained}, sources "
            f"{ {n: (s.positions, s.batch, s.finished) for n, s in planner.pending.sources.items()} }, "
            f"writer {self.writer and self.writer.describe()}, deliveries {deliveries}, ends {self.ends_are_complete}, "
            f"stopping {self._stop_said} closing {self._close_said}, lw {planner.ledger.low_watermarks}"
        )

    def guarded(self, act: Callable[[], None]) -> None:
        """What the shell meets ends the run; whether it may is for the laws to say."""
        try:
            act()
        except (Ended, MillstreamError) as error:
            self.end(error)

    def end(self, error: BaseException | None) -> None:
        if not self.process.alive:
            return
        self.error = error
        self.world.say(f"run {self.number} ends: {error}")
        self.state = "ended"
        self.process.alive = False
        self.gone(lossy=False)
        if error is not None:
            self.world.oracle.check_ending(self, error)

    def gone(self, *, lossy: bool) -> None:
        """Its process is no more: connections close, its SparkContext goes, tasks fail; some live on for a while."""
        if self._desk is not None:
            self._desk.close()
        for attempt in self.world.attempts:
            if attempt.run is self and not attempt.over and self.world.rng.random() < 0.7:
                attempt.process.die("its driver is gone")
        self.close_files()

    def close_files(self) -> None:
        for delivery in self.deliveries:
            delivery.close()
        if self.writer is not None:
            self.writer.close()

    # The start.

    def start(self) -> None:
        world = self.world
        plant = plant_of(self.graph.outline, buckets=world.sizes.buckets, lanes=world.sizes.lanes)

        def make(ledger: Ledger) -> Commit:
            return first_commit(self.graph.outline, ledger, fence=ledger.fence + 1, plant=plant, id_=world.unique("c"), at=world.moment())

        ledger = opening.claim(self.commits, make)
        self.fence = ledger.fence
        world.say(f"run {self.number} owns the journal with commit {ledger.number}, fence {ledger.fence}, program {self.program}")
        world.oracle.claimed(self, ledger)
        ahead = world.rng.choice((0 * HOUR, HOUR))  # its clock may be: then it sweeps what others write just now
        sweep_asides(world.disk, journal_folders(world.disk), now=world.moment().clock + ahead)
        redo = rows_to_redo(self.commits, ledger, lanes=world.sizes.lanes)
        planner = Planner(
            self.graph.outline,
            ledger,
            settings=self.settings,
            redo=redo,
            folded=self.commits.newest_snapshot(),
            new_id=lambda: world.unique("c"),
            at=world.moment(),
        )
        self._desk = Desk(self, planner)
        self.state = "up"
        self.queries = [Query(world, self, lane) for lane in range(world.sizes.lanes)]
        for name in self.graph.injections:
            source = ledger.sources.get(name)
            if source is not None and source.finished:
                continue
            if name in world.inputs:
                self.inputs.append(SparkInput(world, self, world.inputs[name]))
            else:
                self.threads.append(ThreadInput(world, self, world.sources[name]))
        self.deliveries = [SimDelivery(world, self, each) for each in world.scene.deliveries(self.program, Kind.FUNCTION)]
        self.writer = SimWriter(world, self)

    def told_of(self, commit: Commit) -> None:
        for thread in self.threads:
            thread.notify(commit)
        for delivery in self.deliveries:
            delivery.notify(commit)
        if self.writer is not None:
            self.writer.notify(commit)

    # The end.

    def _stop(self) -> None:
        self._stop_said = True
        self.desk.tell(lambda planner, at: planner.on_stop(at))

    def _close(self) -> None:
        self._close_said = True
        self._calmly = self.world.profile.fall_back == 0  # else Spark may fall back before the last lane is gone
        self.desk.tell(lambda planner, at: planner.on_close(at))

    def _closed(self) -> None:
        if not self.planner._over:
            return
        calmly = self._calmly and not self.fell_back_under_it
        self.world.clean = self.fence if calmly and self.fence == self.world.oracle.ledger.fence else None
        self.end(None)

    @property
    def stopping(self) -> bool:
        return self._stop_said

    @property
    def is_drained(self) -> bool:
        return self._desk is not None and not self.desk.inbox and self.planner.drained

    @property
    def ends_are_complete(self) -> bool:
        """Log and deliveries have everything that was committed."""
        records, writer, upto = self.world.oracle.records, self.writer, self.planner.ledger.number
        return (
            not self.desk.inbox
            and writer is not None
            and writer.position() >= self.world.oracle.ends.last_kept(upto)
            and all(writer.position(name) >= records.last(upto, delivery.stream) for name, delivery in writer.deliveries.items())
            and all(delivery.position >= records.last(upto, delivery.stream) for delivery in self.deliveries)
        )
