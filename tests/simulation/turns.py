"""What a turn is, and what can end one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.journal.simdisk import Crash


class Broken(AssertionError):
    """A law does not hold."""


class Killed(Crash):
    """The process of the actor whose turn it is ends here."""


class PowerLoss(Crash):
    """All processes end here, and the disk keeps what was synced."""


@dataclass(frozen=True)
class Event:
    weight: float
    name: str
    actor: tuple[Any, ...]
    process: Any
    act: Callable[[], None]
