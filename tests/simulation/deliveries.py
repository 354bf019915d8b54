"""Deliveries in the driver, and targets in numbered steps. The machine is the product's; around it is a shell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.core.ledger import Commit
from millstream.errors import LogError
from millstream.format import Format
from millstream.journal.errors import Missing
from millstream.journal.ownership import Ownership
from millstream.journal.segments import SegmentReader
from millstream.log.rows import Rows
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
)
from millstream.targets.files import FilesOutput
from millstream.targets.lacking import Tail
from millstream.targets.records import stretch
from millstream.targets.steps import Steps
from millstream.targets.tail import read_tail
from tests.simulation.records import Id
from tests.simulation.scene import DeliveryOf
from tests.simulation.turns import Broken, Event

if TYPE_CHECKING:
    from tests.simulation.driver import Run
    from tests.simulation.world import World

EPOCHS_AT_ONCE = 5


class Reading:
    """The journal as the ends of a run see it."""

    def __init__(self, world: World, run: Run) -> None:
        self.world, self.run = world, run
        self.reader = SegmentReader(world.disk, sleep=lambda seconds: None, timeout=0.02)

    def tail(self, delivery: str | None, after: int) -> Tail:
        """What there is for a delivery; without one, for the log."""
        return read_tail(self.run.commits, self.run.planner.ledger, delivery, after=after, at_most=EPOCHS_AT_ONCE)

    def still_owner(self) -> bool:
        planner = self.run.planner
        return Ownership(self.run.commits, self.run.fence, lambda: planner.ledger.number)()


class SimSteps(Steps):
    """Before each is written, and after, its process may be killed."""

    def __init__(self, world: World, name: str, fence: int) -> None:
        self._world = world
        super().__init__(world.folder / "deliveries" / name, fence=fence, identity=name)

    def _write(self, **changes: Any) -> None:
        self._world.point("a step is written")
        super()._write(**changes)
        self._world.point("a step was written")


class SimTarget:
    """A target without a transaction: it knows steps by their number, and a repeated one must be the same.

    But for what is not owed any more: if its delivery was not there for a while, what was not kept may be gone.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[list[Id]] = []
        self.done = 0  # up to this epoch, it is recorded that it has everything

    def ids(self) -> list[Id]:
        return [each for step in self.steps for each in step]

    def call(self, k: int, ids: list[Id], owed: set[Id]) -> None:
        if k < len(self.steps):
            if not owed & set(self.steps[k]) <= set(ids) <= set(self.steps[k]):
                raise Broken(f"delivery {self.name} step {k} was {self.steps[k]}, then {ids}")
            return
        if k > len(self.steps):
            raise Broken(f"delivery {self.name} step {k} follows step {len(self.steps) - 1}")
        if twice := set(ids) & set(self.ids()):
            raise Broken(f"delivery {self.name} step {k} has {sorted(twice)} again")
        self.steps.append(ids)

    def maintain(self) -> None:
        pass

    def lose_power(self) -> None:
        pass  # what steps say is synced before anybody acts on it: tests/targets


