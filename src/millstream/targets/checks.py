"""How far log, deliveries and their targets are, compared with the commits before a run changes anything."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millstream.core.graph import Graph
from millstream.core.ledger import Ledger
from millstream.delivery import Delivery, DeltaTarget, FileTarget
from millstream.errors import LogError, TopologyError
from millstream.journal.disk import LocalDisk
from millstream.log.checks import check_position
from millstream.log.entries import ENTRIES
from millstream.log.folder import Folder
from millstream.log.history import position_of
from millstream.log.snapshot import newest_version
from millstream.target import DeliveryContext
from millstream.targets.belonging import CLAIMS, check_claim, destination, reached
from millstream.targets.connection import blaming
from millstream.targets.delta import application, check_schema, open_table
from millstream.targets.files import check_not_ahead, newest_step
from millstream.targets.steps import FoundSteps, check_reach, check_steps, find_steps, ways_out
from millstream.targets.typed import Values


@dataclass(frozen=True)
class Ends:
    """What a folder says of log and deliveries, and their targets themselves.

    Another run may still go on: read it before the commits are read.
    """

    log: int
    steps: dict[str, FoundSteps | None]
    targets: dict[str, int | None]  # of a table the epoch that it has, of files the newest step; None for nothing

    @classmethod
    def of(cls, folder: Folder, graph: Graph) -> Ends:
        steps = {name: find_steps(folder.delivery(name)) for name in graph.deliveries}
        targets = {name: _found(delivery, steps[name]) for name, delivery in graph.deliveries.items()}
        return cls(_logged(folder), steps, targets)

    def check(self, folder: Folder, graph: Graph, ledger: Ledger, *, anew: Collection[str] = ()) -> None:
        """Refuse what is from another copy than the commits, and targets that are gone.

        How far a delivery is that begins `anew` counts for nothing.
        """
        check_position(f"the log {folder.log}", before=self.log, after=_logged(folder), recorded=ledger.logged, newest=ledger.number)
        for name, delivery in graph.deliveries.items():
            if name in anew:
                continue
            steps, delivered, target = find_steps(folder.delivery(name)), ledger.delivered.get(name, 0), delivery.target
            is_table = isinstance(target, DeltaTarget) or target.transactional
            check_steps(
                name,
                folder.delivery(name),
                before=None if is_table else self.steps[name],
                after=steps,
                delivered=delivered,
                newest=ledger.number,
                durable=not is_table and target.numbered,
            )
            if isinstance(target, DeltaTarget):
                self._check_table(delivery, Path(target.path).absolute(), folder, steps, delivered=delivered, newest=ledger.number)
            elif isinstance(target, FileTarget) and steps is not None:
                self._check_files(delivery, Path(target.path).absolute(), folder, steps)

    def _check_table(
        self, delivery: Delivery, path: Path, folder: Folder, steps: FoundSteps | None, *, delivered: int, newest: int
    ) -> None:
        name = delivery.name
        before = after = self.targets[name]
        if before is None or before < delivered:
            after = _found(delivery, steps)
        begins = destination(folder.delivery(name), path, delivered=delivered).begins
        if after is None and delivered > begins:
            raise LogError(
                f"{path} has nothing of what delivery {name!r} has delivered, up to epoch {delivered}: it was deleted, or something else "
                f"is in its place; {ways_out(name)}"
            )
        positions = [begins if found is None else found for found in (before, after)]
        check_reach(name, str(path), before=positions[0], after=positions[1], recorded=delivered, newest=newest)

    def _check_files(self, delivery: Delivery, path: Path, folder: Folder, steps: FoundSteps) -> None:
        name, kept, newest = delivery.name, steps.kept, self.targets[delivery.name]
        if not path.exists() and kept.position > destination(folder.delivery(name), path, delivered=kept.position).begins:
            raise LogError(
                f"{path} is missing, and delivery {name!r} has delivered to it: {ways_out(name)}; or make an empty folder there, if "
                f"what was in it is no longer needed"
            )
        if newest is not None:
            check_not_ahead(name, path, newest, kept.begun)
        has = reached(name, path, kept.identity)
        if has is not None and has + 1 < kept.next:
            raise LogError(
                f"{path} has step {has} of delivery {name!r} as its last one, but {steps.path} says that it had {kept.next - 1}: "
                f"it is from an older copy, and has lost what lies between; {ways_out(name)}"
            )


def _logged(folder: Folder) -> int:
    log = LocalDisk(folder.log)
    made = (folder.log / ENTRIES).exists() and newest_version(log) >= 0  # whoever began to make it may have died, or met a full disk
    return position_of(log).upto if made else 0


def _found(delivery: Delivery, steps: FoundSteps | None) -> int | None:
    if steps is None or not isinstance(delivery.target, DeltaTarget | FileTarget):
        return None
    path, identity = Path(delivery.target.path), steps.kept.identity
    if isinstance(delivery.target, FileTarget):
        return newest_step(delivery.name, path, identity)
    table = open_table(path)
    return None if table is None else table.transaction_version(application(delivery.name, identity))


def check_targets(folder: Folder, graph: Graph, id_: str, *, anew: Collection[str] = ()) -> None:
    """Refuse what cannot be delivered to before anything runs; it would be found by the first commit there."""
    for name, delivery in graph.deliveries.items():
        stream = graph.stream_of(delivery.stream)
        with blaming(name, delivery.target):
            delivery.target.check(DeliveryContext(name, stream.name, stream.value_type, identity="", fence=0))
        if isinstance(delivery.target, DeltaTarget | FileTarget):
            path = Path(delivery.target.path).absolute()
            _check_outside(name, path, folder)
            _check_writable(name, path)
            if isinstance(delivery.target, DeltaTarget) and (table := open_table(path)) is not None:
                check_schema(path, table, Values(stream.name, stream.value_type))
            if name not in anew:
                check_claim(name, path, folder, id_)


def _check_outside(name: str, path: Path, folder: Folder) -> None:
    if path.resolve().is_relative_to(folder.path.resolve()):
        raise TopologyError(f"delivery {name!r}: {path} lies in the folder of the run, {folder.path}; deliver to a path outside of it")


def _check_writable(name: str, path: Path) -> None:
    try:
        _find_writable(name, path)
        _try_to_make(path / CLAIMS)
    except OSError as error:
        raise LogError(f"delivery {name!r}: {path} cannot be made: {error.strerror or error}; deliver to another path") from error


def _try_to_make(path: Path) -> None:
    """Folders that are missing are made and removed again: what a file system allows, only it knows."""
    made: list[Path] = []
    try:
        for each in reversed([path, *path.parents]):
            if not each.exists():
                each.mkdir()
                made.append(each)
    finally:
        for each in reversed(made):
            with suppress(OSError):  # another process may have put something into it meanwhile
                each.rmdir()


def _find_writable(name: str, path: Path) -> None:
    for place in (path, path / "_delta_log"):
        there = next(each for each in (place, *place.parents) if each.exists())
        if not there.is_dir():
            raise LogError(f"delivery {name!r}: {path} is to be a folder, and {there} is a file; deliver to another path")
        if not os.access(there, os.W_OK | os.X_OK):
            raise LogError(f"delivery {name!r}: {there} cannot be written to; make it writable, or deliver to another path")
