"""What an aggregate is: many records as one value, kept while they come."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import msgspec

from millstream.errors import TopologyError
from millstream.record import Record
from millstream.timestamp import Timestamp

A = TypeVar("A")
V_contra = TypeVar("V_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Span(msgspec.Struct, frozen=True, array_like=True):
    """From `start` up to, not including, `end`."""

    start: Timestamp
    end: Timestamp


class EmptySpan(ValueError):
    """Asked for the value of nothing, where nothing has none, such as a mean."""


class Aggregate(ABC, Generic[V_contra, A, R_co]):
    """Makes one `R` of many records of `V`; `A` is what is kept on the way.

    What is kept may be changed in place. `add` and `merge` may change and return their first argument, and leave the other as
    it is. The result must depend on what was added only, not on how it was grouped: windows add to parts and merge them.

        class Longest(aggregate.Aggregate[Click, str, str]):
            def zero(self) -> str:
                return ""

            def add(self, so_far: str, record: ms.Record[Click]) -> str:
                return max(so_far, record.value.page, key=len)

            def merge(self, one: str, other: str) -> str:
                return max(one, other, key=len)

            def result(self, so_far: str, span: aggregate.Span) -> str:
                return so_far

    `dump` and `load` are for what is costly to keep after every record, such as a sketch: it then stays as it is for all
    records of a key in an epoch, and is dumped once at the end.
    """

    @abstractmethod
    def zero(self) -> A:
        """What is kept before anything was added; a new one each time, if it is changed in place."""

    @abstractmethod
    def add(self, so_far: A, record: Record[V_contra], /) -> A:
        """`so_far` with a record more."""

    @abstractmethod
    def merge(self, one: A, other: A, /) -> A:
        """What would be kept if all that was added to either had been added to one. Never returns `other` itself."""

    @abstractmethod
    def result(self, so_far: A, span: Span, /) -> R_co:
        """The value over a span of time; raises EmptySpan if nothing was added and nothing has no value."""

    def dump(self, so_far: A, /) -> Any:
        """What is kept between epochs, of the type that `kept` says; the same as within one, unless this is defined."""
        return so_far

    def load(self, dumped: Any, /) -> A:
        """The other half of `dump`."""
        return typing.cast(A, dumped)

    @property
    def name(self) -> str:
        """State that was kept under another name is refused: it belongs to another aggregate."""
        return type(self).__name__

    def kept(self, value: Any) -> Any:
        """The type of what is kept between epochs, where values of type `value` are added; found in the class's own bases."""
        return self._argument(1, value)

    def returned(self, value: Any) -> Any:
        """The type of the result."""
        return self._argument(2, value)

    def _argument(self, place: int, value: Any) -> Any:
        found = _arguments(type(self))
        wanted = found[place]
        if isinstance(wanted, TypeVar):
            return value if wanted == found[0] else Any
        return wanted


class Reversible(Aggregate[V_contra, A, R_co]):
    """Can take out again what was added: rows of a table change, and a rolling span leaves records behind."""

    @abstractmethod
    def remove(self, so_far: A, record: Record[V_contra], /) -> A:
        """`so_far` without a record that was added before."""


def _arguments(kind: type) -> tuple[Any, ...]:
    """What the bases of a class say for V, A and R."""
    for one in kind.__mro__:
        for base in vars(one).get("__orig_bases__", ()):
            origin = typing.get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Aggregate) and len(typing.get_args(base)) == 3:
                return typing.get_args(base)
    return (Any, Any, Any)


def is_aggregate(call: str, value: Any) -> None:
    """Refuse what is none, while building."""
    if isinstance(value, Aggregate):
        return
    hint = f"; {value.__name__} is a function that makes one: call it" if callable(value) and hasattr(value, "__name__") else ""
    raise TopologyError(f"{call}: {value!r} is not an aggregate; give one, such as aggregate.count(){hint}")
