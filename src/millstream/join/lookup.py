"""Each record with the row of its key as it stands."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

import millstream as ms
from millstream import arguments
from millstream.join.sides import Left, Pair, Right, check_stream, check_table, row_type

L = TypeVar("L")
R = TypeVar("R")


class LookedUp(msgspec.Struct, Generic[R], array_like=True):
    """The row of a key, if there is one."""

    format: Literal[1] = 1
    row: R | None = None


class Lookup(ms.Computation[LookedUp[R]], Generic[L, R]):
    """Each record with the row of its key as it stands when the record is processed.

        known = Lookup(Order, Customer)
        topology.compute("known", known).reads(*known.of(orders.by(lambda order: order.customer), table=customers))

    It waits for nothing, and so its answers depend on what comes first, the record or the row: use `AsOf` where they must not.
    `unmatched` has the records for whose key there is no row. What it tells has the record's own time, so a late record stays
    late. Kept: the row.
    """

    pairs: ms.Output[Pair[L, R]]
    unmatched: ms.Output[L]

    def __init__(self, value: type[L], row: type[R]) -> None:
        self.value, self.row = arguments.value_type("Lookup", value), row_type("Lookup", row)

    def type_arguments(self) -> dict[str, Any]:
        return {"L": self.value, "R": self.row}

    def of(self, stream: ms.Stream[L], *, table: ms.Table[R]) -> tuple[ms.Stream[Left[L] | Right[ms.Change[R]]], ...]:
        """All that it reads: `reads(*lookup.of(orders, table=customers))`. Both under the key of the table."""
        check_stream("Lookup.of", "the stream", stream, self.value)
        check_table("Lookup.of", "table=", table, self.row)
        return table.map(Right), stream.map(Left)

    def process_record(self, record: ms.Record[Left[L] | Right[ms.Change[R]]]) -> None:
        match record.value:
            case Right(value=change):
                self.state.row = change.after
            case Left(value=value):
                if self.state.row is None:
                    self.unmatched.produce(value, timestamp=record.timestamp)
                else:
                    self.pairs.produce(Pair(value, self.state.row), timestamp=record.timestamp)
