"""Streams as a topology sees them: who produces them, and how a reader keys or changes their records."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.record import DeadLetter, Record

if TYPE_CHECKING:
    from millstream.computation import Computation
    from millstream.timestamp import Timestamp

V = TypeVar("V")
W = TypeVar("W")
V_co = TypeVar("V_co", covariant=True)


class Stream(Generic[V_co]):
    """A named sequence of records. `by` reads it under another key, `by_each` under several, `map` with another value, `records`
    with each record whole."""

    value_type: Any = None

    def by(self, key: Callable[[V_co], str], /) -> Stream[V_co]:
        """The same stream, its records under the key that `key` finds in their values."""
        return Rekeyed(self, key)

    def by_each(self, keys: Callable[[V_co], Iterable[str]], /) -> Stream[V_co]:
        """The same stream, each record under all the keys that `keys` finds in its value: once under each, and under none not
        at all. The log has it once, under its own key; the status counts what came under no key as `unkeyed`."""
        return Spread(self, keys)

    def map(self, change: Callable[[V_co], W], /) -> Stream[W]:
        """The same stream; its reader sees `change(value)`."""
        return Mapped(self, change)

    @property
    def records(self) -> Stream[Record[V_co]]:
        """The same stream; its reader sees each record whole, and so do `by`, `by_each` and `map` after it: the key, timestamp and
        id with which it was produced or injected, whatever key the reader has it under. `late` is false in it.

            topology.compute("regions", regions).reads(clicks.records.by(lambda record: record.key[:2]))

        The log has the record once. One that was on its way to its reader when the code began to ask for `records` shows the key
        that this reader has it under: its own did not travel with it.
        """
        return Whole(self)

    def origin(self) -> Stream[Any]:
        """The stream as it is produced, without `by`, `map` and `records`."""
        return self

    def changes(self) -> tuple[Hop, ...]:
        """What `by`, `map` and `records` do on the way from the origin to the reader, in order."""
        return ()


class Hop:
    """One `by`, `by_each`, `map` or `records` on the way to a reader. The last is `whole`: the engine makes a record of the value."""

    __slots__ = ("apply", "is_key", "spreads", "whole")

    def __init__(self, apply: Callable[..., Any], *, is_key: bool, spreads: bool = False, whole: bool = False) -> None:
        self.apply, self.is_key, self.spreads, self.whole = apply, is_key, spreads, whole


class Rekeyed(Stream[V_co]):
    def __init__(self, stream: Stream[V_co], key: Callable[[V_co], str]) -> None:
        if not callable(key):
            raise TopologyError(f"by({key!r}): give a function of the value that returns the key, such as lambda click: click.user")
        arguments.function("by: the key", key, "the value")
        self.stream, self.key, self.value_type = stream, key, stream.value_type

    def origin(self) -> Stream[Any]:
        return self.stream.origin()

    def changes(self) -> tuple[Hop, ...]:
        return (*self.stream.changes(), Hop(self.key, is_key=True))


class Spread(Stream[V_co]):
    def __init__(self, stream: Stream[V_co], keys: Callable[[V_co], Iterable[str]]) -> None:
        if not callable(keys):
            raise TopologyError(f"by_each({keys!r}): give a function of the value that returns keys, such as lambda post: post.tags")
        arguments.function("by_each: the keys", keys, "the value")
        self.stream, self.keys, self.value_type = stream, keys, stream.value_type

    def origin(self) -> Stream[Any]:
        return self.stream.origin()

    def changes(self) -> tuple[Hop, ...]:
        return (*self.stream.changes(), Hop(self.keys, is_key=True, spreads=True))


class Mapped(Stream[W], Generic[W]):
    def __init__(self, stream: Stream[Any], change: Callable[[Any], W]) -> None:
        if not callable(change):
            raise TopologyError(f"map({change!r}): give a function of the value")
        arguments.function("map: the change", change, "the value")
        self.stream, self.change = stream, change
        self.value_type = change if isinstance(change, type) else None

    def origin(self) -> Stream[Any]:
        return self.stream.origin()

    def changes(self) -> tuple[Hop, ...]:
        return (*self.stream.changes(), Hop(self.change, is_key=False))


class Whole(Stream[Record[V]], Generic[V]):
    def __init__(self, stream: Stream[V]) -> None:
        values = [hop for hop in stream.changes() if not hop.is_key]
        if values and values[-1].whole:
            raise TopologyError("records: the stream shows records already; leave out one of the two")
        self.stream = stream
        of = Any if stream.value_type is None else stream.value_type
        self.value_type = Record[of]  # type: ignore[valid-type]

    def origin(self) -> Stream[Any]:
        return self.stream.origin()

    def changes(self) -> tuple[Hop, ...]:
        return (*self.stream.changes(), Hop(Record, is_key=False, whole=True))


class DeadLetters(Stream[DeadLetter]):
    """What the injectors and computations of a topology have set aside."""

    name = "dead letters"
    value_type = DeadLetter

    def __init__(self, topology: str) -> None:
        self.topology = topology

    def __repr__(self) -> str:
        return f"<dead letters of topology {self.topology!r}>"


class Output(Stream[V]):
    """A stream that a computation produces: `counts: ms.Output[int]` in its class body."""

    def __init__(self, owner: Computation[Any], attribute: str, value_type: Any, name: str | None = None, *, keep: bool = True) -> None:
        self.owner, self.attribute, self.value_type, self.keep = owner, attribute, value_type, keep
        self.name = name or attribute

    def produce(self, value: V, *, timestamp: Timestamp, key: str | None = None) -> None:
        """Send a record on. Its key is that of the record or timer being processed, unless another is given."""
        # While its computation runs, the engine puts another `produce` into the instance, with all that it needs bound in it.
        raise TopologyError(f"{self.attribute}.produce is there only inside process_record and process_timer")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "produce"}

    def __repr__(self) -> str:
        return f"<output {type(self.owner).__name__}.{self.attribute}>"


def members(kind: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type, itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def called(kind: Any) -> str:
    """A type as a user would write it."""
    if kind is type(None):
        return "None"
    if len(members(kind)) > 1:
        return " | ".join(map(called, members(kind)))
    return getattr(kind, "__name__", str(kind)) if typing.get_origin(kind) is None else str(kind)
