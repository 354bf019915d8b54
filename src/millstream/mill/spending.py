"""What the epochs of a run spent their time on: added up, and counted by how long they took."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

import msgspec

from millstream.core.epoch import EPOCH_BOUNDS as BOUNDS
from millstream.mill.messages import Spent

RECENT = 1_024  # epochs of which each is told by itself


class EpochSpan(msgspec.Struct, array_like=True, frozen=True):
    """One epoch: when it was planned, on the wall clock, and the seconds until its lanes had reported and until it was committed."""

    number: int
    began: float
    ran: float
    wrote: float
    lanes: int


class Spending(msgspec.Struct):
    """Since the run began. Times of lanes are added up over all of them, for they run side by side."""

    reading: float = 0.0
    running: float = 0.0
    writing: float = 0.0
    committing: float = 0.0
    epochs: int = 0  # that lanes had a part in
    seconds: float = 0.0  # from plan to commit, of those
    within: list[int] = []  # how many of them took no longer than each bound and longer than the one before; the last took longer
    restarts: int = 0  # of lanes that were lost and came again


class Meter:
    """Of the planner's thread."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds, self.spending = bounds, Spending(within=[0] * (len(bounds) + 1))
        self._spans: deque[EpochSpan] = deque(maxlen=RECENT)

    def reported(self, spent: Spent) -> None:
        total = self.spending
        total.reading += spent.reading
        total.running += spent.running
        total.writing += spent.writing

    def committed(self, number: int, *, began: float, ran: float, wrote: float, lanes: int) -> None:
        """An epoch is durable. One without lanes only moved low watermarks, or named what sources fed."""
        self.spending.committing += wrote
        if lanes:
            took = ran + wrote
            self.spending.epochs += 1
            self.spending.seconds += took
            self.spending.within[bisect_left(self._bounds, took)] += 1
            self._spans.append(EpochSpan(number, began, ran, wrote, lanes))

    def take_spans(self) -> list[EpochSpan]:
        """The epochs since this was last asked, or the newest of them."""
        taken = list(self._spans)
        self._spans.clear()
        return taken
