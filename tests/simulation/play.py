"""A play: faults for some hundred turns, then none until all that was begun is finished, a stop, and a last start."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from millstream.errors import MillstreamError
from tests.core.cases import START
from tests.simulation.driver import Run
from tests.simulation.profile import CALM, USUAL, Profile, tuned
from tests.simulation.scene import LONG_AFTER
from tests.simulation.tables import in_memory
from tests.simulation.turns import Broken
from tests.simulation.world import NESTED, World

MAX_CALM_STEPS = 6_000  # without a record that is received

BREAKS = (Broken, MillstreamError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)


@dataclass
class Outcome:
    seed: int
    trace: list[str]
    broken: BaseException | None = None
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


def simulate(seed: int, profile: Profile = USUAL) -> Outcome:
    with tempfile.TemporaryDirectory(dir=_fast(), prefix="simulation") as folder:
        world = World(seed, profile, folder=Path(folder))
        outcome = Outcome(seed, world.trace, None, world.counts)
        with tuned(world.sizes), in_memory(world):
            try:
                Play(world).run()
            except BREAKS as broken:
                world.interrupt()
                world.say(f"BROKEN {type(broken).__name__}: {broken}")
                outcome.broken = broken
            finally:
                for run in world.runs:
                    run.close_files()
    return outcome


def _fast() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Play:
    def __init__(self, world: World) -> None:
        self._world = world

    def run(self) -> None:
        world = self._world
        world.say(f"{world.sizes} {len(world.scene.case.nodes)} nodes, {len(world.scene.programs)} programs")
        for _ in range(world.profile.steps):
            world.step()
            if world.turns > world.profile.steps * NESTED:
                break
        self._calm_down()
        self._until(self._drained, "is everything that came in done, logged and delivered")
        world.oracle.check_end()
        self._until_stopped()
        self._until(self._all_joined, "are all lanes back after a stop")
        world.oracle.check_end()

    def _calm_down(self) -> None:
        """No more faults; what was begun goes on."""
        world = self._world
        world.say("-- calm")
        world.profile = replace(CALM, steps=0)
        faults = world.disk.faults
        faults.space = faults.sync = None
        faults.answer = faults.taken = False
        for source in world.sources.values():
            source.come_back()
        world.healed = True
        for run in world.runs:
            run.paused = False
            if run.process.alive and 0 < run.fence < world.oracle.ledger.fence and world.rng.random() < 0.5:
                run.process.die("its machine is switched off")
        world.clock = max(world.clock, START) + 1

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        left, received = MAX_CALM_STEPS, -1
        while left:
            if reached():
                return
            self._world.step()
            tallies = self._world.oracle.ledger.tallies.values()
            left, before, received = left - 1, received, sum(tally.received for tally in tallies)
            if received > before:  # what comes in has an end
                left = MAX_CALM_STEPS
        why = "; ".join(run.describe() for run in self._world.runs if run.process.alive) or "no run"
        raise Broken(f"no progress: nothing was received in {MAX_CALM_STEPS} steps without a fault, and not yet {what}: {why}")

    def _owner(self) -> Run | None:
        """The run that owns the journal."""
        fence = self._world.oracle.ledger.fence
        found = [run for run in self._world.runs if run.process.alive and run.state == "up" and run.fence == fence]
        return found[0] if found else None

    def _drained(self) -> bool:
        world, owner = self._world, self._owner()
        if owner is None:
            return False
        if owner.program != world.scene.last:
            owner.want_stop = True  # a repaired program is started
            return False
        if not owner.is_drained:
            return False
        if world.clock < LONG_AFTER + START:
            world.clock = LONG_AFTER + START  # all naps are over
            return False
        return owner.ends_are_complete and not world.oracle.records.book

    def _until_stopped(self) -> None:
        """A run that was only just starting may take over meanwhile; then that one is stopped."""
        while True:
            self._until(self._drained, "is the newest run drained")
            owner = self._owner()
            assert owner is not None
            owner.want_stop = True
            self._until(lambda owner=owner: not owner.process.alive, "has the run stopped")
            if owner.error is None:
                return
            overtaken = self._world.oracle.overtaken(owner)  # by one that was killed before it knew that it owned the journal, perhaps
            if not overtaken and getattr(owner.error, "kind", "") != "LaneTimeout":
                raise Broken(f"a stop ended with {owner.error}")

    def _all_joined(self) -> bool:
        owner = self._owner()
        return owner is not None and all(seat.here for seat in owner.planner.seats) and owner.is_drained
