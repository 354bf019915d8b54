"""What changed: the one noun for rows that come, change and go."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from millstream.errors import TopologyError
from millstream.stream import Stream

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True)
class Change(Generic[V_co]):
    """A row before and after. No `before`: it is new. No `after`: it is gone.

    A stream of changes is a *table* under the key of its rows. Of one key, each `before` is the last `after`, and no change is
    older than the one before it. So all changes of a row come from one key of one computation, or from one source.
    """

    before: V_co | None = None
    after: V_co | None = None

    def __post_init__(self) -> None:
        if self.before is None and self.after is None:
            raise ValueError("a change has a before, an after or both")


Table: TypeAlias = Stream[Change[V]]


def inserted(after: V) -> Change[V]:
    """There was no row, and now there is this one."""
    return Change(None, after)


def updated(before: V, after: V) -> Change[V]:
    """A row has become another one."""
    return Change(before, after)


def deleted(before: V) -> Change[V]:
    """There was this row, and now there is none."""
    return Change(before, None)


def key(*parts: str | int) -> str:
    """Several parts as one key; no other parts give the same one: `key("a", 1)` is `["a",1]`."""
    for part in parts:
        if not isinstance(part, str | int):
            raise TopologyError(f"key(...): {part!r} is neither text nor a whole number; write it as text, with str(...)")
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
