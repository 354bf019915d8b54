"""Clocks that timestamps are told by: a device's own, which may be wrong, and the one of the run, which says when a record came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.timestamp import Timestamp

V = TypeVar("V")


def on_our_clock(occurred: Timestamp, *, sent: Timestamp, received: Timestamp) -> Timestamp:
    """When it occurred, on our clock: as long before `received` as it occurred before `sent`, and never after `received`.

    The device's clock may be wrong by years, as long as it runs evenly from `occurred` to `sent`. The time on the way counts as
    nothing, so the answer is late by it, never early.

    >>> from millstream.timestamp import Timestamp
    >>> int(on_our_clock(Timestamp(0), sent=Timestamp(60), received=Timestamp(1_000)))
    940
    """
    return min(received, received - (sent - occurred))


@dataclass(frozen=True)
class Arrival:
    """`timestamp=ms.Arrival()`: when the run took the record in, by its own clock.

    It is stamped once and stands in the journal with the record: whatever is recovered or read again has the timestamp that it
    had. A record that no commit has is taken in anew.
    """


@dataclass(frozen=True)
class OnOurClock(Generic[V]):
    """`timestamp=ms.OnOurClock(occurred=..., sent=...)`: devices whose clocks are wrong, each in its own way.

    A device says when something occurred and when it sent it, both by its own clock; `received` is when it was received, by ours:
    when the run took it in, unless it is given, as by a server that wrote it down. The timestamp is as long before `received` as
    it occurred before it was sent. Each is a function of the value, or a column where the source has columns.

    >>> from dataclasses import dataclass
    >>> import millstream as ms
    >>> @dataclass(frozen=True)
    ... class Reading:
    ...     sensor: str
    ...     measured: ms.Timestamp
    ...     sent: ms.Timestamp
    >>> topology = ms.Topology("sensors")
    >>> readings = topology.inject(
    ...     "readings",
    ...     ms.values([], Reading),
    ...     key=lambda reading: reading.sensor,
    ...     timestamp=ms.OnOurClock(occurred=lambda reading: reading.measured, sent=lambda reading: reading.sent),
    ...     low_watermark=ms.BoundedDisorder(ms.MINUTE),
    ... )
    """

    occurred: Callable[[V], Timestamp | datetime] | str
    sent: Callable[[V], Timestamp | datetime] | str
    received: Callable[[V], Timestamp | datetime] | str | None = None

    def __post_init__(self) -> None:
        for name, how in self.by_role().items():
            if how is None and name == "received":
                continue
            if not callable(how) and (not isinstance(how, str) or not how):
                raise TopologyError(f"OnOurClock({name}={how!r}): give a function of the value, or the name of a column")
            if not isinstance(how, str):
                arguments.function(f"OnOurClock: {name}", how, "the value")

    def by_role(self) -> dict[str, Any]:
        """The three, by what they are for."""
        return {"occurred": self.occurred, "sent": self.sent, "received": self.received}
