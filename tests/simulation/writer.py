"""The writer of a run: its machine and its outputs are the product's; a shell around them stands for process, socket and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millstream.core.ledger import Commit
from millstream.errors import Fenced, LogError, MillstreamError
from millstream.journal.errors import Missing
from millstream.targets.lacking import InLog
from millstream.targets.output import WriterOutput
from millstream.timestamp import Duration, Timestamp
from millstream.writer import machine as writing
from millstream.writer.log_output import LOG, LogOutput
from millstream.writer.performing import Done, WasMissing, WasRefused, perform
from millstream.writer.process import _check
from tests.simulation.deliveries import FilesFolder, Reading, SimFiles, SimSteps
from tests.simulation.scene import DeliveryOf, Kind
from tests.simulation.tables import DeltaFolder, SimDelta
from tests.simulation.turns import Event

if TYPE_CHECKING:
    from tests.simulation.driver import Run
    from tests.simulation.world import World


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
        self.deliveries = {each.name: each for each in world.scene.deliveries(run.program, Kind.TABLE, Kind.FILES)}
        self.process = WriterProcess(self)
        self._machine: writing.WriterMachine | None = None
        self._outputs: dict[str, WriterOutput] = {}
        self._heard: deque[tuple[str, Any]] = deque()
        self._asked: deque[tuple[str, int]] = deque()
        self._writes: dict[str, writing.WriteParts] = {}
        self._reading = Reading(world, run)
        self._generation = 0

    def position(self, output: str = LOG) -> int:
        return 0 if self._machine is None else self._machine.position(output)

    def describe(self) -> str:
        return "no writer" if self._machine is None else f"{ {name: self.position(name) for name in self._outputs} }"

    def close(self) -> None:
        for output in self._outputs.values():
            if isinstance(output, SimFiles):
                output.close()

    def lost(self) -> None:
        self.close()
        self._machine, self._outputs = None, {}
        self._heard.clear()
        self._asked.clear()
        self._writes.clear()
        self._generation += 1
        self.process = WriterProcess(self)

    def notify(self, commit: Commit) -> None:
        if self._machine is not None:
            self._heard.append(("commit", (commit.number, commit.plain_parts())))

    def events(self) -> Iterator[Event]:
        run = self.run
        name, who = f"writer of run {run.number}", ("writer", run.number, self._generation)
        if self._machine is None:
            yield Event(1.0, f"{name} begins", who, self.process, lambda: self._mine(self._begin))
            return
        if self._heard:
            yield Event(1.0, f"{name} hears {self._heard[0][0]}", who, self.process, lambda: self._mine(self._hear))
        for output in self._writes:
            hands = ("hands", run.number, self._generation, output)
            yield Event(1.0, f"{name} writes {output}", hands, self.process, lambda output=output: self._mine(lambda: self._write(output)))
        yield Event(0.3, f"{name} ticks", who, self.process, lambda: self._mine(self._tick))
        if self._asked:
            label = f"run {run.number} answers its writer"
            yield Event(1.0, label, ("answers", run.number), run.process, lambda: run.guarded(self._answer))
        if self.world.profile.kill_writer:
            yield Event(self.world.profile.kill_writer * 0.2, f"{name} is killed", who, self.process, lambda: self.process.die("killed"))

    def _mine(self, act: Callable[[], None]) -> None:
        """What it meets is said to the driver, which ends the run: as overtaken if it is, for only an owner blames the disk (rule 12)."""
        try:
            act()
        except (MillstreamError, OSError) as error:
            self.run.end(Fenced("a newer run owns the folder; this one stops") if self._reading_fenced() else error)

    def _reading_fenced(self) -> bool:
        with self.world.unseen():
            return not self._reading.still_owner()

    def _now(self) -> Timestamp:
        return Timestamp(int(self.world.seconds * 1_000_000))

    def _begin(self) -> None:
        ledger, generation = self.run.planner.ledger, self._generation
        newest, logged = ledger.number, ledger.logged
        unkept = frozenset(name for name, stream in self.run.graph.streams.items() if not stream.kept)
        outputs: dict[str, WriterOutput] = {LOG: LogOutput(self.world.table)}
        begun = {LOG: writing.Begun(None, outputs[LOG].position(), unkept=unkept, is_log=True)}
        _check(LOG, "the log", begun[LOG].position, logged, newest)
        for name, delivery in self.deliveries.items():
            output, delivered = self._output(delivery, newest), ledger.delivered.get(name, 0)
            outputs[name] = output
            every = Duration(self.world.rng.choice((1, 1_000_000)))
            begun[name] = writing.Begun(output.streams, output.position(), output.open_until(), every=every)
            _check(name, name, begun[name].position, delivered, newest)
        every = Duration(self.world.rng.choice((0, 1_000_000)))
        if generation != self._generation:
            return
        self._outputs = outputs
        self._machine = writing.WriterMachine(begun, newest=newest, now=self._now(), every=every)
        for name, each in begun.items():
            self._say(name, each.position)
        self._act(self._machine.on_start(self._now()))

    def _output(self, of: DeliveryOf, newest: int) -> WriterOutput:
        delivered, target = self.run.planner.ledger.delivered.get(of.name, 0), self.world.target(of)
        steps = SimSteps(self.world, of.name, self.run.fence)
        if isinstance(target, DeltaFolder):
            steps.check_there(of.name, delivered=delivered)
            steps.close()
            return SimDelta(target, begins=delivered)
        assert isinstance(target, FilesFolder)
        steps.check(of.name, delivered=delivered, newest=newest)
        return SimFiles(target, steps, self._reading.still_owner)

    def _hear(self) -> None:
        assert self._machine is not None
        kind, what = self._heard.popleft()
        if kind == "commit":
            self._act(self._machine.on_commit(*what, self._now()))
        else:
            self._act(self._machine.on_tail(*what, self._now()))

    def _tick(self) -> None:
        assert self._machine is not None
        self._act(self._machine.on_tick(self._now()))

    def _answer(self) -> None:
        generation = self._generation
        output, after = self._asked.popleft()
        delivery = None if output == LOG else output
        try:
            tail = self._reading.tail(delivery, after)
        except Missing:  # commits that the log has by now went while they were read
            tail = self._reading.tail(delivery, after)
        if generation == self._generation:
            self._heard.append(("tail", (output, tail)))

    def _write(self, output: str) -> None:
        generation = self._generation
        write = self._writes.pop(output)
        pieces = [f"log up to {piece.upto}" if isinstance(piece, InLog) else piece.number for piece in write.pieces]
        self.world.say(f"  ({write.after}, {write.to}]: {pieces}")
        log: Any = self.world.table
        outcome = perform(write, self._outputs[output], self._reading.reader, log)
        if generation != self._generation or self._machine is None:
            return
        match outcome:
            case Done(output, upto):
                self._act(self._machine.on_done(output, upto, self._now()))
            case WasRefused(output, position, why):
                self._act(self._machine.on_refused(output, position, why, self._now()))
            case WasMissing(output, why):
                self.world.count("output behind")
                self._act(self._machine.on_missing(output, why, self._now()))

    def _act(self, actions: Sequence[writing.Action]) -> None:
        for action in actions:
            match action:
                case writing.AskTail(output, after):
                    self._asked.append((output, after))
                case writing.WriteParts():
                    self._writes[action.output] = action
                case writing.SayWritten(output, upto):
                    self._say(output, upto)
                case writing.Fail(_, message):
                    raise LogError(message)

    def _say(self, output: str, upto: int) -> None:
        if output == LOG:
            self.run.desk.put(f"the log has {upto}", lambda planner, at: planner.on_logged(upto, at))
        else:
            self.run.desk.put(f"{output} has {upto}", lambda planner, at: planner.on_delivered(output, upto, at))
