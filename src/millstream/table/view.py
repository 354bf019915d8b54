"""A table that follows a stream, by a rule of the user's."""

from __future__ import annotations

import typing
from abc import abstractmethod
from typing import Any, Generic, Literal, TypeVar

import msgspec

import millstream as ms
from millstream.join.sides import row_type
from millstream.table.dating import date_of_change, forget, is_over, keep

E = TypeVar("E")
Row = TypeVar("Row")

_encode = msgspec.msgpack.Encoder().encode


class ViewRow(msgspec.Struct, Generic[Row], array_like=True):
    """The row of a key, and when it last changed."""

    format: Literal[1] = 1
    since: ms.Timestamp = ms.START_OF_TIME
    row: Row | None = None


class View(ms.Computation[ViewRow[Row]], Generic[E, Row]):
    """A table made from a stream: subclass it, and say how a record changes the row of its key.

        class Balances(View[Booking, int]):
            def apply(self, row: int | None, record: ms.Record[Booking]) -> int | None:
                return (row or 0) + record.value.amount

    `changes` is the table. Records count as they come, late ones too; several views may read one stream. Kept: one row a key.
    """

    def state_type(self) -> Any:
        (row,) = typing.get_args(self.output_type("changes"))
        row_type(type(self).__name__, row)
        return super().state_type()

    changes: ms.Output[ms.Change[Row]]

    @abstractmethod
    def apply(self, row: Row | None, record: ms.Record[E], /) -> Row | None:
        """The row after this record; None if there is none. A new one: the old one is part of the change, and must stay as it is."""

    def process_record(self, record: ms.Record[E]) -> None:
        kept, before = self.state, self.state.row
        stood = _encode(before)
        after = self.apply(before, record)
        if _encode(before) != stood:
            raise ms.TopologyError(
                f"{type(self).__name__}.apply has changed the row that it was given, so nobody could be told what it was before; "
                f"return a new one, such as dataclasses.replace(row, ...)"
            )
        if after == before:
            return
        kept.since, kept.row = date_of_change(record.timestamp, kept.since, self.low_watermark), after
        self.changes.produce(ms.Change(before, after), timestamp=kept.since)
        if after is None:
            forget(self, kept.since, since=kept.since)
        elif before is None:
            keep(self)

    def process_timer(self, timer: ms.Timer) -> None:
        if is_over(self, timer):
            del self.state
