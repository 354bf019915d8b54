"""A run: the shell around the planner, as `millstream.mill.driving` and the run on Spark have it, without threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from millstream.core.graph import Graph
from millstream.core.ledger import Commit, Ledger
from millstream.errors import MillstreamError
from millstream.journal import opening
from millstream.journal.commits import Commits, Snapshot
from millstream.journal.leftovers import find_leftovers, journal_folders, sweep_asides
from millstream.journal.notes import Notes
from millstream.journal.ownership import Ownership
from millstream.journal.segments import segment_path
from millstream.mill.actions import Action, Close, End, Fed, Fold, Look, Moment, Remove, Send, Settings, Warn, Write
from millstream.mill.beginning import plant_of, rows_to_redo
from millstream.mill.messages import Busy, Failed, Join, Report, Returned, Welcome, decode_from_lane, encode_message
from millstream.mill.planner import Planner, first_commit
from millstream.timestamp import HOUR
from tests.simulation.inputs import SparkInput, ValuesInput
from tests.simulation.outputs import SimDelivery, SimWriter
from tests.simulation.spark import Attempt, Connection, Query, describe

if TYPE_CHECKING:
    from tests.simulation.world import Event, World

PlannerEvent = Callable[[Planner, Moment], list[Action]]


class Ended(Exception):
    """The run ends."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class DriverProcess:
    def __init__(self, run: Run) -> None:
        self.run, self.alive = run, True

    def die(self, why: str) -> None:
        if self.alive:
            self.alive = False
            self.run.world.say(f"run {self.run.number} dies: {why}")
            self.run.gone(lossy=True)


