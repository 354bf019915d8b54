"""Aggregates that are nearly right in little room: how many different ones, quantiles, the most frequent.

They stand on Apache DataSketches. What is kept for a window is the sketch's own bytes; within an epoch it is the sketch itself.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millstream import arguments
from millstream.aggregate import exact
from millstream.aggregate.protocol import Aggregate, EmptySpan, Span
from millstream.errors import TopologyError
from millstream.record import Record

V = TypeVar("V")
V_contra = TypeVar("V_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

HLL_SIZE = 12  # 4,096 registers of 4 bits
DIGEST_SIZE = 200
FREQUENT_SIZE = 10  # up to 768 are counted exactly
MOST_FREQUENT = 100


def _library() -> Any:
    """Imported where it is used: what it makes does not travel to other processes, and not everybody has it."""
    try:
        return importlib.import_module("datasketches")
    except ImportError:
        raise TopologyError("sketches need datasketches; install it with pip install 'millstream[sketches]'") from None


class Sketch(Aggregate[V_contra, Any, R_co], Generic[V_contra, R_co]):
    """What the sketches of the library have in common."""

    @abstractmethod
    def take(self, sketch: Any, value: V_contra) -> None: ...

    def add(self, so_far: Any, record: Record[V_contra], /) -> Any:
        self.take(so_far, record.value)
        return so_far

    def merge(self, one: Any, other: Any, /) -> Any:
        one.merge(other)
        return one

    def dump(self, so_far: Any, /) -> bytes:
        return bytes(so_far.serialize())

    def kept(self, value: Any) -> Any:
        return bytes


@dataclass(frozen=True)
class Distinct(Sketch[V_contra, int]):
    of: Callable[[V_contra], str | int]
    name = "distinct"

    def zero(self) -> Any:
        return _library().hll_sketch(HLL_SIZE)

    def take(self, sketch: Any, value: V_contra) -> None:
        sketch.update(self.of(value))

    def merge(self, one: Any, other: Any, /) -> Any:
        return _united(one, other)

    def result(self, so_far: Any, span: Span, /) -> int:
        # A sketch that was only added to estimates by the order, too; a union of two, be they the same, by what is in it alone.
        return round(float(_united(so_far, so_far).get_estimate()))

    def dump(self, so_far: Any, /) -> bytes:
        return bytes(so_far.serialize_compact())

    def load(self, dumped: bytes, /) -> Any:
        return _library().hll_sketch.deserialize(dumped)

    def returned(self, value: Any) -> Any:
        return int


def _united(*sketches: Any) -> Any:
    both = _library().hll_union(HLL_SIZE)
    for sketch in sketches:
        both.update(sketch)
    return both.get_result()


@dataclass(frozen=True)
class Quantile(Sketch[V_contra, float]):
    rank: float
    of: Callable[[V_contra], float]
    name = "quantile"

    def zero(self) -> Any:
        return _library().tdigest_double(DIGEST_SIZE)

    def take(self, sketch: Any, value: V_contra) -> None:
        sketch.update(exact.finite(self.of(value)))

    def result(self, so_far: Any, span: Span, /) -> float:
        if so_far.is_empty():
            raise EmptySpan("there is no quantile of nothing")
        return float(so_far.get_quantile(self.rank))

    def load(self, dumped: bytes, /) -> Any:
        return _library().tdigest_double.deserialize(dumped)

    def returned(self, value: Any) -> Any:
        return float


@dataclass(frozen=True)
class Frequent(Sketch[V_contra, list[tuple[str, int]]]):
    most: int
    of: Callable[[V_contra], str]
    name = "frequent"

    def zero(self) -> Any:
        return _library().frequent_strings_sketch(FREQUENT_SIZE)

    def take(self, sketch: Any, value: V_contra) -> None:
        sketch.update(self.of(value))

    def result(self, so_far: Any, span: Span, /) -> list[tuple[str, int]]:
        found = so_far.get_frequent_items(_library().frequent_items_error_type.NO_FALSE_NEGATIVES)
        return sorted(((item, least) for item, _, least, _ in found), key=lambda one: (-one[1], one[0]))[: self.most]

    def load(self, dumped: bytes, /) -> Any:
        return _library().frequent_strings_sketch.deserialize(dumped)

    def returned(self, value: Any) -> Any:
        return list[tuple[str, int]]


def distinct(of: Callable[[V], str | int], /) -> Aggregate[V, Any, int]:
    """About how many different ones: exact for some hundred, then within 1.6 % two times of three, in at most 2.1 kB (HyperLogLog).

    The same whatever the order. 0 of nothing.
    """
    _check("distinct", of)
    return Distinct(of)


def quantile(rank: float, of: Callable[[V], float], /) -> Aggregate[V, Any, float]:
    """About the number that a share `rank` of all lies at or below: `quantile(0.99, ...)`; best towards both ends (t-digest).

    It may differ a little with the order of arrival and the cut of epochs. There is none of nothing.
    """
    if not isinstance(rank, int | float) or not 0 <= rank <= 1:
        raise TopologyError(f"quantile({rank!r}, ...): give a share from 0 to 1, such as 0.99")
    _check("quantile", of)
    return Quantile(float(rank), of)


def frequent(most: int, of: Callable[[V], str], /) -> Aggregate[V, Any, list[tuple[str, int]]]:
    """The most frequent ones, up to so many, each with how often it came at the least: exact up to 768 different ones; beyond,
    all that make up more than 1/290 of the whole are among them. Empty of nothing."""
    arguments.number("frequent", "most", most, least=1, most=MOST_FREQUENT)
    _check("frequent", of)
    return Frequent(most, of)


def _check(call: str, of: Any) -> None:
    if not callable(of):
        raise TopologyError(f"{call}({of!r}): give a function of the value, such as lambda click: click.user")
    arguments.function(f"{call}: what it is of", of, "the value")
    _library()
