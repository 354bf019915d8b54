"""Aggregates of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from millstream.aggregate import exact
from millstream.aggregate.protocol import Aggregate, EmptySpan, Reversible, Span
from millstream.record import Record
from millstream.timestamp import Duration

V_contra = TypeVar("V_contra", contravariant=True)
N = TypeVar("N", int, Decimal)
C = TypeVar("C", bound="Comparable")


class Comparable(Protocol):
    """What has a least and a greatest: numbers, text, times."""

    def __lt__(self, other: Any, /) -> bool: ...


class Count(Reversible[object, int, int]):
    name = "count"

    def zero(self) -> int:
        return 0

    def add(self, so_far: int, record: Record[object], /) -> int:
        return so_far + 1

    def remove(self, so_far: int, record: Record[object], /) -> int:
        return so_far - 1

    def merge(self, one: int, other: int, /) -> int:
        return one + other

    def result(self, so_far: int, span: Span, /) -> int:
        return so_far


@dataclass(frozen=True)
class Rate(Reversible[object, int, float]):
    per: Duration
    name = "rate"

    def zero(self) -> int:
        return 0

    def add(self, so_far: int, record: Record[object], /) -> int:
        return so_far + 1

    def remove(self, so_far: int, record: Record[object], /) -> int:
        return so_far - 1

    def merge(self, one: int, other: int, /) -> int:
        return one + other

    def result(self, so_far: int, span: Span, /) -> float:
        return so_far * int(self.per) / int(span.end - span.start)


@dataclass(frozen=True)
class WholeSum(Reversible[V_contra, N, N], Generic[V_contra, N]):
    """Of whole numbers, exact by nature, or of decimals, exact to the 28 digits of Python's usual context."""

    of: Callable[[V_contra], N]
    kind: type[N]

    @property
    def name(self) -> str:
        return f"sum of {self.kind.__name__}"

    def zero(self) -> N:
        return self.kind()

    def add(self, so_far: N, record: Record[V_contra], /) -> N:
        return so_far + self._taken(record)

    def remove(self, so_far: N, record: Record[V_contra], /) -> N:
        return so_far - self._taken(record)

    def _taken(self, record: Record[V_contra]) -> N:
        found = self.of(record.value)
        if not isinstance(found, self.kind):
            raise TypeError(f"{found!r} is not an {self.kind.__name__}, which this sum is of; leave the type out to add floats")
        exact.check_finite(found)
        return found

    def merge(self, one: N, other: N, /) -> N:
        return one + other

    def result(self, so_far: N, span: Span, /) -> N:
        return so_far

    def kept(self, value: Any) -> Any:
        return self.kind

    def returned(self, value: Any) -> Any:
        return self.kind


@dataclass(frozen=True)
class FloatSum(Reversible[V_contra, list[float], float]):
    of: Callable[[V_contra], float]
    name = "sum"

    def zero(self) -> list[float]:
        return []

    def add(self, so_far: list[float], record: Record[V_contra], /) -> list[float]:
        exact.add(so_far, exact.finite(self.of(record.value)))
        return so_far

    def remove(self, so_far: list[float], record: Record[V_contra], /) -> list[float]:
        exact.add(so_far, -exact.finite(self.of(record.value)))
        return so_far

    def merge(self, one: list[float], other: list[float], /) -> list[float]:
        exact.merge(one, other)
        return one

    def result(self, so_far: list[float], span: Span, /) -> float:
        return exact.total(so_far)


class Moments(msgspec.Struct, array_like=True):
    """Exact sums: of how many, of their values, of their squares."""

    count: int
    sum: list[float]
    squares: list[float]


@dataclass(frozen=True)
class FromMoments(Reversible[V_contra, Moments, float]):
    """Mean or standard deviation."""

    of: Callable[[V_contra], float]
    what: Literal["mean", "stddev"]

    @property
    def name(self) -> str:
        return self.what

    def zero(self) -> Moments:
        return Moments(0, [], [])

    def add(self, so_far: Moments, record: Record[V_contra], /) -> Moments:
        return self._take(so_far, record, 1)

    def remove(self, so_far: Moments, record: Record[V_contra], /) -> Moments:
        return self._take(so_far, record, -1)

    def _take(self, so_far: Moments, record: Record[V_contra], sign: int) -> Moments:
        number = exact.finite(self.of(record.value))
        if self.what == "stddev":
            exact.add_square(so_far.squares, number, sign=sign)
        exact.add(so_far.sum, sign * number)
        so_far.count += sign
        return so_far

    def merge(self, one: Moments, other: Moments, /) -> Moments:
        one.count += other.count
        exact.merge(one.sum, other.sum)
        exact.merge(one.squares, other.squares)
        return one

    def result(self, so_far: Moments, span: Span, /) -> float:
        if not so_far.count:
            raise EmptySpan(f"there is no {self.what} of nothing")
        if self.what == "stddev":
            return exact.deviation(so_far.count, so_far.sum, so_far.squares)
        return exact.total(so_far.sum) / so_far.count


@dataclass(frozen=True)
class Extreme(Aggregate[V_contra, list[C], C], Generic[V_contra, C]):
    """The least or the greatest, in a list of at most one."""

    of: Callable[[V_contra], C]
    kind: Any
    what: Literal["min", "max"]

    @property
    def name(self) -> str:
        return self.what

    def zero(self) -> list[C]:
        return []

    def add(self, so_far: list[C], record: Record[V_contra], /) -> list[C]:
        found = self.of(record.value)
        if not isinstance(found, self.takes):
            raise TypeError(f"{found!r} is no {self.kind.__name__}; name the type of what is compared, as in {self.what}(..., str)")
        exact.check_finite(found)
        return self._better(so_far, found)

    @property
    def takes(self) -> tuple[Any, ...]:
        return (self.kind, int) if self.kind is float else (self.kind,)

    def merge(self, one: list[C], other: list[C], /) -> list[C]:
        return self._better(one, other[0]) if other else one

    def _better(self, so_far: list[C], new: C) -> list[C]:
        if not so_far or (new < so_far[0] if self.what == "min" else so_far[0] < new):
            so_far[:] = [new]
        return so_far

    def result(self, so_far: list[C], span: Span, /) -> C:
        if not so_far:
            raise EmptySpan(f"there is no {self.what} of nothing")
        return so_far[0]

    def kept(self, value: Any) -> Any:
        return list[self.kind]  # type: ignore[name-defined]

    def returned(self, value: Any) -> Any:
        return self.kind
