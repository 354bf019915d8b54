"""Spark as lanes see it: batches of state, attempts that are lost, given up, or live on; and the connection to a planner."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millstream.core.lanes import Lanes
from millstream.journal.names import ByLane, prefix_of
from millstream.journal.segments import SegmentReader, SegmentWriter
from millstream.mill.held import Held
from millstream.mill.lane import Lane
from millstream.mill.messages import Busy, Failed, Work, decode_to_lane, encode_message
from tests.simulation.sources import reader_of
from tests.simulation.turns import Event

if TYPE_CHECKING:
    from tests.simulation.driver import Run as SimRun
    from tests.simulation.world import World


class LaneFolder:
    """The checkpoint of a lane's query: the state after each batch. `durable` of them are synced."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.batches: list[dict[str, bytes]] = []
        self.durable = 0
        self.proved = 0  # batches that a lane joined with, at most: Spark falls back one behind that, no further

    def lose_power(self, world: World) -> None:
        kept = world.rng.randint(min(self.durable, len(self.batches)), len(self.batches))
        del self.batches[kept:]
        self.durable = kept

    def state(self, batches: int) -> dict[str, bytes]:
        return self.batches[batches - 1] if batches else {}


class Store:
    """The state of a batch, and what an attempt has written over it; nobody sees that before Spark commits."""

    def __init__(self, state: dict[str, bytes]) -> None:
        self._state, self._written = state, dict[str, bytes | None]()

    def get(self, key: str) -> bytes | None:
        return self._written[key] if key in self._written else self._state.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._written[key] = value

    def remove(self, key: str) -> None:
        self._written[key] = None

    def merged(self) -> dict[str, bytes]:
        both = {**self._state, **self._written}
        return {key: value for key, value in both.items() if value is not None}


class Connection:
    """Two queues. Within one nothing is reordered; who closes may take with him what is on its way."""

    def __init__(self, number: int, attempt: Attempt) -> None:
        self.number, self.attempt = number, attempt
        self.to_planner: deque[bytes] = deque()
        self.to_lane: deque[bytes] = deque()
        self.planner_open = self.lane_open = True
        self.greeted = False

    def close_by_planner(self, world: World) -> None:
        if self.planner_open:
            self.planner_open = False
            if self.to_lane and world.rng.random() < 0.5:
                self.to_lane.clear()

    def close_by_lane(self, world: World, *, lossy: bool = False) -> None:
        if self.lane_open:
            self.lane_open = False
            if lossy and self.to_planner and world.rng.random() < 0.5:
                self.to_planner.clear()


