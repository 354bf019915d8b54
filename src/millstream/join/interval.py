"""Records of two streams that lie near each other in event time."""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right, insort_right
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

import msgspec

import millstream as ms
from millstream import arguments
from millstream.join.sides import Left, Pair, Right, check_stream

V = TypeVar("V")
L = TypeVar("L")
R = TypeVar("R")

_at = attrgetter("at")


class Misses(enum.Enum):
    """Of which side it is told that no partner came."""

    NONE = "none"
    LEFT = "left"
    RIGHT = "right"
    BOTH = "both"


class Side(msgspec.Struct, Generic[V], array_like=True):
    """A record that may still find a partner."""

    at: ms.Timestamp
    value: V
    paired: bool = False


class Sides(msgspec.Struct, Generic[L, R], array_like=True):
    """What is kept of a key: the records of both sides, in the order of their times."""

    format: Literal[1] = 1
    left: list[Side[L]] = msgspec.field(default_factory=list)
    right: list[Side[R]] = msgspec.field(default_factory=list)


class Join(ms.Computation[Sides[L, R]], Generic[L, R]):
    """Every pair of a left and a right record of a key with left - before <= right <= left + after, once, whatever comes first.

        paid = Join(Order, Payment, before=0 * ms.SECOND, after=ms.HOUR, misses=Misses.LEFT)
        topology.compute("paid", paid).reads(*paid.of(orders, payments))

    `pairs` carry the later of their two times. A negative `before` or `after` moves an end of the interval to the other side of
    the left record: `before=-ms.MINUTE` is a payment at least a minute after its order.

    `unmatched_left` and `unmatched_right` have the records that found no partner, where `misses` asks for them: told when none
    can come any more, and dated with the first instant at which that is certain.

    `late_left` and `late_right` have the records that are older than the low watermark. These are never joined: of the partners
    that such a record could have, some are forgotten, and may have been told as misses.

    Kept: the records that may still find a partner, those within `before` and `after` of the low watermark.
    """

    pairs: ms.Output[Pair[L, R]]
    unmatched_left: ms.Output[L]
    unmatched_right: ms.Output[R]
    late_left: ms.Output[L]
    late_right: ms.Output[R]

    def __init__(self, left: type[L], right: type[R], *, before: ms.Duration, after: ms.Duration, misses: Misses = Misses.NONE) -> None:
        self.left, self.right = arguments.value_type("Join", left), arguments.value_type("Join", right)
        self.before, self.after = arguments.signed_span("Join", "before", before), arguments.signed_span("Join", "after", after)
        if self.before + self.after < 0 * ms.SECOND:
            raise ms.TopologyError(
                f"Join(before={int(before)}, after={int(after)}): no time lies between; both count away from the left record, "
                f"so that a right record lies between left - before and left + after"
            )
        arguments.choice("Join", "misses", misses, Misses)
        self.tells_left, self.tells_right = misses in (Misses.LEFT, Misses.BOTH), misses in (Misses.RIGHT, Misses.BOTH)

    def type_arguments(self) -> dict[str, Any]:
        return {"L": self.left, "R": self.right}

    def of(self, left: ms.Stream[L], right: ms.Stream[R]) -> tuple[ms.Stream[Left[L] | Right[R]], ...]:
        """All that it reads: `reads(*join.of(orders, payments))`. Both under the key by which they belong together."""
        check_stream("Join.of", "the left side", left, self.left)
        check_stream("Join.of", "the right side", right, self.right)
        return left.map(Left), right.map(Right)

    def process_record(self, record: ms.Record[Left[L] | Right[R]]) -> None:
        at, sides = record.timestamp, self.state
        late = at < self.low_watermark  # also where it has no event time: its partners are forgotten all the same
        match record.value:
            case Left(value=left) if late:
                self.late_left.produce(left, timestamp=at)
            case Right(value=right) if late:
                self.late_right.produce(right, timestamp=at)
            case Left(value=left):
                mine = Side(at, left)
                for other in _between(sides.right, at - self.before, at + self.after):
                    self._pair(mine, other)
                self._keep(sides.left, mine)
            case Right(value=right):
                its = Side(at, right)
                for one in _between(sides.left, at - self.after, at + self.before):
                    self._pair(one, its)
                self._keep(sides.right, its)

    def _pair(self, left: Side[L], right: Side[R]) -> None:
        left.paired = right.paired = True
        self.pairs.produce(Pair(left.value, right.value), timestamp=max(left.at, right.at, key=int))

    def _keep(self, side: list[Side[V]], one: Side[V]) -> None:
        insort_right(side, one, key=_at)
        if side[0] is one:
            self._wait()

    def process_timer(self, timer: ms.Timer) -> None:
        """Let go of what can find no partner any more. A record at the low watermark itself may still come, and is not late."""
        for one in _take_before(self.state.left, self.low_watermark - self.after):
            if self.tells_left and not one.paired:
                self.unmatched_left.produce(one.value, timestamp=_certain(one.at, self.after))
        for other in _take_before(self.state.right, self.low_watermark - self.before):
            if self.tells_right and not other.paired:
                self.unmatched_right.produce(other.value, timestamp=_certain(other.at, self.before))
        self._wait()

    def _wait(self) -> None:
        """For the first instant at which the oldest of either side can find no partner any more."""
        ends = [side[0].at + reach for side, reach in ((self.state.left, self.after), (self.state.right, self.before)) if side]
        if ends:
            self.set_timer("over", at=min(ends, key=int) + ms.MICROSECOND)


def _between(side: list[Side[V]], first: ms.Timestamp, last: ms.Timestamp) -> list[Side[V]]:
    return side[bisect_left(side, first, key=_at) : bisect_right(side, last, key=_at)]


def _take_before(side: list[Side[V]], end: ms.Timestamp) -> list[Side[V]]:
    """Take those out that are older than `end`."""
    over = bisect_left(side, end, key=_at)
    found = side[:over]
    del side[:over]
    return found


def _certain(at: ms.Timestamp, reach: ms.Duration) -> ms.Timestamp:
    """When it is certain that a record has no partner: after all that it reaches to, and not before it has come itself."""
    return max(at, at + reach + ms.MICROSECOND, key=int)
