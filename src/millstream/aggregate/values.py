"""Aggregates of the values themselves: the first, the last, all of them."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

import msgspec

from millstream.aggregate.protocol import Aggregate, EmptySpan, Span
from millstream.record import Record
from millstream.timestamp import Timestamp

V = TypeVar("V")


class Dated(msgspec.Struct, Generic[V], array_like=True, frozen=True):
    """A value, and when it was."""

    at: Timestamp
    value: V


_by_time = attrgetter("at")


@dataclass(frozen=True)
class Outermost(Aggregate[V, list[Dated[V]], V], Generic[V]):
    """The first or the last, in a list of at most one."""

    what: Literal["first", "last"]

    @property
    def name(self) -> str:
        return self.what

    def zero(self) -> list[Dated[V]]:
        return []

    def add(self, so_far: list[Dated[V]], record: Record[V], /) -> list[Dated[V]]:
        at = record.timestamp
        if not so_far or (at < so_far[0].at if self.what == "first" else at >= so_far[0].at):
            so_far[:] = [Dated(at, record.value)]
        return so_far

    def merge(self, one: list[Dated[V]], other: list[Dated[V]], /) -> list[Dated[V]]:
        if not one or (other and (other[0].at < one[0].at) == (self.what == "first")):
            one[:] = other
        return one

    def result(self, so_far: list[Dated[V]], span: Span, /) -> V:
        if not so_far:
            raise EmptySpan(f"there is no {self.what} of nothing")
        return so_far[0].value

    def kept(self, value: Any) -> Any:
        return list[Dated[value]]

    def returned(self, value: Any) -> Any:
        return value


@dataclass(frozen=True)
class Collect(Aggregate[V, list[Dated[V]], list[V]], Generic[V]):
    """All of them, in the order of their timestamps."""

    name = "collect"

    def zero(self) -> list[Dated[V]]:
        return []

    def add(self, so_far: list[Dated[V]], record: Record[V], /) -> list[Dated[V]]:
        so_far.append(Dated(record.timestamp, record.value))
        return so_far

    def merge(self, one: list[Dated[V]], other: list[Dated[V]], /) -> list[Dated[V]]:
        one.extend(other)
        return one

    def result(self, so_far: list[Dated[V]], span: Span, /) -> list[V]:
        return [each.value for each in sorted(so_far, key=_by_time)]

    def kept(self, value: Any) -> Any:
        return list[Dated[value]]

    def returned(self, value: Any) -> Any:
        return list[value]