class LaneProcess:
    """A Python worker of Spark's: it keeps its lane from batch to batch, if that returned as it should."""

    def __init__(self, world: World, run: SimRun, lane: int, name: str) -> None:
        self.world, self.run, self.number, self.name = world, run, lane, name
        self.alive = True
        self.attempt: Attempt | None = None
        sizes = world.sizes
        lanes = Lanes(sizes.buckets, sizes.lanes)
        self.store = Store({})
        held = Held(self.store, memory=sizes.memory)
        writer = SegmentWriter(world.disk, prefix_of(ByLane(lane)), world.unique)
        reader = SegmentReader(world.disk, sleep=lambda seconds: None, timeout=0.02)
        graph = world.scene.unpacked(run.program)
        self.lane = Lane(graph, lane, lanes, held, writer, reader, reader_of(world, graph))

    def attach(self, store: Store) -> None:
        self.store = store
        self.lane.held.attach(store)

    def die(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self.world.say(f"{self.name} dies: {why}")
        if self.attempt is not None:
            self.attempt.fail(lossy=True)


class Query:
    """The query of a lane in one run: one attempt at a time that Spark believes in, and others that it has given up."""

    def __init__(self, world: World, run: SimRun, lane: int) -> None:
        self.world, self.run, self.lane = world, run, lane
        self.folder = world.lanes[lane]
        self.attempt: Attempt | None = None
        self.kept: list[LaneProcess] = []  # workers that returned and wait
        self.base = 0
        self.started = False

    def events(self) -> Iterator[Event]:
        p, who = self.world.profile, ("query", self.run.number, self.lane)
        name = f"of run {self.run.number} lane {self.lane}"
        if self.attempt is None:
            yield Event(2.0, f"Spark begins an attempt {name}", who, self.run.process, self.begin)
            return
        attempt = self.attempt
        if attempt.over and not attempt.returned:
            yield Event(2.0, f"Spark sees that attempt {attempt.id} {name} failed", who, self.run.process, self.retry)
        elif p.give_up and not attempt.over:
            yield Event(p.give_up, f"Spark gives up attempt {attempt.id} {name}", who, self.run.process, self.give_up)
        if attempt.returned:
            yield Event(2.0, f"Spark commits the batch of attempt {attempt.id} {name}", who, self.run.process, lambda: self.commit(attempt))
            if p.lose_result:
                yield Event(p.lose_result, f"Spark loses the result of attempt {attempt.id} {name}", who, self.run.process, self.retry)
        if p.late_result:
            weight = p.late_result if attempt.returned else p.late_result * 0.1  # where both are there, it takes either
            for other in self.world.attempts:
                if (
                    other.run is self.run
                    and other.number == self.lane
                    and other.returned
                    and other is not attempt
                    and other.base == self.base
                ):
                    label = f"Spark takes the result of attempt {other.id} {name}, which it had given up"
                    yield Event(weight, label, who, self.run.process, lambda other=other: self.commit(other))

    def begin(self) -> None:
        world, folder = self.world, self.folder
        if not self.started:
            self.started = True
            self.base = len(folder.batches)
            if self.base and self.base > folder.proved - 1 and world.chance(world.profile.fall_back):
                self.base -= 1
                world.say(f"Spark falls back to batch {self.base} of lane {self.lane}")
                world.clean = None
                for other in world.runs:  # one that is on believes in the state that it joined with
                    other.fell_back_under_it |= other is not self.run
                world.count("fall back")
                del folder.batches[self.base :]
                folder.durable = min(folder.durable, self.base)
        if self.base > len(folder.batches):  # another run's query fell back under this one
            self.base = len(folder.batches)
        self.run.attempts += 1
        process = None
        if self.kept and (drawn := world.rng.random()) < 0.8:  # the one that returned last, or any
            process = self.kept.pop(-1 if drawn < 0.5 else world.rng.randrange(len(self.kept)))
        if process is None or not process.alive:
            process = LaneProcess(world, self.run, self.lane, world.unique("worker "))
        attempt = Attempt(world, self.run, self, self.run.attempts, self.base, process)
        process.attempt = attempt
        process.attach(attempt.store)
        world.attempts.append(attempt)
        self.attempt = attempt

    def retry(self) -> None:
        self.attempt = None
        if self.world.rng.random() < 0.5:
            self.started = False  # the query is started again, not only its task

    def give_up(self) -> None:
        """It lives on, and may wake only when much has happened."""
        assert self.attempt is not None
        self.attempt.pace = self.world.rng.choice((1.0, 0.1, 0.01))
        self.attempt = None
        self.world.count("zombie")

    def commit(self, attempt: Attempt) -> None:
        attempt.returned = False
        self.attempt = None
        if attempt.base != len(self.folder.batches) or attempt.base != self.base:
            self.started = False  # another query has made this batch; this one ends, and is started again
            return
        self.world.clean = None  # of an older run, it may be a state of before the stop
        state = attempt.store.merged()
        self.world.oracle.states.check(self.lane, state)
        self.folder.batches.append(state)
        self.base += 1
        self.world.count("batch")


class Pause(enum.Enum):
    """How an epoch takes long."""

    SLOW = "is slow"  # goes from key to key, and comes to its end
    STUCK = "hangs in a key"  # its thread still says which
    SILENT = "says nothing more"


class Attempt:
    """One task attempt of a lane."""

    def __init__(self, world: World, run: SimRun, query: Query, id: int, base: int, process: LaneProcess) -> None:
        self.world, self.run, self.query, self.id, self.base, self.process = world, run, query, id, base, process
        self.number = query.lane
        self.store = Store(query.folder.state(base))
        self.connection: Connection | None = None
        self.over = self.returned = False
        self.pace = 1.0
        self._pause: Pause | None = None
        self._begun: bytes | None = None  # the message that it is busy with, if that takes long

    def events(self) -> Iterator[Event]:
        if self.over or not self.process.alive:
            return
        p, who = self.world.profile, ("lane", self.process.name)
        name = f"lane {self.number} attempt {self.id} of run {self.run.number}"
        connection = self.connection

        def event(weight: float, what: str, act: Any) -> Event:
            return Event(weight * (self.pace if p.give_up else 1.0), f"{name} {what}", who, self.process, act)

        if connection is None:
            if self.run.process.alive and not self.run.paused:
                if self.run.state == "up":
                    yield event(2.0, "joins", self.join)
            else:
                yield event(0.5, "finds no planner", self.fail)
        elif self._begun is not None:  # nobody looks at the connection meanwhile
            if self._pause is not Pause.SILENT and connection.planner_open:
                yield event(0.5, "says what is at hand", self.say)
            if self._pause is Pause.SLOW:
                yield event(0.3, "goes on", self.hear)
        elif connection.to_lane:
            yield event(3.0, "hears", self.hear)
        elif not connection.planner_open:
            yield event(1.0, "finds its connection closed", self.fail)
        elif self.process.lane.writing_back:
            yield event(1.0, "writes back", self.rest)
        if p.kill_lane:
            yield event(p.kill_lane * 0.3, "is killed", lambda: self.process.die("killed"))
        if p.cut and connection is not None and connection.planner_open:
            yield event(p.cut * 0.3, "is cut off", lambda: self.cut(connection))

    def join(self) -> None:
        join = self.process.lane.join(self.id, self.process.name)
        self.connection = self.run.desk.connect(self)
        self.connection.to_planner.append(encode_message(join))

    def cut(self, connection: Connection) -> None:
        """The network: both sides find the connection closed."""
        connection.close_by_planner(self.world)
        connection.close_by_lane(self.world, lossy=True)

    def say(self) -> None:
        """The thread of a lane that says once a second where it is."""
        assert self.connection is not None
        key = f"{self.world.rng.randrange(5) if self._pause is Pause.SLOW else 0}"
        self.connection.to_planner.append(encode_message(Busy("n0", key)))

    def hear(self) -> None:
        connection, lane = self.connection, self.process.lane
        assert connection is not None
        content = connection.to_lane.popleft() if self._begun is None else self._begun
        message = decode_to_lane(content)
        if isinstance(message, Work) and self._begun is None and self.run.has_lane_timeout and self.world.chance(self.world.profile.hang):
            self._begun, self._pause = content, self.world.rng.choice((Pause.SLOW, Pause.SLOW, Pause.STUCK, Pause.SILENT))
            self.world.say(f"  epoch {message.header.epoch}: it {self._pause.value}")
            self.world.count(self._pause.value)
            return
        self._begun = self._pause = None
        self.world.say(f"  {type(message).__name__} {describe(message)}")
        answer = lane.hear(message)
        if answer is not None:
            self.world.say(f"  answers {type(answer).__name__} {describe(answer)}")
            connection.to_planner.append(encode_message(answer))
        if isinstance(answer, Failed):
            self.fail()
        elif lane.finished:
            self.over = self.returned = True
            connection.close_by_lane(self.world)
            self.process.attempt = None
            self.query.kept.append(self.process)

    def rest(self) -> None:
        self.process.lane.rest()

    def fail(self, *, lossy: bool = False) -> None:
        """The task fails; what it wrote is gone with it, and nothing of it is kept in its process (rule 6)."""
        if self.over:
            return
        self.over = True
        if self.connection is not None:
            self.connection.close_by_lane(self.world, lossy=lossy)
        self.process.alive = False


def describe(message: Any) -> str:
    parts = []
    for name in ("epoch", "try_number", "at", "committed", "kind", "message"):
        if hasattr(message, name):
            parts.append(f"{name}={getattr(message, name)}")
    if hasattr(message, "header"):
        parts.append(f"epoch={message.header.epoch} given={len(message.given)} due={message.due}")
    if getattr(message, "redo", None):
        parts.append(f"redo={[redo.epoch for redo in message.redo]}")
    return " ".join(parts)
