"""How outside data becomes a stream: what an injector is told, and what is promised about the times that records carry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from millstream import arguments
from millstream.clocks import Arrival, OnOurClock
from millstream.errors import TopologyError
from millstream.record import Errors
from millstream.source import Source
from millstream.stream import Stream
from millstream.timestamp import DAY, Duration, Timestamp

V = TypeVar("V")


@dataclass(frozen=True)
class BoundedDisorder:
    """Records come at most `by` out of order within a partition of the source.

    A partition silent for `idle_after` on the wall clock is left out until it speaks again; if all are, the injector is left
    out of its readers' low watermark.
    """

    by: Duration
    idle_after: Duration | None = None

    def __post_init__(self) -> None:
        arguments.span("BoundedDisorder", "by", self.by, least=0)
        arguments.maybe_span("BoundedDisorder", "idle_after", self.idle_after)


@dataclass(frozen=True)
class Explicit(Generic[V]):
    """The source says itself, in each value (or in a column), up to when its partition is complete."""

    of: Callable[[V], Timestamp | datetime] | str
    idle_after: Duration | None = None

    def __post_init__(self) -> None:
        if not callable(self.of) and (not isinstance(self.of, str) or not self.of):
            raise TopologyError(f"Explicit({self.of!r}): give a function of the value, or the name of a column")
        if not isinstance(self.of, str):
            arguments.function("Explicit: what says up to when all has come", self.of, "the value")
        arguments.maybe_span("Explicit", "idle_after", self.idle_after)


@dataclass(frozen=True)
class Timeless:
    """The stream has no event time: it keeps no low watermark back, and no record of it is late.

    For what is not ordered by time: questions, settings, a table that seldom changes. `timestamp` still says what its records
    carry, such as `ms.Arrival()`. A computation that reads nothing else has no event time either, nor has what it produces:
    its low watermark, and with it its timers on that clock, waits until the input has ended.

    >>> import millstream as ms
    >>> topology = ms.Topology("shop")
    >>> rates = topology.inject(
    ...     "rates", ms.values([1.1], float), key=lambda rate: "EUR", timestamp=ms.Arrival(), low_watermark=ms.Timeless()
    ... )
    """


@dataclass(frozen=True)
class Injection:
    """The arguments of `Topology.inject`."""

    name: str
    source: Source[Any]
    key: Callable[[Any], str] | str
    timestamp: Callable[[Any], Timestamp | datetime] | str | Arrival | OnOurClock[Any]
    low_watermark: BoundedDisorder | Explicit[Any] | Timeless
    partition: Callable[[Any], str] | str | None
    errors: Errors
    ahead: Duration = DAY
    keep: bool = True

    @property
    def is_timeless(self) -> bool:
        return isinstance(self.low_watermark, Timeless)

    @property
    def idle_after(self) -> Duration | None:
        return None if isinstance(self.low_watermark, Timeless) else self.low_watermark.idle_after

    @property
    def columns(self) -> dict[str, str]:
        """What is named as a column, by what it is for."""
        policy, timestamp = self.low_watermark, self.timestamp
        roles = {
            "key": self.key,
            **(timestamp.by_role() if isinstance(timestamp, OnOurClock) else {"timestamp": timestamp}),
            "partition": self.partition,
            "low watermark": policy.of if isinstance(policy, Explicit) else None,
        }
        return {role: named for role, named in roles.items() if isinstance(named, str)}


class InjectedStream(Stream[V]):
    """The stream of an injector."""

    def __init__(self, injection: Injection) -> None:
        self.injection, self.name, self.value_type = injection, injection.name, injection.source.value_type

    def __repr__(self) -> str:
        return f"<stream {self.name}>"
