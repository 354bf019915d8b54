"""Ranges of sources that lanes are to read: offered by the driver, taken by epochs, given back when one is aborted."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable
from typing import NamedTuple

from millstream.mill.messages import Range


class Assigned(NamedTuple):
    """A range, and the lane that reads it in this epoch."""

    lane: int
    range: Range


class Offered:
    """What no commit has read. Ranges of an injector are read in the order in which they were offered: its position is one."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._waiting: dict[str, deque[Range]] = {}  # only injectors that have some

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def injectors(self) -> Collection[str]:
        """Those of which something is still to be read."""
        return self._waiting.keys()

    def add(self, ranges: Iterable[Range]) -> None:
        for each in ranges:
            self._waiting.setdefault(each.injector, deque()).append(each)

    def take(self, limit: int, here: Collection[int], *, but: Container[str] = ()) -> list[Assigned]:
        """For the next epoch: of each injector in turn `but` some, for lanes that are here, up to so many bytes; one at least."""
        taken: list[Assigned] = []
        size = 0
        while here and (able := [(injector, waiting) for injector, waiting in self._waiting.items() if injector not in but]):
            for injector, waiting in able:
                if taken and size + waiting[0].size > limit:
                    return taken
                each = waiting.popleft()
                del self._waiting[injector]
                if waiting:  # it stands last now, also for the next epoch
                    self._waiting[injector] = waiting
                taken.append(Assigned(self._lane_for(each, here), each))
                size += each.size
        return taken

    def give_back(self, taken: Iterable[Assigned]) -> None:
        """What an epoch took that was aborted stands first again."""
        for assigned in reversed(list(taken)):
            self._waiting.setdefault(assigned.range.injector, deque()).appendleft(assigned.range)

    def _lane_for(self, each: Range, here: Collection[int]) -> int:
        lane = each.lane % self._lanes
        return lane if lane in here else sorted(here)[each.lane % len(here)]
