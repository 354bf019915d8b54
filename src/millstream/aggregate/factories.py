"""The aggregates that are there: `aggregate.count()`, `aggregate.sum(lambda order: order.price)` and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from millstream import arguments
from millstream.aggregate.combined import combined, made_by
from millstream.aggregate.numbers import Comparable, Count, Extreme, FloatSum, FromMoments, N, Rate, WholeSum
from millstream.aggregate.protocol import Aggregate, Reversible, is_aggregate
from millstream.aggregate.values import Collect, Outermost
from millstream.errors import TopologyError
from millstream.timestamp import SECOND, Duration

V = TypeVar("V")
C = TypeVar("C", bound=Comparable)
R = TypeVar("R")
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")
R5 = TypeVar("R5")
R6 = TypeVar("R6")


def count() -> Reversible[object, Any, int]:
    """How many records; 0 of nothing."""
    return Count()


def rate(*, per: Duration = SECOND) -> Reversible[object, Any, float]:
    """How many records a second, or `per` another span, over the length of the window; 0 of nothing."""
    return Rate(arguments.span("rate", "per", per))


@overload
def sum(of: Callable[[V], float], /) -> Reversible[V, Any, float]: ...
@overload
def sum(of: Callable[[V], N], kind: type[N], /) -> Reversible[V, Any, N]: ...
def sum(of: Callable[[V], Any], kind: type[Any] = float, /) -> Reversible[V, Any, Any]:
    """The sum; 0 of nothing. Floats are added without rounding on the way, so their sum depends on no order, and is rounded once.

    `sum(lambda order: order.cents, int)` is of whole numbers and is one itself; `Decimal` likewise. What is not a number, or not
    a finite one, is an error of its record. No table holds a whole number of more than 64 bits, sign included: a sum beyond
    that is an error of its window when it is told, and one beyond 64 bits without a sign of the record that makes it.
    """
    _is_function("sum", of)
    if kind is float:
        return FloatSum(of)
    from decimal import Decimal

    if kind not in (int, Decimal):
        raise TopologyError(f"sum(..., {kind!r}): give int, decimal.Decimal, or nothing for floats")
    return WholeSum(of, kind)


def mean(of: Callable[[V], float], /) -> Reversible[V, Any, float]:
    """The arithmetic mean: the exact sum by the count, rounded twice. There is none of nothing."""
    _is_function("mean", of)
    return FromMoments(of, "mean")


def stddev(of: Callable[[V], float], /) -> Reversible[V, Any, float]:
    """The standard deviation of the whole population (divided by n). From exact sums, so large numbers that lie close together
    lose no digits. There is none of nothing; of one it is 0."""
    _is_function("stddev", of)
    return FromMoments(of, "stddev")


@overload
def min(of: Callable[[V], float], /) -> Aggregate[V, Any, float]: ...
@overload
def min(of: Callable[[V], C], kind: type[C], /) -> Aggregate[V, Any, C]: ...
def min(of: Callable[[V], Any], kind: type[Any] = float, /) -> Aggregate[V, Any, Any]:
    """The least; there is none of nothing. `min(lambda order: order.name, str)` for what is not a float."""
    return _extreme("min", of, kind)


@overload
def max(of: Callable[[V], float], /) -> Aggregate[V, Any, float]: ...
@overload
def max(of: Callable[[V], C], kind: type[C], /) -> Aggregate[V, Any, C]: ...
def max(of: Callable[[V], Any], kind: type[Any] = float, /) -> Aggregate[V, Any, Any]:
    """The greatest; there is none of nothing. `max(lambda order: order.name, str)` for what is not a float."""
    return _extreme("max", of, kind)


def _extreme(what: Any, of: Callable[[V], Any], kind: type[Any]) -> Aggregate[V, Any, Any]:
    _is_function(what, of)
    if not isinstance(kind, type):
        raise TopologyError(f"{what}(..., {kind!r}): give the class of what is compared, such as int, str or datetime")
    return Extreme(of, kind, what)


def first(of: type[V], /) -> Aggregate[V, Any, V]:
    """The oldest value by timestamp; of several at the same time, the one that came first. There is none of nothing."""
    arguments.value_type("first", of)
    return Outermost[V]("first")


def last(of: type[V], /) -> Aggregate[V, Any, V]:
    """The newest value by timestamp; of several at the same time, the one that came last. There is none of nothing."""
    arguments.value_type("last", of)
    return Outermost[V]("last")


def collect(of: type[V], /) -> Aggregate[V, Any, list[V]]:
    """All values, in the order of their timestamps; of several at the same time, as they came. It keeps every one: for what is short."""
    arguments.value_type("collect", of)
    return Collect[V]()


@overload
def combine(make: Callable[[R1, R2], R], one: Reversible[V, Any, R1], two: Reversible[V, Any, R2], /) -> Reversible[V, Any, R]: ...
@overload
def combine(make: Callable[[R1, R2], R], one: Aggregate[V, Any, R1], two: Aggregate[V, Any, R2], /) -> Aggregate[V, Any, R]: ...
@overload
def combine(
    make: Callable[[R1, R2, R3], R], one: Reversible[V, Any, R1], two: Reversible[V, Any, R2], three: Reversible[V, Any, R3], /
) -> Reversible[V, Any, R]: ...
@overload
def combine(
    make: Callable[[R1, R2, R3], R], one: Aggregate[V, Any, R1], two: Aggregate[V, Any, R2], three: Aggregate[V, Any, R3], /
) -> Aggregate[V, Any, R]: ...
@overload
def combine(
    make: Callable[[R1, R2, R3, R4], R],
    one: Aggregate[V, Any, R1],
    two: Aggregate[V, Any, R2],
    three: Aggregate[V, Any, R3],
    four: Aggregate[V, Any, R4],
    /,
) -> Aggregate[V, Any, R]: ...
@overload
def combine(
    make: Callable[[R1, R2, R3, R4, R5], R],
    one: Aggregate[V, Any, R1],
    two: Aggregate[V, Any, R2],
    three: Aggregate[V, Any, R3],
    four: Aggregate[V, Any, R4],
    five: Aggregate[V, Any, R5],
    /,
) -> Aggregate[V, Any, R]: ...
@overload
def combine(
    make: Callable[[R1, R2, R3, R4, R5, R6], R],
    one: Aggregate[V, Any, R1],
    two: Aggregate[V, Any, R2],
    three: Aggregate[V, Any, R3],
    four: Aggregate[V, Any, R4],
    five: Aggregate[V, Any, R5],
    six: Aggregate[V, Any, R6],
    /,
) -> Aggregate[V, Any, R]: ...
def combine(make: Callable[..., Any], /, *parts: Aggregate[Any, Any, Any]) -> Aggregate[Any, Any, Any]:
    """Several at once: `combine(Sales, count(), sum(lambda order: order.price))` gives `Sales(count, sum)`.

    `make` is a class, or a function that is annotated with what it returns: by that type the value is read back. Results are
    given by position. There is a value of nothing if each part has one.
    """
    if not callable(make):
        raise TopologyError(f"combine({make!r}, ...): give a class or a function that makes one value of the results")
    if len(parts) < 2:
        raise TopologyError("combine: give at least two aggregates; one needs none")
    for part in parts:
        is_aggregate("combine", part)
    arguments.function("combine: make", make, *(part.name for part in parts))
    if made_by(make) is None:
        raise TopologyError(
            f"combine({getattr(make, '__qualname__', repr(make))}, ...): nobody says what it returns, so values would come back as plain "
            f"types; give a class, or a function that is annotated with what it returns"
        )
    return combined(make, parts)


def _is_function(call: str, of: Any) -> None:
    if not callable(of):
        raise TopologyError(f"{call}({of!r}): give a function of the value, such as lambda order: order.price")
    arguments.function(f"{call}: what it is of", of, "the value")
