"""How far log and deliveries are, compared with the commits before a run changes anything in its folder."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from millstream.core.graph import Graph
from millstream.core.ledger import Ledger
from millstream.delivery import Delivery, DeltaTarget, FileTarget
from millstream.errors import LogError
from millstream.journal.disk import LocalDisk
from millstream.log.checks import check_position
from millstream.log.entries import ENTRIES
from millstream.log.folder import Folder
from millstream.log.history import position_of
from millstream.log.snapshot import newest_version
from millstream.targets.driver import driver_target
from millstream.targets.steps import FoundSteps, check_steps, find_steps


@dataclass(frozen=True)
class Ends:
    """What a folder says of log and deliveries. Another run may still go on: read it before the commits are read."""

    log: int
    steps: dict[str, FoundSteps | None]

    @classmethod
    def of(cls, folder: Folder, graph: Graph) -> Ends:
        log = LocalDisk(folder.log)
        made = (folder.log / ENTRIES).exists() and newest_version(log) >= 0  # whoever began to make it may have died, or met a full disk
        return cls(position_of(log).upto if made else 0, {name: find_steps(folder.delivery(name)) for name in graph.deliveries})

    def check(self, folder: Folder, graph: Graph, ledger: Ledger, *, anew: Collection[str] = ()) -> None:
        """Refuse what is from another copy than the commits. Delta tables outside say by themselves how far they are, later.

        How far a delivery is that begins `anew` counts for nothing.
        """
        now = Ends.of(folder, graph)
        check_position(f"the log {folder.log}", before=self.log, after=now.log, recorded=ledger.logged, newest=ledger.number)
        for name, delivery in graph.deliveries.items():
            if name in anew:
                continue
            is_table = isinstance(delivery.target, DeltaTarget)
            check_steps(
                name,
                folder.delivery(name),
                before=None if is_table else self.steps[name],
                after=now.steps[name],
                delivered=ledger.delivered.get(name, 0),
                newest=ledger.number,
                durable=not is_table and _is_durable(delivery),
            )


def _is_durable(delivery: Delivery) -> bool:
    return isinstance(delivery.target, FileTarget) or driver_target(delivery).durable


def check_writable(deliveries: Mapping[str, Delivery]) -> None:
    """Refuse what cannot be written to before anything runs; it would be found by the first commit there."""
    for name, delivery in deliveries.items():
        if isinstance(delivery.target, DeltaTarget | FileTarget):
            path = Path(delivery.target.path).absolute()
            there = next(place for place in (path, *path.parents) if place.exists())
            if not there.is_dir():
                raise LogError(f"delivery {name!r}: {path} is to be a folder, and {there} is a file; deliver to another path")
            if not os.access(there, os.W_OK | os.X_OK):
                raise LogError(f"delivery {name!r}: {there} cannot be written to; make it writable, or deliver to another path")
