"""Python values as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.source import Source, SourceContext, SourceReader

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True)
class ValueSource(Source[V_co]):
    """`values` makes one. Its position is the number of values that were taken."""

    values: Iterable[V_co] | Callable[[int], Iterator[V_co]]
    value_type: Any
    bounded: bool = True  # when it ends; it need not

    def describe(self) -> str:
        return "Python values"

    def open(self, context: SourceContext) -> SourceReader:
        from millstream.sources.values import ValuesReader

        return ValuesReader(self, context)

    def left_over(self, context: SourceContext) -> str | None:
        taken = int(context.positions.get("", 0))
        if not isinstance(self.values, Sized) or len(self.values) <= taken:
            return None
        return f"the {len(self.values) - taken} that its values have more now are not taken; inject them under another name"


def values(of: Iterable[V] | Callable[[int], Iterator[V]], value: type[V] | UnionType) -> Source[V]:
    """Python values, taken one by one as they come; the stream ends when they do.

    After a restart, an iterable is gone through again and what was taken already is passed over;
    a function is called with the number of values taken so far, and goes on from there.

        ms.values([Query("spark", noon)], Query)
    """
    if not callable(of) and (isinstance(of, str | bytes) or not isinstance(of, Iterable)):
        raise TopologyError(
            f"values({of!r}): give an iterable of values, or a function of the number of values taken so far that makes one"
        )
    if callable(of):
        arguments.function("values: what makes the values", of, "the number of values taken so far")
    elif isinstance(of, set | frozenset):
        raise TopologyError(
            f"values: a {type(of).__name__} has no order that is the same after a restart; give a list, such as sorted(...)"
        )
    elif isinstance(of, Mapping):
        raise TopologyError(f"values: a {type(of).__name__} would give its keys; give a list, such as list(....values())")
    return ValueSource(of, arguments.value_type("values", value))
