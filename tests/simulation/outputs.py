"""The ends: the writer with its table, and deliveries with their targets. The machines are the product's; around them is a shell."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from millstream.core.ledger import Commit
from millstream.core.parts import Columns
from millstream.errors import LogError, MillstreamError
from millstream.journal.errors import Missing
from millstream.journal.ownership import Ownership
from millstream.journal.segments import SegmentReader
from millstream.targets.delivery import (
    Action,
    CallTarget,
    Content,
    DeliveryMachine,
    ReadHistory,
    ReadParts,
    ReadTail,
    Say,
    Skip,
    State,
    Stretch,
)
from millstream.targets.lacking import Tail
from millstream.targets.steps import Steps
from millstream.targets.tail import read_tail
from millstream.timestamp import Duration, Timestamp
from millstream.writer import machine as writing
from millstream.writer.log_output import LOG, LogOutput
from millstream.writer.performing import Done, WasRefused, perform
from tests.simulation.laws import Broken
from tests.writer.memory_table import MemoryTable

if TYPE_CHECKING:
    from tests.simulation.driver import Run
    from tests.simulation.world import Event, World

EPOCHS_AT_ONCE = 5


class SimTable(MemoryTable):
    """The log's table; every step is a place to be killed at."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.on_step = lambda what: world.point(f"the table: {what}")


