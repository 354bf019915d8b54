"""Several aggregates at once."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.aggregate.live import alive
from millstream.aggregate.numbers import Count, Extreme, FloatSum, FromMoments, Rate, WholeSum
from millstream.aggregate.protocol import Aggregate, Reversible, Span
from millstream.record import Record

CHECK_THEMSELVES = (Count, Rate, FloatSum, WholeSum, FromMoments, Extreme)  # what these keep can always be read back


@dataclass(frozen=True)
class Combined(Aggregate[Any, tuple[Any, ...], Any]):
    """Keeps what each part keeps, and makes one value of their results."""

    make: Callable[..., Any]
    parts: tuple[Aggregate[Any, Any, Any], ...]

    @property
    def name(self) -> str:
        return f"combine({', '.join(part.name for part in self.parts)})"

    def zero(self) -> tuple[Any, ...]:
        return tuple(part.zero() for part in self.parts)

    def add(self, so_far: tuple[Any, ...], record: Record[Any], /) -> tuple[Any, ...]:
        return tuple([part.add(kept, record) for part, kept in zip(self.parts, so_far, strict=True)])

    def merge(self, one: tuple[Any, ...], other: tuple[Any, ...], /) -> tuple[Any, ...]:
        return tuple([part.merge(a, b) for part, a, b in zip(self.parts, one, other, strict=True)])

    def result(self, so_far: tuple[Any, ...], span: Span, /) -> Any:
        return self.make(*[part.result(kept, span) for part, kept in zip(self.parts, so_far, strict=True)])

    def kept(self, value: Any) -> Any:
        return tuple[tuple(part.kept(value) for part in self.parts)]  # type: ignore[misc]

    def returned(self, value: Any) -> Any:
        return made_by(self.make)


class ReversibleCombined(Combined, Reversible[Any, tuple[Any, ...], Any]):
    """Where every part can take out again, so can all together."""

    def remove(self, so_far: tuple[Any, ...], record: Record[Any], /) -> tuple[Any, ...]:
        return tuple([part.remove(kept, record) for part, kept in zip(self.parts, so_far, strict=True)])  # type: ignore[attr-defined]


def combined(make: Callable[..., Any], parts: tuple[Aggregate[Any, Any, Any], ...]) -> Combined:
    kind = ReversibleCombined if all(isinstance(part, Reversible) for part in parts) else Combined
    return kind(make, tuple(map(alive, parts)))


def checks_itself(aggregate: Aggregate[Any, Any, Any]) -> bool:
    """Whether what it keeps can always be read back."""
    return all(isinstance(part, CHECK_THEMSELVES) for part in parts_of(aggregate))


def parts_of(aggregate: Aggregate[Any, Any, Any]) -> list[Aggregate[Any, Any, Any]]:
    """What is combined, at any depth; of any other, itself."""
    if isinstance(aggregate, Combined):
        return [one for part in aggregate.parts for one in parts_of(part)]
    return [aggregate]


def made_by(make: Any) -> Any:
    """The type of what a class or an annotated function makes; None if nobody says."""
    if isinstance(make, type) or typing.get_origin(make) is not None:
        return make
    while isinstance(make, functools.partial):
        make = make.func
    called = make if isinstance(make, types.FunctionType | types.MethodType) else type(make).__call__
    try:
        return typing.get_type_hints(called).get("return")
    except (NameError, TypeError):
        return None
