"""Which spans of event time a record falls into."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from millstream import arguments
from millstream.aggregate.protocol import Span
from millstream.errors import TopologyError
from millstream.record import Clock
from millstream.timestamp import MICROSECOND, SECOND, Duration, Timestamp, floor, to_datetime, to_timestamp

R_co = TypeVar("R_co", covariant=True)

NO_TIME = 0 * SECOND
LAST_INSTANT = MICROSECOND  # so far before the end of a span lies the last instant in it
MOST_HOPS = 10_000


class Windowed(msgspec.Struct, Generic[R_co], frozen=True):
    """What the records of a key amount to in a span. It names its key, since `by` and `map` see values only."""

    key: str
    start: Timestamp
    end: Timestamp
    value: R_co


class Windows(Protocol):
    """The spans that a record of some time falls into; where they are to merge, those that overlap become one."""

    @property
    def merges(self) -> bool: ...

    def spans(self, at: Timestamp, /) -> list[Span]: ...


@dataclass(frozen=True)
class Tumbling:
    """One after the other, each `size` long, counted from 1970-01-01T00:00Z plus `offset`."""

    size: Duration
    offset: Duration = NO_TIME
    merges = False

    def __post_init__(self) -> None:
        arguments.span("Tumbling", "size", self.size)
        _check_offset("Tumbling", self.offset)

    def spans(self, at: Timestamp, /) -> list[Span]:
        start = floor(at - self.offset, self.size) + self.offset
        return [Span(start, start + self.size)]


@dataclass(frozen=True)
class Hopping:
    """Each `size` long, one beginning `every` so often; counted as tumbling ones are. `size` is a whole number of `every`."""

    size: Duration
    every: Duration
    offset: Duration = NO_TIME
    merges = False

    def __post_init__(self) -> None:
        arguments.span("Hopping", "size", self.size)
        arguments.span("Hopping", "every", self.every)
        _check_offset("Hopping", self.offset)
        if int(self.size % self.every):
            raise TopologyError(
                f"Hopping(size={int(self.size)}, every={int(self.every)}): size is no whole number of every; "
                f"what is kept is kept once for each `every`, not once for each window"
            )
        if self.hops > MOST_HOPS:
            raise TopologyError(
                f"Hopping: a record would be in {self.hops:,} windows, and the most is {MOST_HOPS:,}; let them begin less often"
            )

    @property
    def hops(self) -> int:
        """How many windows a record falls into."""
        return self.size // self.every

    def spans(self, at: Timestamp, /) -> list[Span]:
        last = floor(at - self.offset, self.every) + self.offset
        starts = [last - back * self.every for back in reversed(range(self.hops))]
        return [Span(start, start + self.size) for start in starts]


@dataclass(frozen=True)
class Session:
    """Records with less than `gap` between neighbours, from the first one up to `gap` after the last."""

    gap: Duration
    merges = True

    def __post_init__(self) -> None:
        arguments.span("Session", "gap", self.gap)

    def spans(self, at: Timestamp, /) -> list[Span]:
        return [Span(at, at + self.gap)]


@dataclass(frozen=True)
class Days:
    """Days as the clocks of a place count them: of 23 or 25 hours when these change."""

    zone: ZoneInfo
    merges = False

    def __post_init__(self) -> None:
        if not isinstance(self.zone, ZoneInfo):
            raise TopologyError(f'Days({self.zone!r}): give a zone, such as zoneinfo.ZoneInfo("Europe/Berlin")')
        if self.zone.key is None:
            raise TopologyError(f"Days({self.zone!r}): give a zone by its name; one from a file cannot be known on other machines")

    def spans(self, at: Timestamp, /) -> list[Span]:
        day = to_datetime(at).astimezone(self.zone).date()
        return [Span(self._midnight(day), self._midnight(day + timedelta(days=1)))]

    def _midnight(self, day: Any) -> Timestamp:
        """Where clocks skip it, the moment at which they do; where they have it twice, the first."""
        return to_timestamp(datetime(day.year, day.month, day.day, tzinfo=self.zone).astimezone(UTC))


@dataclass(frozen=True)
class Every:
    """How often something is told before it is final, and by which clock."""

    span: Duration
    clock: Clock = Clock.WALL

    def __post_init__(self) -> None:
        arguments.span("Every", "span", self.span)
        arguments.choice("Every", "clock", self.clock, Clock)


def _check_offset(call: str, offset: Any) -> None:
    if type(offset) is not int or abs(offset) > int(arguments.LONGEST):
        raise TopologyError(f"{call}(offset={offset!r}): give a ms.Duration, such as 30 * ms.MINUTE")


def check_windows(call: str, windows: Any) -> None:
    """Refuse what does not say spans, while building."""
    if isinstance(windows, Tumbling | Hopping | Session | Days):
        return
    if isinstance(windows, type) or not callable(getattr(windows, "spans", None)) or not isinstance(getattr(windows, "merges", None), bool):
        raise TopologyError(
            f"{call}: {windows!r} does not say which windows; give Tumbling(ms.MINUTE), Hopping(...), Session(...), Days(...), "
            f"or an object with merges and spans(at)"
        )
