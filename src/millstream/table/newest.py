"""The newest record of each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import msgspec

import millstream as ms
from millstream import arguments
from millstream.join.sides import row_type
from millstream.table.dating import date_of_change, forget, is_over, keep

V = TypeVar("V")


class NewestRow(msgspec.Struct, Generic[V], array_like=True):
    """The newest value of a key and its time. No value, but a time: it was deleted then."""

    format: Literal[1] = 1
    at: ms.Timestamp = ms.START_OF_TIME
    row: V | None = None


class Newest(ms.Computation[NewestRow[V]], Generic[V]):
    """The newest record of each key, by timestamp, as a table; of those at the same time, the one that came last.

        customers = Newest(Customer, gone=lambda customer: customer.closed)
        topology.compute("customers", customers).reads(registrations)

    `changes` is the table. A value that is `gone` deletes the row. That it did is remembered until the low watermark is
    `remember` past it, so that an older record which comes in the meantime does not bring the row back; one that comes later
    still does. Where nothing that it reads has event time, it is remembered so long on the wall clock.

    `older` has the records that were passed over because a newer one had come. A late record counts like any other.

    Kept: one value a key; of a key whose row is gone, the time of that, for `remember`.
    """

    changes: ms.Output[ms.Change[V]]
    older: ms.Output[V]

    def __init__(self, value: type[V], *, gone: Callable[[V], bool] | None = None, remember: ms.Duration = ms.DAY) -> None:
        self.value = row_type("Newest", value)
        if gone is not None:
            arguments.function("Newest: gone", gone, "the value")
        self.gone = gone
        self.remember = arguments.span("Newest", "remember", remember, least=0)

    def type_arguments(self) -> dict[str, Any]:
        return {"V": self.value}

    def process_record(self, record: ms.Record[V]) -> None:
        kept, at = self.state, record.timestamp
        if at < kept.at:
            self.older.produce(record.value, timestamp=at)
            return
        before = kept.row
        after = None if self.gone is not None and self.gone(record.value) else record.value
        # What was told last is not younger than this record, or than the low watermark was then.
        if after != before:
            self.changes.produce(ms.Change(before, after), timestamp=date_of_change(at, kept.at, self.low_watermark))
        kept.at, kept.row = at, after
        if after is None:
            forget(self, at + self.remember, since=at, remember=self.remember)
        elif before is None:
            keep(self)

    def process_timer(self, timer: ms.Timer) -> None:
        if is_over(self, timer):
            del self.state
