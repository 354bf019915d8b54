"""What the log and the targets must have of what is committed: what they are owed, once, in order, and never what nobody committed.

A record is kept if its stream was when it was committed: those go to the log. A delivery is owed what is committed while it is
there, and what was before that as far as it was kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.ledger import Commit, Plant
from tests.simulation.records import Id, Records
from tests.simulation.turns import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World


class Ends:
    def __init__(self, world: World, records: Records) -> None:
        self.world, self.records = world, records
        self._plant = Plant()
        self.passed: dict[str, set[int]] = {}  # by stream, epochs in which it was not kept
        self._owed: dict[str, set[int]] = {}  # by delivery, the epochs of its stream that it must have

    def read(self, commit: Commit) -> None:
        """After the records were."""
        if commit.plant is not None:
            self._begin(commit.plant)
        streams = {part.stream for _, part in self.records.places.get(commit.number, [])}
        for stream in streams & set(self._plant.unkept):
            self.passed.setdefault(stream, set()).add(commit.number)
        for name, stream in self._plant.deliveries.items():
            if stream in streams:
                self._owed[name].add(commit.number)

    def _begin(self, plant: Plant) -> None:
        """Another program may have other deliveries, and keep other streams."""
        before, self._plant = self._plant, plant
        for name, stream in before.deliveries.items():
            if name not in plant.deliveries:
                self._owed[name] -= self.passed.get(stream, set())
        for name, stream in plant.deliveries.items():
            owed = self._owed.setdefault(name, set())
            if name not in before.deliveries:
                owed |= self._kept(stream)

    def _kept(self, stream: str) -> set[int]:
        return {found.epoch for found in self.records.of.get(stream, [])} - self.passed.get(stream, set())

    def last_kept(self, upto: int) -> int:
        """The newest epoch up to this one with records for the log."""
        return max((epoch for stream in self.records.of for epoch in self._kept(stream) if epoch <= upto), default=0)

    # What is needed is there.

    def check_needed(self) -> None:
        """What the log does not have for good is in the journal, and so is what a delivery lacks and the log never gets."""
        durable = max(version.upto for version in self.world.table.versions if version.durable)
        for number, places in self.records.places.items():
            if number > durable:
                for segment, part in places:
                    if number not in self.passed.get(part.stream, ()):
                        self.records.content(segment, part)
        for name, stream in self._plant.deliveries.items():
            target = self.world.targets.get(name)
            done = 0 if target is None else target.done
            for number in sorted(self._owed[name] & self.passed.get(stream, set())):
                if number > done:
                    for segment, part in self.records.places[number]:
                        if part.stream == stream:
                            self.records.content(segment, part)

    # Steps.

    def check_step(self, delivery: str, ids: list[Id], a: int, b: int) -> None:
        """Of epochs (a, b] it brings all that is owed, and nothing that was not committed in them."""
        stream = self._stream_of(delivery)
        within = [found for found in self.records.of.get(stream, []) if a < found.epoch <= b]
        owed = {found.id for found in within if found.epoch in self._owed[delivery]}
        if len(set(ids)) < len(ids) or not owed <= set(ids) <= {found.id for found in within}:
            raise Broken(f"a step of ({a}, {b}] of {delivery} has {ids}; owed are {sorted(owed)}, committed {[each.id for each in within]}")

    def owed(self, delivery: str) -> set[Id]:
        return {found.id for found in self.records.of.get(self._stream_of(delivery), []) if found.epoch in self._owed[delivery]}

    def _stream_of(self, delivery: str) -> str:
        return next(each.stream for each in self.world.scene.programs[-1].deliveries if each.name == delivery)

    # The end.

    def check_end(self) -> None:
        self._check_log()
        for delivery in self.world.scene.programs[-1].deliveries:
            target = self.world.targets.get(delivery.name)
            ids = [] if target is None else target.ids()
            committed, owed = self.records.of.get(delivery.stream, []), self.owed(delivery.name)
            if len(set(ids)) < len(ids) or not owed <= set(ids) <= {found.id for found in committed}:
                raise Broken(
                    f"delivery {delivery.name} has {sorted(ids)}; owed are {sorted(owed)}, committed {[each.id for each in committed]}"
                )

    def _check_log(self) -> None:
        for stream, records in self.records.of.items():
            passed = self.passed.get(stream, set())
            log = sorted((r[0], (r[1], r[2], r[3]), r[4], r[5], int(r[6])) for r in self.world.table.found(stream))
            journal = sorted((r.epoch, r.id, r.key, r.value, r.timestamp) for r in records if r.epoch not in passed)
            if log != journal:
                raise Broken(f"the log of {stream} has {[each[:2] for each in log]}, the commits {[each[:2] for each in journal]}")
