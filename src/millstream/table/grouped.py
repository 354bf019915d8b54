"""A table's rows in groups, each an aggregate that follows them."""

from __future__ import annotations

import copy
import functools
import typing
import zlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

import millstream as ms
from millstream import arguments
from millstream.aggregate import Reversible, Span
from millstream.aggregate.combined import checks_itself, parts_of
from millstream.aggregate.live import alive, check_kept, encode
from millstream.aggregate.numbers import Rate
from millstream.aggregate.protocol import is_aggregate
from millstream.join.sides import check_table, row_type
from millstream.table.dating import date_of_change, forget, is_over, keep

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

FORMAT = 1
ALWAYS = Span(ms.START_OF_TIME, ms.END_OF_TIME)


class Regrouped(msgspec.Struct, Generic[V], frozen=True):
    """A change on its way to the group that a row leaves, and to the one that it enters."""

    change: ms.Change[V]


class Group(msgspec.Struct, Generic[A, R], array_like=True):
    """What is kept of a group: by which aggregate, how many rows it has, when it last changed, and as what it was told."""

    format: int
    mark: int
    rows: int
    since: ms.Timestamp
    so_far: A
    told: R | None = None


class Grouped(ms.Computation[Group[Any, R]], Generic[V, R]):
    """`select group, aggregate from table group by group`, kept up to date: a table under the group.

        spent = Grouped(Order, lambda order: order.customer, aggregate.sum(lambda order: order.price))
        topology.compute("spent", spent).reads(*spent.of(orders))

    `changes` is the table. A row that moves leaves one group and enters another; a group without rows is no row. The aggregate
    is a reversible one, so that a row that has changed can be taken out as it was: a count, a sum, a mean; a maximum is not.
    A rate is refused too: the rows of a table are no records of a span of time.

    Kept: one accumulator a group, and as what it was last told.
    """

    changes: ms.Output[ms.Change[R]]

    def __init__(self, value: type[V], group: Callable[[V], str], aggregate: Reversible[V, Any, R]) -> None:
        self.value = row_type("Grouped", value)
        arguments.function("Grouped: the group", group, "the row")
        is_aggregate("Grouped", aggregate)
        if not isinstance(aggregate, Reversible):
            raise ms.TopologyError(
                f"Grouped: {aggregate.name} cannot take a row out again when that changes; give a reversible aggregate, such as count, "
                f"sum or mean"
            )
        if any(isinstance(part, Rate) for part in parts_of(aggregate)):
            raise ms.TopologyError("Grouped: the rows of a table stand for no span of time that a rate could be of; count them instead")
        self.group, self.mark = group, zlib.crc32(aggregate.name.encode())
        self.aggregate = typing.cast(Reversible[V, Any, R], alive(aggregate))
        row_type(f"Grouped: what {aggregate.name} returns", self.aggregate.returned(self.value))
        self._checks = not checks_itself(self.aggregate)
        check_kept("Grouped", aggregate, self.value, lambda: self.decode_state(encode(self.initial_state())))

    def type_arguments(self) -> dict[str, Any]:
        return {"V": self.value, "R": self.aggregate.returned(self.value)}

    def of(self, table: ms.Table[V]) -> tuple[ms.Stream[Regrouped[V]], ...]:
        """What it reads: `reads(*grouped.of(orders))`, each change under both of its groups, whatever key the table has."""
        check_table("Grouped.of", "the table", table, self.value)
        return (table.by_each(functools.partial(_groups, self.group)).map(Regrouped),)

    def state_type(self) -> Any:
        return Group[self.aggregate.kept(self.value), self.aggregate.returned(self.value)]  # type: ignore[misc]

    def initial_state(self) -> Group[Any, R]:
        return Group(FORMAT, self.mark, 0, ms.START_OF_TIME, self.aggregate.zero())

    def process_record(self, record: ms.Record[Regrouped[V]]) -> None:
        kept, change = self.state, record.value.change
        if change.before is not None and self.group(change.before) == self.key:
            kept.so_far, kept.rows = self.aggregate.remove(kept.so_far, self._as_record(change.before, record)), kept.rows - 1
        if change.after is not None and self.group(change.after) == self.key:
            kept.so_far, kept.rows = self.aggregate.add(kept.so_far, self._as_record(change.after, record)), kept.rows + 1
        if kept.rows < 0:
            raise ms.TopologyError(f"a row leaves the group {self.key!r} that never entered it; let it read the table from its beginning")
        if not kept.rows:
            kept.so_far = self.aggregate.zero()
        before, after = kept.told, self.aggregate.result(kept.so_far, ALWAYS) if kept.rows else None
        # What was kept of a type that nobody says comes back as plain types: then only what is written is the same.
        if after != before and encode(after) != encode(before):
            kept.since = date_of_change(record.timestamp, kept.since, self.low_watermark)
            self.changes.produce(ms.Change(before, after), timestamp=kept.since)
            kept.told = copy.deepcopy(after)  # an aggregate may go on changing what it has returned
        if not kept.rows:
            forget(self, kept.since, since=kept.since)
        elif before is None:
            keep(self)

    def _as_record(self, row: V, record: ms.Record[Any]) -> ms.Record[V]:
        return ms.Record(self.key, row, record.timestamp)

    def process_timer(self, timer: ms.Timer) -> None:
        if is_over(self, timer):
            del self.state

    def encode_state(self, state: Group[Any, R]) -> bytes:
        kept = encode(state)
        if self._checks:
            self._decode(kept)
        return kept

    def decode_state(self, stored: bytes) -> Group[Any, R]:
        state = self._decode(stored)
        if state.format != FORMAT:
            raise ValueError(f"it is kept in format {state.format}, and this Millstream knows {FORMAT}")
        if state.mark != self.mark:
            raise ValueError("it was kept by another aggregate; give the computation a new name")
        return state

    @functools.cached_property
    def _decode(self) -> Callable[[bytes], Group[Any, R]]:
        decoder: msgspec.msgpack.Decoder[Group[Any, R]] = msgspec.msgpack.Decoder(self.state_type())
        return decoder.decode

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_decode"}


def _groups(group: Callable[[V], str], change: ms.Change[V]) -> list[str]:
    """Those that a change counts in: one, or two if the row moves."""
    return list(dict.fromkeys(group(row) for row in (change.before, change.after) if row is not None))
