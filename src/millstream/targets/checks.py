"""How far log, deliveries and their targets are, compared with the commits before a run changes anything."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millstream.core.graph import Graph
from millstream.core.ledger import Ledger
from millstream.errors import LogError, TopologyError
from millstream.journal.disk import LocalDisk
from millstream.log.checks import check_position
from millstream.log.entries import ENTRIES
from millstream.log.folder import Folder
from millstream.log.history import position_of
from millstream.log.snapshot import newest_version
from millstream.target import DeliveryContext
from millstream.targets.belonging import CLAIMS, check_claim
from millstream.targets.connection import blaming
from millstream.targets.steps import FoundSteps, check_steps, find_steps
from millstream.targets.written import DeliveredSoFar, WrittenPlace, place_of


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
        targets = {name: _has(place_of(delivery), steps[name]) for name, delivery in graph.deliveries.items()}
        return cls(_logged(folder), steps, targets)

    def check(self, folder: Folder, graph: Graph, ledger: Ledger, *, anew: Collection[str] = ()) -> None:
        """Refuse what is from another copy than the commits, and targets that are gone.

        How far a delivery is that begins `anew` counts for nothing.
        """
        check_position(f"the log {folder.log}", before=self.log, after=_logged(folder), recorded=ledger.logged, newest=ledger.number)
        for name, delivery in graph.deliveries.items():
            if name in anew:
                continue
            steps, delivered, place = find_steps(folder.delivery(name)), ledger.delivered.get(name, 0), place_of(delivery)
            says_itself = delivery.target.transactional or (place is not None and place.says_itself)
            check_steps(
                name,
                folder.delivery(name),
                before=None if says_itself else self.steps[name],
                after=steps,
                delivered=delivered,
                newest=ledger.number,
                durable=not says_itself and delivery.target.numbered,
            )
            if place is not None:
                known = DeliveredSoFar(self.targets[name], delivered, ledger.number)
                place.check(folder.delivery(name), steps, known)


def _has(place: WrittenPlace | None, steps: FoundSteps | None) -> int | None:
    return None if place is None or steps is None else place.has(steps.kept.identity)


def _logged(folder: Folder) -> int:
    log = LocalDisk(folder.log)
    made = (folder.log / ENTRIES).exists() and newest_version(log) >= 0  # whoever began to make it may have died, or met a full disk
    return position_of(log).upto if made else 0


def check_targets(folder: Folder, graph: Graph, id_: str, *, anew: Collection[str] = ()) -> None:
    """Refuse what cannot be delivered to before anything runs; it would be found by the first commit there."""
    for name, delivery in graph.deliveries.items():
        stream = graph.stream_of(delivery.stream)
        with blaming(name, delivery.target):
            delivery.target.check(DeliveryContext(name, stream.name, stream.value_type, identity="", fence=0))
        place = place_of(delivery)
        if place is not None:
            _check_outside(name, place.path, folder)
            _check_writable(name, place.path)
            place.check_fits(stream.name, stream.value_type)
            if name not in anew:
                check_claim(name, place.path, folder, id_)


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
