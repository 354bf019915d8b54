"""Two tables as one, by a foreign key."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import msgspec

import millstream as ms
from millstream import arguments
from millstream.join.sides import Left, Pair, Right, check_table, row_type
from millstream.table.dating import date_of_change, forget, is_over

V = TypeVar("V")
L = TypeVar("L")
R = TypeVar("R")


class Kind(enum.Enum):
    """INNER: the rows that have a partner. LEFT: all rows of the left table, with None where there is no partner."""

    INNER = "inner"
    LEFT = "left"


class Points(msgspec.Struct, frozen=True):
    """From a left row to the row that it refers to: from now on, under the number `asked`; None: no longer."""

    left: str
    asked: int | None


class PointedAt(msgspec.Struct, Generic[R], frozen=True):
    """And back, to the one who asked under this number: what is there."""

    asked: int
    right: R | None


class JoinedRow(msgspec.Struct, Generic[L, R], array_like=True):
    """What is kept of a key of either table. They are told apart by the key itself.

    Of a left one: its row, what was found for it, under which number it asked, and, as long as it waits for the answer, the
    pair that stood before. Of a right one: its row, and who points there, under which number.
    """

    format: Literal[1] = 1
    since: ms.Timestamp = ms.START_OF_TIME
    left: L | None = None
    right: R | None = None
    asked: int = 0
    waits: bool = False
    stood: Pair[L, R | None] | None = None
    pointing: dict[str, int] = msgspec.field(default_factory=dict)


Messages = Left[ms.Change[L]] | Right[ms.Change[R]] | Points | PointedAt[R]


class TableJoin(ms.Computation[JoinedRow[L, R]], Generic[L, R]):
    """`left join right on reference(left) = right_key(right)`, kept up to date: a table under the left table's key.

        located = TableJoin(
            Order,
            Customer,
            left_key=lambda order: order.id,
            reference=lambda order: order.customer,
            right_key=lambda customer: customer.id,
            kind=Kind.LEFT,
        )
        topology.compute("located", located).reads(*located.of(orders, customers))

    `changes` is the table. It talks to itself: a left row tells the key that it refers to, and is told what stands there, now
    and when that changes. Only then is it told: a row that comes, or moves to another partner, is one change. What is on its
    way while a row moves is passed over. A row whose reference is None refers to nothing: it has no partner.

    Kept: both tables once, and who points where.
    """

    changes: ms.Output[ms.Change[Pair[L, R | None]]]
    points: ms.Output[Points] = ms.output(keep=False)
    pointed_at: ms.Output[PointedAt[R]] = ms.output(keep=False)

    def __init__(
        self,
        left: type[L],
        right: type[R],
        *,
        left_key: Callable[[L], str],
        reference: Callable[[L], str | None],
        right_key: Callable[[R], str],
        kind: Kind = Kind.INNER,
    ) -> None:
        self.left, self.right = row_type("TableJoin", left), row_type("TableJoin", right)
        arguments.function("TableJoin: left_key", left_key, "the left row")
        arguments.function("TableJoin: reference", reference, "the left row")
        arguments.function("TableJoin: right_key", right_key, "the right row")
        self.left_key, self.reference, self.right_key = left_key, reference, right_key
        self.kind = arguments.choice("TableJoin", "kind", kind, Kind)

    def type_arguments(self) -> dict[str, Any]:
        return {"L": self.left, "R": self.right}

    def of(self, left: ms.Table[L], right: ms.Table[R]) -> tuple[ms.Stream[Messages[L, R]], ...]:
        """All that it reads: `reads(*join.of(orders, customers))`, under whatever keys these tables have."""
        check_table("TableJoin.of", "the left side", left, self.left)
        check_table("TableJoin.of", "the right side", right, self.right)
        left_key, right_key = self.left_key, self.right_key
        lefts = left.by(lambda change: _at_left(left_key(_row(change)))).map(Left)
        rights = right.by(lambda change: _at_right(right_key(_row(change)))).map(Right)
        return lefts, rights, self.points, self.pointed_at

    def process_record(self, record: ms.Record[Messages[L, R]]) -> None:
        kept = self.state
        at = kept.since = date_of_change(record.timestamp, kept.since, self.low_watermark)
        match record.value:
            case Left(value=change):
                self._take_left(change, at)
            case PointedAt(asked=asked, right=right):
                if kept.left is not None and kept.asked == asked:
                    before, kept.right, kept.waits, kept.stood = self._stands(), right, False, None
                    self._tell(self.left_key(kept.left), before, at)
            case Right(value=change):
                kept.right = change.after
                for left, asked in kept.pointing.items():
                    self.pointed_at.produce(PointedAt(asked, kept.right), timestamp=at, key=_at_left(left))
            case Points(left=left, asked=None):
                kept.pointing.pop(left, None)
            case Points(left=left, asked=int() as asked):
                kept.pointing[left] = asked
                self.pointed_at.produce(PointedAt(asked, kept.right), timestamp=at, key=_at_left(left))
        if self._is_empty():
            last = max(kept.since, ms.Timestamp(kept.asked), key=int) + ms.MICROSECOND
            forget(self, last, since=last)

    def _take_left(self, change: ms.Change[L], at: ms.Timestamp) -> None:
        kept, left, before = self.state, self.left_key(_row(change)), self._stands()
        old, new = (None if row is None else self.reference(row) for row in (kept.left, change.after))
        kept.left = change.after
        if old != new:
            kept.asked = max(kept.asked + 1, int(at))  # a number that this row has not had: answers to others are passed over
            if old is not None:
                self.points.produce(Points(left, None), timestamp=at, key=_at_right(old))
            kept.waits, kept.stood, kept.right = new is not None, before if new is not None else None, None
            if new is not None:
                self.points.produce(Points(left, kept.asked), timestamp=at, key=_at_right(new))
        self._tell(left, before, at)

    def _stands(self) -> Pair[L, R | None] | None:
        """What the table says of this row."""
        kept = self.state
        if kept.waits:
            return kept.stood
        there = kept.left is not None and (kept.right is not None or self.kind is Kind.LEFT)
        return Pair(kept.left, kept.right) if there and kept.left is not None else None

    def _tell(self, left: str, before: Pair[L, R | None] | None, at: ms.Timestamp) -> None:
        after = self._stands()
        if after != before:
            self.changes.produce(ms.Change(before, after), timestamp=at, key=left)

    def process_timer(self, timer: ms.Timer) -> None:
        if is_over(self, timer) and self._is_empty():
            del self.state

    def _is_empty(self) -> bool:
        kept = self.state
        return kept.left is None and kept.right is None and not kept.pointing


def _row(change: ms.Change[V]) -> V:
    row = change.before if change.after is None else change.after
    assert row is not None
    return row


def _at_left(key: str) -> str:
    return ms.key("left", key)


def _at_right(key: str) -> str:
    return ms.key("right", key)