class SimDelivery:
    """A delivery in the driver."""

    def __init__(self, world: World, run: Run, of: DeliveryOf) -> None:
        self.world, self.run, self.name, self.stream = world, run, of.name, of.stream
        ledger = run.planner.ledger
        self._reading = Reading(world, run)
        self._steps = SimSteps(world, of.name, run.fence)
        self._steps.check(of.name, delivered=ledger.delivered.get(of.name, 0), newest=ledger.number)
        self._machine = DeliveryMachine(
            position=self._steps.position,
            open=self._steps.open,
            newest=ledger.number,
            max_records=world.rng.choice((1, 4, 1_000_000)),
            max_places=world.rng.choice((1, 50_000)),
        )
        self._actions: list[Action] = self._machine.on_start()
        self._logged = 0
        self._missed: tuple[int, int] | None = None
        target = world.target(of)
        assert isinstance(target, SimTarget)
        target.done = max(target.done, self._steps.position)  # whoever recorded it may have died before it was noted
        self.target = target

    @property
    def position(self) -> int:
        return self._machine.position if self._machine.has(self._machine.position) else 0

    def describe(self) -> str:
        return f"{self.name} {self._machine.position} {self._machine.state.value}"

    def notify(self, commit: Commit) -> None:
        self._actions += self._machine.on_commit(commit.number, commit.plain_parts(self.stream))

    def close(self) -> None:
        self._steps.close()

    def events(self) -> Iterator[Event]:
        if self._actions and self._machine.state is not State.ENDED:
            what = type(self._actions[0]).__name__
            name = f"run {self.run.number} delivery {self.name} {what}"
            yield Event(1.0, name, ("delivery", self.run.number, self.name), self.run.process, lambda: self.run.guarded(self._do))

    def _do(self) -> None:
        try:
            self._actions += self._perform(self._actions.pop(0))()
        except LogError as error:
            if not self._reading.still_owner():
                self._machine.on_overtaken()
            elif isinstance(error, Missing) and self._is_behind():
                self.world.count("delivery behind")
                self._actions += self._machine.on_missing()
            else:
                raise

    def _is_behind(self) -> bool:
        """What is missing was let go, for the log has it; twice at one place, with nothing new in the log, it is damage."""
        before, self._missed = self._missed, (self._machine.position, self._logged)
        return self._missed != before

    def _perform(self, action: Action) -> Callable[[], list[Action]]:
        machine, reading = self._machine, self._reading
        match action:
            case ReadTail(after):
                tail = reading.tail(self.name, after)
                self._logged = tail.history
                return lambda: machine.on_tail(tail)
            case ReadHistory(after, upto, at_most):
                found = stretch(self.world.table.history(self.stream, after, upto), upto, at_most)
                return lambda: machine.on_read(found.contents, upto=None if at_most is None else found.upto)
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
        self.run.desk.put(f"{self.name} has {position}", lambda planner, at: planner.on_delivered(self.name, position, at))

    def _call(self, action: CallTarget) -> Callable[[], list[Action]]:
        step = action.open or self._steps.begin(action.a, action.b)
        self.world.point("a delivery looks whether its run still owns")
        if not self._reading.still_owner():
            return self._machine.on_overtaken
        ids = sorted((c.origin, c.major, minor) for c in action.contents for minor in c.columns.minors)
        self.world.oracle.ends.check_step(self.name, ids, action.a, action.b)
        self.target.call(step.number, ids, self.world.oracle.ends.owed(self.name))
        self._steps.done()
        self.target.done = max(self.target.done, step.upto)
        return self._machine.on_done


class FilesFolder:
    """A folder that files are delivered to: what is in it is what the target has."""

    def __init__(self, world: World, name: str, stream: str) -> None:
        self.world, self.name, self.stream = world, name, stream
        self.path: Path = world.folder / name
        self.done = 0

    def ids(self) -> list[Id]:
        found = []
        for file in sorted(self.path.glob(f"*.{Format.JSON_LINES.value}")):
            for line in file.read_text().splitlines():
                origin, major, minor = json.loads(line)["id"].rsplit("/", 2)
                found.append((origin, int(major), int(minor)))
        return found

    def maintain(self) -> None:
        pass

    def lose_power(self) -> None:
        pass  # as for the others that go by steps


class SimFiles(FilesOutput):
    """What it does by itself, in a folder of this world."""

    def __init__(self, folder: FilesFolder, steps: Steps, still_owner: Callable[[], bool]) -> None:
        world, values = folder.world, _Stream(folder.stream)
        self._folder = folder

        def looks() -> bool:
            world.point(f"the files of {folder.name}: a look")
            return still_owner()

        super().__init__(folder.name, str(folder.path), Format.JSON_LINES, values, steps=steps, still_owner=looks)  # type: ignore[arg-type]

    def commit(self, to: int) -> int:
        upto = super().commit(to)
        self._folder.done = max(self._folder.done, upto)
        return upto

    def _write(self, rows: Rows) -> None:
        self._folder.world.point(f"the files of {self.name}: stage")
        super()._write(rows)

    def close(self) -> None:
        self._steps.close()


class _Stream:
    def __init__(self, stream: str) -> None:
        self.stream = stream
