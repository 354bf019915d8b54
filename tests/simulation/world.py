"""One process in which everything runs by turns, in the order that a seed chooses: drivers, lanes, Spark, the disk, the clock.

A step is one event of one actor. Inside of it, before every step on the disk, the actor may be killed, the power may go, or
another actor may have its turn first: so a planner can sleep in the middle of a commit while another run takes over.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millstream.core import pages, parts, route
from millstream.errors import MillstreamError
from millstream.journal import segments
from millstream.mill.actions import Moment
from millstream.timestamp import Timestamp
from tests.core.cases import START
from tests.journal.simdisk import Crash, SimDisk
from tests.simulation.driver import Run
from tests.simulation.inputs import SparkInputFolder
from tests.simulation.laws import Broken, Oracle
from tests.simulation.outputs import SimTable, SimTarget
from tests.simulation.scene import LONG_AFTER, Chance, Scene
from tests.simulation.spark import Attempt, LaneFolder, LaneProcess

MAX_CALM_STEPS = 6_000
NESTED = 3  # actors that may be in the middle of a step


class Killed(Crash):
    """The process of the actor whose turn it is ends here."""


class PowerLoss(Crash):
    """All processes end here, and the disk keeps what was synced."""


@dataclass(frozen=True)
class Profile:
    """How likely each fault is: weights of events, and chances per step on the disk."""

    steps: int = 400
    swarm: bool = True  # each seed leaves some faults out and has more of others: a few that meet find more than all at once
    settings: tuple[tuple[str, float], ...] = ()  # of the planner, instead of drawn ones
    lazy_notes: bool = False  # Spark reads all sources, and what it says of its notes is lost
    kill_lane: float = 0.4
    kill_driver: float = 0.25
    kill_writer: float = 0.3
    power: float = 0.1
    give_up: float = 0.3  # Spark believes an attempt dead that lives
    cut: float = 0.3  # a connection
    lose_result: float = 0.1
    fall_back: float = 0.15
    takeover: float = 0.1
    pause: float = 0.3
    disk_full: float = 0.1
    sync_error: float = 0.1
    lost_answer: float = 0.15
    stop: float = 0.25
    set_back: float = 0.1
    killed_at_step: float = 0.002
    power_at_step: float = 0.0004
    nested: float = 0.03
    reader: float = 0.5  # a reader from outside
    upkeep: float = 0.3  # of the log's table


USUAL = Profile()
CALM = Profile(
    **{name: 0.0 for name in Profile.__dataclass_fields__ if name not in ("steps", "reader")},  # type: ignore[arg-type]
    reader=0.1,
)


def drawn(profile: Profile, rng: random.Random) -> Profile:
    """The faults of one seed."""
    if not profile.swarm:
        return profile
    rates = {name: rate for name in Profile.__dataclass_fields__ if isinstance(rate := getattr(profile, name), float)}
    calm = rng.choice((0.15, 0.4, 1.0))  # most of what goes wrong goes wrong after much went right
    return replace(profile, **{name: rate * calm * rng.choice((0.0, 0.5, 1.0, 2.0)) for name, rate in rates.items()})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Event:
    weight: float
    name: str
    actor: tuple[Any, ...]
    process: Any
    act: Callable[[], None]


@dataclass
class Sizes:
    """Limits that are small here, so that what is rare happens."""

    buckets: int = 4
    lanes: int = 2
    records_per_part: int = 3
    bytes_per_segment: int = 2_000
    memory: int | None = None
    rows_per_page: int = 32


@dataclass
class Outcome:
    seed: int
    trace: list[str]
    broken: BaseException | None = None
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


class World:
    def __init__(self, seed: int, profile: Profile, *, folder: Path) -> None:
        self.rng = random.Random(seed)
        Chance.drawn = 0
        self.profile = self.usual = drawn(profile, self.rng)
        self.folder = folder
        self.trace: list[str] = []
        self.counts: dict[str, int] = {}
        self.scene = Scene(self.rng, random.Random(f"{seed}, what is kept"))
        rng = self.rng
        self.sizes = Sizes(
            buckets=rng.choice((1, 3, 4, 8)),
            lanes=rng.choice((1, 2, 2, 3)),
            records_per_part=rng.choice((1, 2, 3, 65_536)),
            bytes_per_segment=rng.choice((200, 2_000, 64 << 20)),
            memory=rng.choice((None, None, 2_000, 20_000)),
            rows_per_page=rng.choice((1, 2, 32)),
        )
        self.sizes.buckets = max(self.sizes.buckets, self.sizes.lanes)
        self.disk = SimDisk(random.Random(rng.getrandbits(32)))
        self.disk.on_step = self._on_disk_step
        self.disk.clock = lambda: Timestamp(self.clock)
        self.clock, self.seconds = START, 0.0
        self.uniques = 0
        self.oracle = Oracle(self)
        self.lanes = [LaneFolder(n) for n in range(self.sizes.lanes)]
        self.table = SimTable(self)
        self.targets: dict[str, SimTarget] = {}
        self.inputs = {name: SparkInputFolder(name) for name in self.scene.sources if rng.random() < 0.4 or profile.lazy_notes}
        self.runs: list[Run] = []
        self.attempts: list[Attempt] = []
        self.processes: list[LaneProcess] = []
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
        if self.chance(self.profile.killed_at_step):
            self.say(f"killed before: {what}")
            raise Killed(what)
        if self.chance(self.profile.power_at_step):
            raise PowerLoss(what)
        if len(self._stack) < NESTED and self.turns < self.profile.steps * NESTED and self.chance(self.profile.nested):
            for _ in range(self.rng.choice((1, 1, 3, 10, 30))):
                self._turn(f"before {what}: ")
                if not at.process.alive:
                    raise Killed(what)

    # The turns.

    def _events(self) -> Iterator[Event]:
        p, rng = self.profile, self.rng
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
        if p.reader:
            yield Event(p.reader, "reader", ("reader",), self, self.oracle.reader_polls)
        if p.upkeep:
            yield Event(p.upkeep, "upkeep of the log", ("upkeep",), self, self.table.maintain)

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

    def step(self) -> bool:
        try:
            return self._turn()
        except PowerLoss as at:
            self._stack.clear()
            self.say(f"power loss before: {at}")
            self._lose_power()
            return True

    # What happens to the world.

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

    # The play.

    def play(self) -> None:
        self.say(f"{self.sizes} {len(self.scene.case.nodes)} nodes, {len(self.scene.programs)} programs")
        for _ in range(self.profile.steps):
            self.step()
            if self.turns > self.profile.steps * NESTED:
                break
        self._calm_down()
        self._until(self._drained, "everything that came in is done, logged and delivered")
        self.oracle.check_end()
        self._until_stopped()
        self._until(self._all_joined, "all lanes are back after a stop")
        self.oracle.check_end()

    def _calm_down(self) -> None:
        """No more faults; what was begun goes on."""
        self.say("-- calm")
        self.profile = replace(CALM, steps=0)
        faults = self.disk.faults
        faults.space = faults.sync = None
        faults.answer = faults.taken = False
        self.healed = True
        for run in self.runs:
            run.paused = False
            if run.process.alive and 0 < run.fence < self.oracle.ledger.fence and self.rng.random() < 0.5:
                run.process.die("its machine is switched off")
        self.clock = max(self.clock, START) + 1

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        for _ in range(MAX_CALM_STEPS):
            if reached():
                return
            self.step()
        raise Broken(f"no progress: in {MAX_CALM_STEPS} steps without a fault it was not so that {what}: {self._why()}")

    def _why(self) -> str:
        return "; ".join(run.describe() for run in self.runs if run.process.alive) or "no run"

    def owner(self) -> Run | None:
        """The run that owns the journal, if its program is the last one."""
        fence = self.oracle.ledger.fence
        found = [run for run in self.runs if run.process.alive and run.state == "up" and run.fence == fence]
        return found[0] if found else None

    def _drained(self) -> bool:
        owner = self.owner()
        if owner is None:
            return False
        if owner.program != self.scene.last:
            owner.want_stop = True  # a repaired program is started
            return False
        if not owner.is_drained:
            return False
        if self.clock < LONG_AFTER + START:
            self.clock = LONG_AFTER + START  # all naps are over
            return False
        return owner.ends_are_complete and not self.oracle.book

    def _until_stopped(self) -> None:
        """A run that was only just starting may take over meanwhile; then that one is stopped."""
        while True:
            self._until(self._drained, "the newest run is drained")
            owner = self.owner()
            assert owner is not None
            owner.want_stop = True
            self._until(lambda owner=owner: not owner.process.alive, "the run has stopped")
            if owner.error is None:
                return
            if not self.oracle.overtaken(owner):  # by one that was killed before it knew that it owned the journal, perhaps
                raise Broken(f"a stop ended with {owner.error}")

    def _all_joined(self) -> bool:
        owner = self.owner()
        return owner is not None and owner.planner is not None and all(seat.here for seat in owner.planner.seats) and owner.is_drained


@contextmanager
def tuned(sizes: Sizes) -> Iterator[None]:
    """Parts and segments of the sizes of this world."""
    patches = (
        (route, "RECORDS_PER_PART", sizes.records_per_part),
        (segments, "BYTES_PER_SEGMENT", sizes.bytes_per_segment),
        (pages, "ROWS_PER_PAGE", sizes.rows_per_page),
        (pages, "ROWS_TO_MERGE", sizes.rows_per_page / 4),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in patches]
    for module, name, value in patches:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def simulate(seed: int, profile: Profile = USUAL) -> Outcome:
    with tempfile.TemporaryDirectory(dir=_fast(), prefix="simulation") as folder:
        world = World(seed, profile, folder=Path(folder))
        outcome = Outcome(seed, world.trace, None, world.counts)
        with tuned(world.sizes):
            try:
                world.play()
            except (Broken, MillstreamError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as broken:
                world._stack.clear()
                world.say(f"BROKEN {type(broken).__name__}: {broken}")
                outcome.broken = broken
            finally:
                for run in world.runs:
                    run.close_files()
    return outcome


def _fast() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


assert parts.NO_LANE == -1