def settings_of(world: World) -> Settings:
    choose = world.rng.choice
    drawn = Settings(
        max_records=choose((1, 2, 5, 250_000)),
        linger=choose((0.0, 0.0, 0.005)),
        checkpoint_every=choose((2.0, 20.0, 300.0)),
        checkpoint_rows=choose((3, 10, 1_000)),
        announce=choose((0.5, 5.0)),
        lane_timeout=1e12,
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
        self.planner: Planner | None = None
        self.fence = 0
        self.attempts = 0
        self.inbox: deque[tuple[str, PlannerEvent]] = deque()
        self.connections: dict[int, Connection] = {}
        self.greeting: list[Connection] = []
        self._numbers = 0
        self.chores: deque[tuple[str, Callable[[], None]]] = deque()
        self.queries: list[Query] = []
        self.values: list[ValuesInput] = []
        self.inputs: list[SparkInput] = []
        self.deliveries: list[SimDelivery] = []
        self.writer: SimWriter | None = None
        self.settings = settings_of(world)
        self._stop_said = self._close_said = self._calmly = False

    # What can happen.

    def events(self) -> Iterator[Event]:
        from tests.simulation.world import Event

        world, p = self.world, self.world.profile
        name, who = f"run {self.number}", ("planner", self.number)

        def event(weight: float, what: str, act: Callable[[], None]) -> Event:
            return Event(weight, f"{name} {what}", who, self.process, lambda: self._guarded(act))

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
        planner = self.planner
        assert planner is not None
        yield event(1.0, "ticks", lambda: self.tell(lambda planner, at: []))
        if self.inbox:
            yield event(3.0, f"hears {self.inbox[0][0]}", self._hear_inbox)
        for connection in list(self.connections.values()):
            if connection.to_planner:
                yield event(
                    3.0, f"hears lane {connection.attempt.number} attempt {connection.attempt.id}", lambda c=connection: self._hear(c)
                )
            elif not connection.lane_open or not connection.planner_open:
                label = f"finds the connection of lane {connection.attempt.number} attempt {connection.attempt.id} closed"
                yield event(1.0, label, lambda c=connection: self._lost(c))
        for connection in self.greeting:
            attempt = connection.attempt
            greet = Event(
                2.0,
                f"{name} greets lane {attempt.number} attempt {attempt.id}",
                ("greet", self.number, connection.number),
                self.process,
                lambda c=connection: self._guarded(lambda: self._greet(c)),
            )
            yield greet
        if self.chores:
            label = f"{name} {self.chores[0][0]}"
            yield Event(1.0, label, ("chores", self.number), self.process, lambda: self._guarded(self._do_chore))
        else:
            label, chores = f"{name} looks for what no commit names", ("chores", self.number)
            yield Event(0.1, label, chores, self.process, lambda: self._guarded(self.look_for_leftovers))
        for query in self.queries:
            yield from query.events()
        for source in (*self.values, *self.inputs):
            yield from source.events()
        for delivery in self.deliveries:
            yield from delivery.events()
        if self.writer is not None:
            yield from self.writer.events()
        if (p.stop or self.want_stop) and not self._stop_said:
            yield event(1.0 if self.want_stop else p.stop * 0.2, "is asked to stop", self._stop)
        if planner.stopped and not self._close_said and self.ends_are_complete:
            yield event(2.0, "closes", self._close)
        if self._close_said and planner.opened is None and not self.greeting:
            yield event(1.0, "has closed", self._closed)

    def _toggle(self) -> None:
        self.paused = not self.paused

    def describe(self) -> str:
        planner = self.planner
        if planner is None:
            return f"run {self.number} {self.state}"
        seats = [f"{seat.lane}:{'here' if seat.here else 'away'}{'/ck' if seat.checkpointing else ''}" for seat in planner.seats]
        deliveries = {d.name: (d.position, str(d._machine.state)) for d in self.deliveries}
        opened = planner.opened and (planner.opened.epoch, planner.opened.lanes, sorted(planner.opened.reports))
        return (
            f"run {self.number} {self.state} program {self.program}, epoch {planner.ledger.number}, backlog {planner.backlog.records}, "
            f"open {opened}, seats {seats}, idle {planner.idle}, drained {planner.drained}, sources "
            f"{ {n: (s.position, s.batch, s.finished) for n, s in planner.pending.sources.items()} }, "
            f"log {self.writer and self.writer.position}, deliveries {deliveries}, ends {self.ends_are_complete}, "
            f"stopping {self._stop_said} closing {self._close_said}, lw {planner.ledger.low_watermarks}"
        )

    def _guarded(self, act: Callable[[], None]) -> None:
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
        for connection in (*self.connections.values(), *self.greeting):
            connection.close_by_planner(self.world)
        for attempt in self.world.attempts:
            if attempt.run is self and not attempt.over and self.world.rng.random() < 0.7:
                attempt.process.die("its driver is gone")
        self.close_files()

    def close_files(self) -> None:
        for delivery in self.deliveries:
            delivery.close()

    # The start.

    def start(self) -> None:
        world = self.world
        plant = plant_of(self.graph, buckets=world.sizes.buckets, lanes=world.sizes.lanes)

        def make(ledger: Ledger) -> Commit:
            return first_commit(self.graph, ledger, fence=ledger.fence + 1, plant=plant, id_=world.unique("c"), at=world.moment())

        ledger = opening.claim(self.commits, make)
        self.fence = ledger.fence
        world.say(f"run {self.number} owns the journal with commit {ledger.number}, fence {ledger.fence}, program {self.program}")
        world.oracle.claimed(self, ledger)
        ahead = world.rng.choice((0 * HOUR, HOUR))  # its clock may be: then it sweeps what others write just now
        sweep_asides(world.disk, journal_folders(world.disk), now=world.moment().clock + ahead)
        redo = rows_to_redo(self.commits, ledger, lanes=world.sizes.lanes)
        self.planner = Planner(
            self.graph,
            ledger,
            settings=self.settings,
            redo=redo,
            folded=self.commits.newest_snapshot(),
            new_id=lambda: world.unique("c"),
            at=world.moment(),
        )
        self.state = "up"
        self.queries = [Query(world, self, lane) for lane in range(world.sizes.lanes)]
        for name in self.graph.injections:
            source = ledger.sources.get(name)
            if source is not None and source.finished:
                continue
            if name in world.inputs:
                self.inputs.append(SparkInput(world, self, world.inputs[name]))
            else:
                self.values.append(ValuesInput(world, self, name))
        self.deliveries = [SimDelivery(world, self, name) for name in self.graph.deliveries]
        self.writer = SimWriter(world, self)

    # Events of the planner.

    def connect(self, attempt: Attempt) -> Connection:
        self._numbers += 1
        connection = Connection(self._numbers, attempt)
        self.greeting.append(connection)
        return connection

    def tell(self, event: PlannerEvent) -> None:
        planner = self.planner
        assert planner is not None
        self.act(event(planner, self.world.moment()))
        self.act(planner.on_tick(self.world.moment()))

    def _hear_inbox(self) -> None:
        _, event = self.inbox.popleft()
        self.tell(event)

    def feed(self, fed: Fed) -> None:
        self.inbox.append((f"what {fed.injector} fed", lambda planner, at: planner.on_fed(fed, at)))

    def _hear(self, connection: Connection) -> None:
        said = decode_from_lane(connection.to_planner.popleft())
        number = connection.number
        self.world.say(f"  {type(said).__name__} {describe(said)}")
        match said:
            case Report():
                self.tell(lambda planner, at: planner.on_report(number, said, at))
            case Failed():
                self.tell(lambda planner, at: planner.on_failed(number, said, at))
            case Busy():
                self.tell(lambda planner, at: planner.on_busy(number, said, at))
            case Returned():
                self.tell(lambda planner, at: planner.on_returned(number, said, at))
            case _:
                raise AssertionError(f"a lane said {said} where it should not")

    def _lost(self, connection: Connection) -> None:
        self._drop(connection.number)
        self.tell(lambda planner, at: planner.on_lost(connection.number, at))

    def _drop(self, number: int) -> None:
        connection = self.connections.pop(number, None)
        if connection is not None:
            connection.close_by_planner(self.world)

    def sync_checkpoint(self, lane: int) -> None:
        """What Spark has written of a lane's checkpoint, files and folders (rule 14)."""
        folder = self.world.lanes[lane]
        folder.durable = len(folder.batches)

    def _greet(self, connection: Connection) -> None:
        """The thread that lets a lane in: looks at the journal first."""
        self.greeting.remove(connection)
        if not connection.to_planner:
            connection.close_by_planner(self.world)
            return
        join = decode_from_lane(connection.to_planner.popleft())
        assert isinstance(join, Join)
        self.sync_checkpoint(join.lane)
        planner = self.planner
        assert planner is not None
        epoch = join.state.at.epoch
        commit = self.commits.id_of(epoch) if epoch else None

        def event(planner: Planner, at: Moment) -> list[Action]:
            self.connections[connection.number] = connection
            actions = planner.on_join(connection.number, join, commit, at)
            for action in actions:
                if isinstance(action, Send) and action.connection == connection.number and isinstance(action.message, Welcome):
                    folder = self.world.lanes[join.lane]
                    folder.proved = max(folder.proved, connection.attempt.base)
                    self.world.oracle.welcomed(self, join, action.message)
            return actions

        self.inbox.append((f"lane {join.lane} attempt {join.attempt} with the state of epoch {epoch}", event))

    def act(self, actions: list[Action]) -> None:
        todo = deque(actions)
        planner, world = self.planner, self.world
        assert planner is not None
        while todo:
            match todo.popleft():
                case Send(number, message):
                    connection = self.connections.get(number)
                    if connection is not None and connection.planner_open:
                        world.say(f"  sends {type(message).__name__} to lane {connection.attempt.number}: {describe(message)}")
                        connection.to_lane.append(encode_message(message))
                case Close(number):
                    world.say(f"  closes connection {number}")
                    self._drop(number)
                case Write(commit):
                    todo.extend(self._write(commit))
                case Remove(segments, notes):
                    self.chores.append((f"removes {segments} {notes}", lambda s=segments, n=notes: self._remove(s, n)))
                case Fold(_, needed):
                    snapshot = Snapshot.of(planner.ledger)
                    self.chores.append((f"folds {snapshot.number}, needed from {needed}", lambda s=snapshot, n=needed: self._fold(s, n)))
                case Look(otherwise):
                    if not Ownership(self.commits, self.fence, lambda: planner.ledger.number)():
                        raise Ended("Fenced", "a newer run owns the folder; this one stops")
                    raise Ended("Damage", otherwise)
                case End(kind, message):
                    raise Ended(kind, message)
                case Warn(_):
                    pass

    def _write(self, commit: Commit) -> list[Action]:
        planner, world = self.planner, self.world
        assert planner is not None
        if not self.commits.create(commit):
            return planner.on_taken()
        world.say(f"  commit {commit.number} {commit.id}: took {commit.took} {_summary(commit)}")
        world.oracle.committed(self, commit)
        actions = planner.on_committed(world.moment())
        self.told_of(commit)
        return actions

    def told_of(self, commit: Commit) -> None:
        for delivery in self.deliveries:
            delivery.notify(commit)
        if self.writer is not None:
            self.writer.notify(commit)

    # Beside it.

    def _do_chore(self) -> None:
        self.chores.popleft()[1]()

    def _remove(self, segments: list[str], notes: list[str]) -> None:
        for segment in segments:
            self.world.disk.forget(segment_path(segment))
            self.world.disk.remove(segment_path(segment))
        for note in notes:
            self.notes.remove(note)
        self.world.oracle.check_needed()

    def look_for_leftovers(self) -> None:
        planner = self.planner
        assert planner is not None
        found = find_leftovers(self.world.disk, planner.ledger)
        self.inbox.append(("what no commit names", lambda planner, at: planner.on_leftovers(found, at)))

    def _fold(self, snapshot: Snapshot, needed_from: int) -> None:
        self.commits.compact(snapshot)
        self.commits.drop_merged(needed_from)

    # The end.

    def _stop(self) -> None:
        self._stop_said = True
        self.tell(lambda planner, at: planner.on_stop(at))

    def _close(self) -> None:
        self._close_said = True
        self._calmly = self.world.profile.fall_back == 0  # else Spark may fall back before the last lane is gone
        self.tell(lambda planner, at: planner.on_close(at))

    def _closed(self) -> None:
        planner = self.planner
        assert planner is not None
        if not planner._over:
            return
        self.world.clean = self.fence if self._calmly and self.fence == self.world.oracle.ledger.fence else None
        self.end(None)

    @property
    def stopping(self) -> bool:
        return self._stop_said

    @property
    def is_drained(self) -> bool:
        return self.planner is not None and not self.inbox and self.planner.drained

    @property
    def ends_are_complete(self) -> bool:
        """Log and deliveries have everything that was committed."""
        assert self.planner is not None
        oracle, upto = self.world.oracle, self.planner.ledger.number
        return (
            not self.inbox
            and self.writer is not None
            and self.writer.position >= oracle.last_records(upto)
            and all(delivery.position >= oracle.last_records(upto, delivery.stream) for delivery in self.deliveries)
        )


def _summary(commit: Commit) -> str:
    found = [f"{frame.segment}@{frame.lane}:{len(frame.parts)}{'+rows' if frame.rows else ''}" for frame in commit.frames]
    more = {name: getattr(commit, name) for name in ("checkpoints", "logged", "delivered", "free") if getattr(commit, name)}
    return f"frames {found} {more}"
