"""Around a planner: what it is told, the connections of its lanes, and what it asks for; as `millstream.mill.driving`, without threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from millstream.core.ledger import Commit
from millstream.journal.commits import Snapshot
from millstream.journal.leftovers import find_leftovers
from millstream.journal.ownership import Ownership
from millstream.journal.segments import segment_path
from millstream.mill.actions import Action, Close, End, Fed, Fold, Inform, Look, Moment, Remove, Send, Warn, Write
from millstream.mill.messages import Busy, Failed, Joining, Report, Returned, Welcome, decode_from_lane, encode_message
from millstream.mill.planner import Planner
from tests.simulation.spark import Attempt, Connection, describe
from tests.simulation.turns import Broken, Event
from tests.simulation.waits import Waits

if TYPE_CHECKING:
    from tests.simulation.driver import Run

PlannerEvent = Callable[[Planner, Moment], list[Action]]


class Ended(Exception):
    """The run ends."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Desk:
    def __init__(self, run: Run, planner: Planner) -> None:
        self.run, self.world, self.planner = run, run.world, planner
        self.inbox: deque[tuple[str, PlannerEvent]] = deque()
        self.connections: dict[int, Connection] = {}
        self.greeting: list[Connection] = []
        self._numbers = 0
        self._chores: deque[tuple[str, Callable[[], None]]] = deque()
        self._waits = Waits(planner.settings.lane_timeout, lanes=len(planner.seats), now=self.world.seconds)

    def events(self) -> Iterator[Event]:
        run, name, who = self.run, f"run {self.run.number}", ("planner", self.run.number)

        def event(weight: float, what: str, act: Callable[[], None], who: tuple[str, int] | tuple[str, int, int] = who) -> Event:
            return Event(weight, f"{name} {what}", who, run.process, lambda: run.guarded(act))

        yield event(1.0, "ticks", lambda: self.tell(lambda planner, at: []))
        if self.inbox:
            yield event(3.0, f"hears {self.inbox[0][0]}", self._hear_inbox)
        for connection in list(self.connections.values()):
            lane = f"lane {connection.attempt.number} attempt {connection.attempt.id}"
            if connection.to_planner:
                yield event(3.0, f"hears {lane}", lambda c=connection: self._hear(c))
            elif not connection.lane_open or not connection.planner_open:
                label = f"finds the connection of {lane} closed"
                yield event(1.0, label, lambda c=connection: self._lost(c))
        for connection in self.greeting:
            lane = f"lane {connection.attempt.number} attempt {connection.attempt.id}"
            yield event(2.0, f"greets {lane}", lambda c=connection: self._greet(c), ("greet", run.number, connection.number))
        if self._chores:
            yield event(1.0, self._chores[0][0], self._do_chore, ("chores", run.number))
        else:
            yield event(0.1, "looks for what no commit names", self.look_for_leftovers, ("chores", run.number))

    # What the planner is told.

    def tell(self, event: PlannerEvent) -> None:
        self.act(event(self.planner, self.world.moment()))
        if self._waits.overdue(self.world.seconds):  # what has been said is heard before the clock is looked at
            for connection in list(self.connections.values()):
                while connection.to_planner:
                    self.act(self._heard(connection)(self.planner, self.world.moment()))
        at = self.world.moment()
        overdue = not self.planner._over and self._waits.overdue(at.seconds)
        actions = self.planner.on_tick(at)
        if overdue != any(isinstance(action, End) and action.kind == "LaneTimeout" for action in actions):
            raise Broken(f"lanes: {self._waits}; it is {at.seconds}, and the planner asks for {actions}")
        self.act(actions)

    def put(self, what: str, event: PlannerEvent) -> None:
        """It hears this when it comes to it."""
        self.inbox.append((what, event))

    def _hear_inbox(self) -> None:
        _, event = self.inbox.popleft()
        self.tell(event)

    def feed(self, fed: Fed) -> None:
        self.put(f"what {fed.injector} fed", lambda planner, at: planner.on_fed(fed, at))

    # Lanes.

    def connect(self, attempt: Attempt) -> Connection:
        self._numbers += 1
        connection = Connection(self._numbers, attempt)
        self.greeting.append(connection)
        return connection

    def _greet(self, connection: Connection) -> None:
        """The thread that lets a lane in: looks at the journal first."""
        self.greeting.remove(connection)
        if not connection.to_planner:
            connection.close_by_planner(self.world)
            return
        join = decode_from_lane(connection.to_planner.popleft())
        assert isinstance(join, Joining)
        self.sync_checkpoint(join.lane)
        epoch = join.state.at.epoch
        commit = self.run.commits.id_of(epoch) if epoch else None

        def event(planner: Planner, at: Moment) -> list[Action]:
            self.connections[connection.number] = connection
            actions = planner.on_join(connection.number, join, commit, at)
            for action in actions:
                if isinstance(action, Send) and action.connection == connection.number and isinstance(action.message, Welcome):
                    folder = self.world.lanes[join.lane]
                    folder.proved = max(folder.proved, connection.attempt.base)
                    self.world.oracle.welcomed(self.run, join, action.message)
            return actions

        self.put(f"lane {join.lane} attempt {join.attempt} with the state of epoch {epoch}", event)

    def sync_checkpoint(self, lane: int) -> None:
        """What Spark has written of a lane's checkpoint, files and folders (rule 14)."""
        folder = self.world.lanes[lane]
        folder.durable = len(folder.batches)

    def _hear(self, connection: Connection) -> None:
        self.tell(self._heard(connection))

    def _heard(self, connection: Connection) -> PlannerEvent:
        said = decode_from_lane(connection.to_planner.popleft())
        number = connection.number
        self.world.say(f"  {type(said).__name__} {describe(said)}")
        self._waits.heard(number, said, self.world.seconds)
        match said:
            case Report():
                return lambda planner, at: planner.on_report(number, said, at)
            case Failed():
                return lambda planner, at: planner.on_failed(number, said, at)
            case Busy():
                return lambda planner, at: planner.on_busy(number, said, at)
            case Returned():
                return lambda planner, at: planner.on_returned(number, said, at)
            case _:
                raise AssertionError(f"a lane said {said} where it should not")

    def _lost(self, connection: Connection) -> None:
        self.drop(connection.number)
        self.tell(lambda planner, at: planner.on_lost(connection.number, at))

    def drop(self, number: int) -> None:
        self._waits.lost(number, self.world.seconds)
        connection = self.connections.pop(number, None)
        if connection is not None:
            connection.close_by_planner(self.world)

    def close(self) -> None:
        """Its process is no more."""
        for connection in (*self.connections.values(), *self.greeting):
            connection.close_by_planner(self.world)

    # What the planner asks for.

    def act(self, actions: list[Action]) -> None:
        todo = deque(actions)
        planner, world = self.planner, self.world
        while todo:
            match todo.popleft():
                case Send(number, message):
                    connection = self.connections.get(number)
                    if connection is not None:
                        self._waits.sent(number, connection.attempt.number, message, world.seconds)
                    if connection is not None and connection.planner_open:
                        world.say(f"  sends {type(message).__name__} to lane {connection.attempt.number}: {describe(message)}")
                        connection.to_lane.append(encode_message(message))
                case Close(number):
                    world.say(f"  closes connection {number}")
                    self.drop(number)
                case Write(commit):
                    todo.extend(self.write(commit))
                case Remove(segments, notes):
                    self._chores.append((f"removes {segments} {notes}", lambda s=segments, n=notes: self.remove(s, n)))
                case Fold(_, needed):
                    snapshot = Snapshot.of(planner.ledger)
                    self._chores.append((f"folds {snapshot.number}, needed from {needed}", lambda s=snapshot, n=needed: self._fold(s, n)))
                case Look(otherwise):
                    if not Ownership(self.run.commits, self.run.fence, lambda: planner.ledger.number)():
                        raise Ended("Fenced", "a newer run owns the folder; this one stops")
                    raise Ended("Damage", otherwise)
                case End(kind, message):
                    raise Ended(kind, message)
                case Warn(_) | Inform(_):
                    pass

    def write(self, commit: Commit) -> list[Action]:
        planner, world = self.planner, self.world
        if not self.run.commits.create(commit):
            return planner.on_taken()
        world.say(f"  commit {commit.number} {commit.id}: took {commit.took} {_summary(commit)}")
        world.oracle.committed(self.run, commit)
        if commit.number % 2:  # what was fed meanwhile has come already, or has not yet
            self._hear_feeds()
        actions = planner.on_committed(world.moment())
        self.run.told_of(commit)
        return actions

    def _hear_feeds(self) -> None:
        while self.inbox and self.inbox[0][0].endswith((" fed", " offered", " unread")):
            what, event = self.inbox.popleft()
            self.world.say(f"  hears {what} while it waits for the disk")
            self.act(event(self.planner, self.world.moment()))

    def _do_chore(self) -> None:
        self._chores.popleft()[1]()

    def remove(self, segments: list[str], notes: list[str]) -> None:
        for segment in segments:
            self.world.disk.forget(segment_path(segment))
            self.world.disk.remove(segment_path(segment))
        for note in notes:
            self.run.notes.remove(note)
        self.world.oracle.check_needed()

    def look_for_leftovers(self) -> None:
        found = find_leftovers(self.world.disk, self.planner.ledger)
        self.put("what no commit names", lambda planner, at: planner.on_leftovers(found, at))

    def _fold(self, snapshot: Snapshot, needed_from: int) -> None:
        self.run.commits.compact(snapshot)
        self.run.commits.drop_merged(needed_from)


def _summary(commit: Commit) -> str:
    found = [f"{frame.segment}@{frame.lane}:{len(frame.parts)}{'+rows' if frame.rows else ''}" for frame in commit.frames]
    more = {name: getattr(commit, name) for name in ("checkpoints", "logged", "delivered", "free") if getattr(commit, name)}
    return f"frames {found} {more}"