class SimTarget:
    """A target without a transaction: it knows steps by their number, and a repeated one must be the same."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[list[tuple[str, int, int]]] = []

    def call(self, k: int, ids: list[tuple[str, int, int]]) -> None:
        if k < len(self.steps):
            if self.steps[k] != ids:
                raise Broken(f"delivery {self.name} step {k} was {self.steps[k]}, then {ids}")
            return
        if k > len(self.steps):
            raise Broken(f"delivery {self.name} step {k} follows step {len(self.steps) - 1}")
        seen = {each for step in self.steps for each in step}
        if twice := [each for each in ids if each in seen]:
            raise Broken(f"delivery {self.name} step {k} has {twice} again")
        self.steps.append(ids)


class Reading:
    """The journal as the ends of a run see it."""

    def __init__(self, world: World, run: Run) -> None:
        self.world, self.run = world, run
        self.reader = SegmentReader(world.disk, sleep=lambda seconds: None, patience=0.02)

    def tail(self, delivery: str | None, after: int) -> Tail:
        planner = self.run.planner
        assert planner is not None
        return read_tail(self.run.commits, planner.ledger, delivery, after=after, at_most=EPOCHS_AT_ONCE)

    def still_owner(self) -> bool:
        planner = self.run.planner
        assert planner is not None
        return Ownership(self.run.commits, self.run.fence, lambda: planner.ledger.number)()


class SimDelivery:
    """A delivery in the driver."""

    def __init__(self, world: World, run: Run, name: str) -> None:
        self.world, self.run, self.name = world, run, name
        planner = run.planner
        assert planner is not None
        self.stream = world.scene.stream_of(run.program, name)
        self._reading = Reading(world, run)
        newest = planner.ledger.number
        self._steps = Steps(world.folder / "deliveries" / name, fence=run.fence, identity=name)
        self._steps.check(name, delivered=planner.ledger.delivered.get(name, 0), newest=newest)
        self._most, self._places = world.rng.choice((1, 4, 1_000_000)), world.rng.choice((1, 50_000))
        self._actions: list[Action] = []
        self._begin(newest)
        self.target = world.targets.setdefault(name, SimTarget(name))

    def _begin(self, newest: int) -> None:
        self._machine = DeliveryMachine(
            position=self._steps.position, open=self._steps.open, newest=newest, max_records=self._most, max_places=self._places
        )
        self._actions = self._machine.on_start()

    @property
    def position(self) -> int:
        return self._machine.position if self._machine.has(self._machine.position) else 0

    def notify(self, commit: Commit) -> None:
        self._actions += self._machine.on_commit(commit.number, commit.plain_parts(self.stream))

    def close(self) -> None:
        self._steps.close()

    def events(self) -> Iterator[Event]:
        from tests.simulation.world import Event

        if self._actions and self._machine.state is not State.ENDED:
            what = type(self._actions[0]).__name__
            name = f"run {self.run.number} delivery {self.name} {what}"
            yield Event(1.0, name, ("delivery", self.run.number, self.name), self.run.process, lambda: self.run._guarded(self._do))

    def _do(self) -> None:
        try:
            self._actions += self._perform(self._actions.pop(0))()
        except LogError as error:
            if not self._reading.still_owner():
                self._machine.on_overtaken()
            elif isinstance(error, Missing):
                self.world.count("delivery behind")
                self._actions += self._machine.on_missing()
            else:
                raise

    def _perform(self, action: Action) -> Callable[[], list[Action]]:
        machine, reading = self._machine, self._reading
        match action:
            case ReadTail(after):
                tail = reading.tail(self.name, after)
                return lambda: machine.on_tail(tail)
            case ReadHistory(after, upto, at_most):
                stretch = self._history(after, upto, at_most)
                return lambda: machine.on_read(stretch.contents, upto=None if at_most is None else stretch.upto)
            case ReadParts(places):
                contents = [Content(part.origin, part.major, reading.reader.part(segment, part)) for segment, part in places]
                return lambda: machine.on_read(contents)
            case CallTarget():
                return self._call(action)
            case Skip(upto):
                self._steps.skip(upto)
                self._say(upto)
            case Say(position):
                self._say(position)
        return list

    def _say(self, position: int) -> None:
        self.run.inbox.append((f"{self.name} has {position}", lambda planner, at: planner.on_delivered(self.name, position, at)))

    def _history(self, after: int, upto: int, at_most: int | None) -> Stretch:
        found = [each for each in self.world.table.found(self.stream) if after < each[0] <= upto]
        contents: list[Content] = []
        records = 0
        for epoch, of_epoch in groupby(found, key=lambda each: each[0]):
            for (origin, major), some in groupby(of_epoch, key=lambda each: (each[1], each[2])):
                rows = list(some)
                contents.append(
                    Content(origin, major, Columns([r[4] for r in rows], [r[5] for r in rows], [r[6] for r in rows], [r[3] for r in rows]))
                )
                records += len(rows)
            if at_most is not None and records >= at_most:
                return Stretch(epoch, contents)
        return Stretch(upto, contents)

    def _call(self, action: CallTarget) -> Callable[[], list[Action]]:
        step = action.open or self._steps.begin(action.a, action.b)
        self.world.point("a delivery looks whether its run still owns")
        if not self._reading.still_owner():
            return self._machine.on_overtaken
        ids = sorted((c.origin, c.major, minor) for c in action.contents for minor in c.columns.minors)
        self.world.oracle.check_delivered(self.name, self.stream, ids, action.a, action.b)
        self.target.call(step.k, ids)
        self.world.point("a delivery says that it is done")
        self._steps.done()
        return self._machine.on_done


class WriterProcess:
    def __init__(self, writer: SimWriter) -> None:
        self.writer, self.alive = writer, True

    def die(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self.writer.world.say(f"the writer of run {self.writer.run.number} dies: {why}")
        self.writer.lost()


class SimWriter:
    """The writer process of a run, and what the driver does for it. It ends with its connection, and is started again."""

    def __init__(self, world: World, run: Run) -> None:
        self.world, self.run = world, run
        self.process = WriterProcess(self)
        self._machine: writing.WriterMachine | None = None
        self._output: LogOutput | None = None
        self._heard: deque[tuple[str, Any]] = deque()
        self._asked: deque[int] = deque()
        self._writes: deque[writing.Write] = deque()
        self._reading = Reading(world, run)
        self._generation = 0

    @property
    def position(self) -> int:
        return 0 if self._machine is None else self._machine.position(LOG)

    def lost(self) -> None:
        self._machine = None
        self._heard.clear()
        self._asked.clear()
        self._writes.clear()
        self._generation += 1
        self.process = WriterProcess(self)

    def notify(self, commit: Commit) -> None:
        if self._machine is not None:
            self._heard.append(("commit", (commit.number, commit.plain_parts())))

    def events(self) -> Iterator[Event]:
        from tests.simulation.world import Event

        run = self.run
        name, who = f"writer of run {run.number}", ("writer", run.number, self._generation)
        if self._machine is None:
            yield Event(1.0, f"{name} begins", who, self.process, lambda: self._mine(self._begin))
            return
        if self._heard:
            yield Event(1.0, f"{name} hears {self._heard[0][0]}", who, self.process, lambda: self._mine(self._hear))
        if self._writes:
            hands = ("hands", run.number, self._generation)
            yield Event(1.0, f"{name} writes", hands, self.process, lambda: self._mine(self._write))
        yield Event(0.3, f"{name} ticks", who, self.process, lambda: self._mine(self._tick))
        if self._asked:
            label = f"run {run.number} answers its writer"
            yield Event(1.0, label, ("answers", run.number), run.process, lambda: run._guarded(self._answer))
        if self.world.profile.kill_writer:
            yield Event(self.world.profile.kill_writer * 0.2, f"{name} is killed", who, self.process, lambda: self.process.die("killed"))

    def _mine(self, act: Callable[[], None]) -> None:
        """What it meets is said to the driver, which ends the run."""
        try:
            act()
        except MillstreamError as error:
            if not self._reading_fenced():
                self.run.end(error)
            else:
                self.lost()

    def _reading_fenced(self) -> bool:
        with self.world.unseen():
            return not self._reading.still_owner()

    def _now(self) -> Timestamp:
        return Timestamp(int(self.world.seconds * 1_000_000))

    def _begin(self) -> None:
        planner = self.run.planner
        assert planner is not None
        newest, logged = planner.ledger.number, planner.ledger.logged
        output = LogOutput(self.world.table)
        position = output.position()
        if position < logged:
            raise Broken(f"the log ends with {position}, and the commits say {logged}")
        begun = writing.Begun(None, position, unkept=frozenset(planner.ledger.plant.unkept), is_log=True)
        every = self.world.rng.choice((0, 1_000_000))
        self._output = output
        self._machine = writing.WriterMachine({LOG: begun}, newest=newest, now=self._now(), every=Duration(every))
        self._say(position)
        self._act(self._machine.on_start(self._now()))

    def _hear(self) -> None:
        assert self._machine is not None
        kind, what = self._heard.popleft()
        if kind == "commit":
            self._act(self._machine.on_commit(*what, self._now()))
        else:
            self._act(self._machine.on_tail(LOG, what, self._now()))

    def _tick(self) -> None:
        assert self._machine is not None
        self._act(self._machine.on_tick(self._now()))

    def _answer(self) -> None:
        generation = self._generation
        after = self._asked.popleft()
        tail = self._reading.tail(None, after)
        if generation == self._generation:
            self._heard.append(("tail", tail))

    def _write(self) -> None:
        assert self._machine is not None
        assert self._output is not None
        generation = self._generation
        write = self._writes.popleft()
        self.world.say(f"  ({write.after}, {write.to}]")
        outcome = perform(write, self._output, self._reading.reader, None)  # type: ignore[arg-type]
        if generation != self._generation or self._machine is None:
            return
        match outcome:
            case Done(output, upto):
                self._act(self._machine.on_done(output, upto, self._now()))
            case WasRefused(output, position, why):
                self._act(self._machine.on_refused(output, position, why, self._now()))

    def _act(self, actions: Sequence[writing.Action]) -> None:
        for action in actions:
            match action:
                case writing.Ask(_, after):
                    self._asked.append(after)
                case writing.Write():
                    self._writes.append(action)
                case writing.Say(_, upto):
                    self._say(upto)
                case writing.Fail(_, message):
                    raise LogError(message)

    def _say(self, upto: int) -> None:
        self.run.inbox.append((f"the log has {upto}", lambda planner, at: planner.on_logged(upto, at)))
