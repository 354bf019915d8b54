"""Aggregates with `dump` and `load`: what they keep lives for a turn of its key, and is dumped once at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.aggregate.protocol import Aggregate, Reversible, Span
from millstream.errors import TopologyError
from millstream.record import Record


class Live:
    """What an aggregate works on; in what is kept, its dump stands in its place."""

    __slots__ = ("aggregate", "value")

    def __init__(self, aggregate: Aggregate[Any, Any, Any], value: Any) -> None:
        self.aggregate, self.value = aggregate, value


def alive(aggregate: Aggregate[Any, Any, Any]) -> Aggregate[Any, Any, Any]:
    """One whose `dump` is called by `encode` only; the same one if it has none."""
    if type(aggregate).dump is Aggregate.dump or isinstance(aggregate, Alive):
        return aggregate
    return ReversibleAlive(aggregate) if isinstance(aggregate, Reversible) else Alive(aggregate)


@dataclass(frozen=True)
class Alive(Aggregate[Any, Any, Any]):
    """Loads what is kept at its first use in a turn: most of what is open, most records leave alone."""

    of: Aggregate[Any, Any, Any]

    @property
    def name(self) -> str:
        return self.of.name

    def zero(self) -> Any:
        return Live(self.of, self.of.zero())

    def add(self, so_far: Any, record: Record[Any], /) -> Any:
        live = self._load(so_far)
        live.value = self.of.add(live.value, record)
        return live

    def merge(self, one: Any, other: Any, /) -> Any:
        live = self._load(one)
        live.value = self.of.merge(live.value, self._load(other).value)
        return live

    def result(self, so_far: Any, span: Span, /) -> Any:
        return self.of.result(self._load(so_far).value, span)

    def kept(self, value: Any) -> Any:
        return self.of.kept(value)

    def returned(self, value: Any) -> Any:
        return self.of.returned(value)

    def _load(self, so_far: Any) -> Live:
        return so_far if so_far.__class__ is Live else Live(self.of, self.of.load(so_far))


class ReversibleAlive(Alive, Reversible[Any, Any, Any]):
    def remove(self, so_far: Any, record: Record[Any], /) -> Any:
        live = self._load(so_far)
        live.value = self.of.remove(live.value, record)  # type: ignore[attr-defined]
        return live


def _dump(value: Any) -> Any:
    if value.__class__ is not Live:
        raise TypeError(f"{type(value).__name__} cannot be kept; keep plain types, or define dump and load")
    return value.aggregate.dump(value.value)


encode = msgspec.msgpack.Encoder(enc_hook=_dump).encode


def check_kept(call: str, aggregate: Aggregate[Any, Any, Any], of: Any, there_and_back: Callable[[], Any]) -> None:
    """Refuse, while building, an aggregate of values of type `of` whose accumulator does not come back from where it is kept."""
    try:
        there_and_back()
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise TopologyError(
            f"{call}: what {aggregate.name} keeps, {aggregate.kept(of)}, cannot be kept: {error}; "
            f"let it keep plain types, dataclasses or Structs, or define dump and load"
        ) from None
