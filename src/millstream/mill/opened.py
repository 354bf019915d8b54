"""The open epoch: what it takes, which lanes are in it, and what they have reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from millstream.core.lanes import Lanes
from millstream.core.planning import Plan, Waiting
from millstream.mill.messages import Fed, Given, Range, Report
from millstream.mill.offered import Assigned
from millstream.mill.seats import Seat


class Opened:
    """From its plan to its commit, or to its end without one."""

    def __init__(self, plan: Plan, ranges: list[Assigned], try_number: int, lanes: Lanes, began: float) -> None:
        self.plan, self.ranges, self.try_number, self.began = plan, ranges, try_number, began
        self.epoch = plan.header.epoch
        self._due: dict[int, dict[str, list[int]]] = {}
        for name, buckets in plan.due.items():
            for bucket in buckets:
                self._due.setdefault(lanes.of_bucket[bucket], {}).setdefault(name, []).append(bucket)
        self.lanes = sorted({waiting.part.lane for waiting in plan.taken} | {assigned.lane for assigned in ranges} | set(self._due))
        self.reports: dict[int, Report] = {}
        self._given: dict[int, int] = {}  # by lane, the attempt that has the plan
        self._losses: Counter[int] = Counter()
        self._warned: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """Every lane has reported; a commit before that would lose what the others did."""
        return len(self.reports) == len(self.lanes)

    def awaits(self, lane: int) -> bool:
        return lane in self.lanes and lane not in self.reports

    def give(self, seat: Seat, who_gets: Callable[[Waiting], tuple[int, ...]]) -> list[Given]:
        """What it brings to a lane; whoever sits there has the plan now."""
        self._given[seat.lane] = seat.attempt
        return [Given(who_gets(w), w.segment, w.part) for w in self.plan.taken if w.part.lane == seat.lane]

    def ran(self, seat: Seat) -> bool:
        """Whether whoever sits there now is the one who ran this epoch: only then its rows have it (rule 8)."""
        return seat.connection is not None and self._given.get(seat.lane) == seat.attempt

    def due_of(self, lane: int) -> dict[str, list[int]]:
        return self._due.get(lane, {})

    def take_report(self, lane: int, report: Report) -> bool:
        """A report stands once it is read, even if its lane is lost afterwards."""
        if not self.awaits(lane) or (report.epoch, report.try_number) != (self.epoch, self.try_number):
            return False
        self.reports[lane] = report
        return True

    def lost(self, lane: int) -> int:
        """A lane was lost in it; returns how often without a report."""
        if self.awaits(lane):
            self._losses[lane] += 1
        return self._losses[lane]

    def warn(self, lane: int) -> bool:
        """Whether it is the first time."""
        if lane in self._warned:
            return False
        self._warned.add(lane)
        return True

    def ranges_of(self, lane: int) -> list[Range]:
        return [assigned.range for assigned in self.ranges if assigned.lane == lane]

    def read(self) -> Iterator[tuple[Assigned, Fed]]:
        """What lanes have read, once all have reported; in the order of the ranges, so that positions only go on."""
        of_lane = {lane: iter(report.read) for lane, report in self.reports.items()}
        for assigned in self.ranges:
            yield assigned, next(of_lane[assigned.lane])

    def took(self) -> dict[str, list[int]]:
        took: dict[str, list[int]] = {}
        for waiting in self.plan.taken:
            took.setdefault(waiting.segment, []).append(waiting.part.offset)
        return took

    def is_smallest(self, lane: int) -> bool:
        """A single part or range, or timers alone: it cannot be planned with less."""
        return sum(waiting.part.lane == lane for waiting in self.plan.taken) + len(self.ranges_of(lane)) <= 1

    def halved(self, most: int) -> float:
        """Which share of an epoch's limit is half of what this one took."""
        return max(1, sum(waiting.part.records for waiting in self.plan.taken) // 2) / max(1, most)
