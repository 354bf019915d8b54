"""One process in which everything runs by turns, in the order that a seed chooses: drivers, lanes, Spark, the disk, the clock.

A step is one event of one actor. Inside of it, before every step on the disk, the actor may be killed, the power may go, or
another actor may have its turn first: so a planner can sleep in the middle of a commit while another run takes over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import millstream as ms
from millstream.mill.actions import Moment
from millstream.timestamp import Timestamp
from tests.core.cases import START
from tests.journal.simdisk import SimDisk
from tests.simulation.deliveries import FilesFolder, SimTarget
from tests.simulation.driver import Run
from tests.simulation.inputs import SparkInputFolder
from tests.simulation.laws import Oracle
from tests.simulation.profile import Profile, Sizes, drawn
from tests.simulation.scene import QUIET, Chance, DeliveryOf, Kind, Scene
from tests.simulation.sources import SimSource
from tests.simulation.spark import Attempt, LaneFolder
from tests.simulation.tables import DeltaFolder, SimTable
from tests.simulation.turns import Event, Killed, PowerLoss

NESTED = 3  # actors that may be in the middle of a step


class World:
    def __init__(self, seed: int, profile: Profile, *, folder: Path) -> None:
        self.rng = random.Random(seed)
        Chance.drawn = 0
        self.profile = self.usual = drawn(profile, self.rng)
        self.folder = folder
        self.trace: list[str] = []
        self.counts: dict[str, int] = {}
        rng = self.rng
        self.sizes = Sizes.drawn(rng, profile)
        beside = random.Random(f"{seed} sources")
        idle_after = beside.choice((None, ms.MILLISECOND, ms.SECOND))
        quiet = random.Random(f"{seed} quiet").choice((None, None, ms.MILLISECOND, ms.SECOND))
        self.scene = Scene(rng, self.profile, keys=self.sizes.keys, idle_after=idle_after, quiet=quiet)
        self.disk = SimDisk(random.Random(rng.getrandbits(32)))
        self.disk.on_step = self._on_disk_step
        self.disk.clock = lambda: Timestamp(self.clock)
        self.clock, self.seconds = START, 0.0
        self.uniques = 0
        self.oracle = Oracle(self)
        self.lanes = [LaneFolder(n) for n in range(self.sizes.lanes)]
        self.table = SimTable(self)
        self.targets: dict[str, SimTarget | DeltaFolder | FilesFolder] = {}
        by_spark = [name for name in self.scene.sources if name != QUIET and (rng.random() < 0.4 or profile.lazy_notes)]
        self.inputs = {name: SparkInputFolder(name) for name in by_spark}
        self.scene.unheard = frozenset(by_spark)
        by_threads = [(name, entries) for name, entries in self.scene.sources.items() if name not in self.inputs]
        self.sources = {name: SimSource(beside, profile, name, entries) for name, entries in by_threads}
        self.runs: list[Run] = []
        self.attempts: list[Attempt] = []
        self.program = 0
        self.healed = False
        self.disk_faults = 0
        self.clean: int | None = None  # the fence of a run that was stopped as it should, if nothing came since
        self.turns = 0
        self._stack: list[Event] = []
        self._hooks_off = 0

    # For all.

    def unique(self, what: str = "") -> str:
        self.uniques += 1
        return f"{what}{self.uniques}"

    def moment(self) -> Moment:
        return Moment(Timestamp(self.clock), self.seconds)

    def say(self, line: str) -> None:
        self.trace.append(f"{chr(32) * 2 * len(self._stack)}{line}".replace(str(self.folder), "FOLDER"))

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def chance(self, probability: float) -> bool:
        """Draws nothing where it cannot happen: a calm world costs nothing."""
        return probability > 0 and self.rng.random() < probability

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """The oracle looks at the disk: nothing happens meanwhile."""
        self._hooks_off += 1
        log, steps = len(self.disk.log), self.disk.steps
        try:
            yield
        finally:
            self._hooks_off -= 1
            del self.disk.log[log:]
            self.disk.steps = steps

    def point(self, what: str) -> None:
        """A place at which the actor at hand may be killed, or another may have its turn."""
        self._on_disk_step(what)

    def _on_disk_step(self, what: str) -> None:
        if self._hooks_off or not self._stack:
            return
        at = self._stack[-1]
        if self.chance(self._likelier(self.profile.killed_at, what, self.profile.killed_at_step)):
            self.say(f"killed before: {what}")
            raise Killed(what)
        if self.chance(self.profile.power_at_step):
            raise PowerLoss(what)
        nested = self._likelier(self.profile.nested_at, what, self.profile.nested)
        if len(self._stack) < NESTED and self.turns < self.profile.steps * NESTED and self.chance(nested):
            for _ in range(self.rng.choice(self.profile.turns_nested)):
                self._turn(f"before {what}: ")
                if not at.process.alive:
                    raise Killed(what)

    @staticmethod
    def _likelier(at: str, what: str, usual: float) -> float:
        return max(0.3, usual) if at and at in what else usual

    # The turns.

    def _events(self) -> Iterator[Event]:
        p = self.profile
        yield Event(1.0, "time", ("time",), self, self._pass_time)
        for run in self.runs:
            if run.process.alive:
                yield from run.events()
        self.attempts = [attempt for attempt in self.attempts if not attempt.over or attempt.returned]
        for attempt in self.attempts:
            yield from attempt.events()
        alive = [run for run in self.runs if run.process.alive]
        if not any(run.state == "starting" or run.fence == self.oracle.ledger.fence for run in alive):
            yield Event(3.0, "start", ("start",), self, self._start)
        elif len(alive) < 3 and p.takeover:
            yield Event(p.takeover, "take over", ("start",), self, self._start)
        if p.power:
            yield Event(p.power, "power loss", ("power",), self, self._lose_power)
        if p.disk_full and self.disk.faults.space is None:
            yield Event(p.disk_full, "disk full", ("disk",), self, self._fill_disk)
        elif self.disk.faults.space is not None:
            yield Event(1.0, "room again", ("disk",), self, self._make_room)
        if p.sync_error and self.disk.faults.sync is None:
            yield Event(p.sync_error, "a sync will fail", ("disk",), self, self._fail_sync)
        if p.lost_answer:
            yield Event(p.lost_answer, "an answer will be lost", ("disk",), self, self._lose_answer)
        for source in self.sources.values():
            yield from source.events(self)
        if p.reader:
            yield Event(p.reader, "reader", ("reader",), self, self.oracle.reader_polls)
        if p.upkeep:
            yield Event(p.upkeep, "upkeep of the tables", ("upkeep",), self, self._maintain)

    # The world as a process: who reads from outside, and who starts runs.

    alive = True

    def die(self, why: str) -> None:
        self.oracle.follower = None

    def _turn(self, prefix: str = "") -> bool:
        busy = {event.actor for event in self._stack}
        events = [event for event in self._events() if event.weight > 0 and event.actor not in busy]
        if self._stack:  # what ends the world is not done in the middle of a step
            events = [event for event in events if event.actor not in (("power",), ("disk",))]
        if not events:
            return False
        event = self.rng.choices(events, [event.weight for event in events])[0]
        self.perform(event, prefix)
        return True

    def perform(self, event: Event, prefix: str = "") -> None:
        self.turns += 1
        self.say(f"{prefix}{event.name}")
        self.count(event.name.partition(" ")[0])
        self._stack.append(event)
        try:
            event.act()
        except Killed:
            event.process.die("killed")
        finally:
            self._stack.pop()

    def interrupt(self) -> None:
        """Nobody is in the middle of a step any more."""
        self._stack.clear()

    def step(self) -> bool:
        try:
            return self._turn()
        except PowerLoss as at:
            self.interrupt()
            self.say(f"power loss before: {at}")
            self._lose_power()
            return True

    def target(self, of: DeliveryOf) -> SimTarget | DeltaFolder | FilesFolder:
        """Where a delivery goes to; there from its first use on."""
        if of.name not in self.targets:
            match of.kind:
                case Kind.FUNCTION:
                    self.targets[of.name] = SimTarget(of.name)
                case Kind.TABLE:
                    self.targets[of.name] = DeltaFolder(self, of.name, of.stream)
                case Kind.FILES:
                    self.targets[of.name] = FilesFolder(self, of.name, of.stream)
        return self.targets[of.name]

    # What happens to the world.

    def _maintain(self) -> None:
        self.table.maintain()
        for target in self.targets.values():
            target.maintain()

    def _pass_time(self) -> None:
        passed = self.rng.choice((0.0005, 0.002, 0.011, 0.1, 1.1, 5.0, 30.0))
        self.seconds += passed
        self.clock += int(passed * 1_000_000)
        if self.chance(self.profile.set_back):
            self.clock -= self.rng.choice((1, 1_000_000, 10_000_000))
            self.say("the clock is set back")

    def _start(self) -> None:
        if self.program < self.scene.last and (self.healed or self.rng.random() < 0.6):
            self.program = self.scene.last if self.healed else self.program + 1
        run = Run(self, len(self.runs), self.program)
        self.runs.append(run)

    def _lose_power(self) -> None:
        self.count("power")
        for run in self.runs:
            run.process.die("power")
        for attempt in self.attempts:
            attempt.process.die("power")
        self.attempts.clear()
        faults = self.disk.faults
        self.disk.power_loss()
        self.disk.on_step = self._on_disk_step
        if faults.space is not None:
            self.disk.faults.space = None
        for lane in self.lanes:
            lane.lose_power(self)
        for source in self.inputs.values():
            source.lose_power(self)
        self.table.lose_power()
        for target in self.targets.values():
            target.lose_power()
        self.clean = None
        self.oracle.power_lost()

    def _fill_disk(self) -> None:
        self.disk.faults.space = self.rng.choice((0, 10, 300, 1_000))
        self.disk_faults += 1

    def _make_room(self) -> None:
        self.disk.faults.space = None

    def _fail_sync(self) -> None:
        self.disk.faults.sync = self.rng.choice((0, 1, 3, 9))
        self.disk_faults += 1

    def _lose_answer(self) -> None:
        if self.rng.random() < 0.5:
            self.disk.faults.answer = True
            self.disk_faults += 1
        else:
            self.disk.faults.taken = True
