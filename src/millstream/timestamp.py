"""Instants and spans: whole microseconds, told apart by the type checker, plain `int` when running."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import repeat
from operator import floordiv, sub
from typing import TYPE_CHECKING, Final, NewType, final, overload

from millstream.errors import TopologyError

if TYPE_CHECKING:

    @final
    class Duration:
        def __init__(self, microseconds: int, /) -> None: ...
        def __add__(self, other: Duration, /) -> Duration: ...
        def __sub__(self, other: Duration, /) -> Duration: ...
        def __mul__(self, times: int, /) -> Duration: ...
        def __rmul__(self, times: int, /) -> Duration: ...
        @overload
        def __floordiv__(self, other: Duration, /) -> int: ...
        @overload
        def __floordiv__(self, parts: int, /) -> Duration: ...
        def __floordiv__(self, other: Duration | int, /) -> int | Duration: ...
        def __truediv__(self, other: Duration, /) -> float: ...
        def __mod__(self, other: Duration, /) -> Duration: ...
        def __neg__(self) -> Duration: ...
        def __lt__(self, other: Duration, /) -> bool: ...
        def __le__(self, other: Duration, /) -> bool: ...
        def __gt__(self, other: Duration, /) -> bool: ...
        def __ge__(self, other: Duration, /) -> bool: ...
        def __int__(self) -> int: ...

    @final
    class Timestamp:
        def __init__(self, microseconds: int, /) -> None: ...
        def __add__(self, span: Duration, /) -> Timestamp: ...
        def __radd__(self, span: Duration, /) -> Timestamp: ...
        @overload
        def __sub__(self, other: Timestamp, /) -> Duration: ...
        @overload
        def __sub__(self, span: Duration, /) -> Timestamp: ...
        def __sub__(self, other: Timestamp | Duration, /) -> Duration | Timestamp: ...
        def __mod__(self, span: Duration, /) -> Duration: ...
        def __lt__(self, other: Timestamp, /) -> bool: ...
        def __le__(self, other: Timestamp, /) -> bool: ...
        def __gt__(self, other: Timestamp, /) -> bool: ...
        def __ge__(self, other: Timestamp, /) -> bool: ...
        def __int__(self) -> int: ...
else:
    Duration = NewType("Duration", int)
    Timestamp = NewType("Timestamp", int)

MICROSECOND: Final = Duration(1)
MILLISECOND: Final = 1_000 * MICROSECOND
SECOND: Final = 1_000 * MILLISECOND
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
START_OF_TIME: Final = Timestamp(-(2**63))
END_OF_TIME: Final = Timestamp(2**63 - 1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)  # made once: making it costs more than dividing by it


def floor(timestamp: Timestamp, span: Duration) -> Timestamp:
    """The start of the `span` that `timestamp` falls into; `START_OF_TIME` where that would lie before all time."""
    try:
        found = timestamp - timestamp % span
        # Called for every record: the class of the result tells of both arguments, and numbers are compared without names.
        if found.__class__ is int and span > 0 and found >= -0x8000_0000_0000_0000:  # type: ignore[comparison-overlap]
            return found
    except (TypeError, ZeroDivisionError):
        pass
    return _floor(timestamp, span)


def _floor(timestamp: Timestamp, span: Duration) -> Timestamp:
    """What is not usual: a result before all time, or something to refuse."""
    if type(timestamp) is not int:  # type: ignore[comparison-overlap]
        raise TopologyError(f"floor({timestamp!r}, ...): give a ms.Timestamp, which is a whole number of microseconds")
    if type(span) is not int or int(span) <= 0:
        raise TopologyError(f"floor(..., {span!r}): give a positive ms.Duration, such as 5 * ms.SECOND")
    return START_OF_TIME


def to_timestamp(moment: datetime) -> Timestamp:
    """A `datetime` with a time zone, as microseconds since 1970."""
    if not isinstance(moment, datetime):
        raise TypeError(f"to_timestamp({moment!r}): give a datetime with a time zone")
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone; write it with one, such as tzinfo=datetime.UTC")
    return Timestamp((moment - _EPOCH) // _MICROSECOND)


def to_timestamps(moments: Iterable[datetime]) -> list[Timestamp]:
    """Many at a time, without a call of Python's for each; TypeError if one has no time zone."""
    return list(map(floordiv, map(sub, moments, repeat(_EPOCH)), repeat(_MICROSECOND)))


def to_datetime(timestamp: Timestamp) -> datetime:
    """The moment in UTC; raises OverflowError for what a `datetime` cannot hold."""
    if type(timestamp) is not int:  # type: ignore[comparison-overlap]
        raise TypeError(f"to_datetime({timestamp!r}): give a ms.Timestamp, which is a whole number of microseconds")
    try:
        return _EPOCH + timedelta(microseconds=int(timestamp))
    except OverflowError:
        raise OverflowError(
            f"to_datetime({int(timestamp)}): it lies beyond what a datetime can hold, the years 1 to 9999; START_OF_TIME and END_OF_TIME do"
        ) from None


def to_duration(span: timedelta) -> Duration:
    """A `timedelta` as whole microseconds."""
    if not isinstance(span, timedelta):
        raise TypeError(f"to_duration({span!r}): give a timedelta; a ms.Duration is made as 5 * ms.SECOND")
    found = Duration(span // _MICROSECOND)
    if not -int(END_OF_TIME) <= int(found) <= int(END_OF_TIME):
        raise TopologyError(f"to_duration({span!r}): it is longer than all time, which is 64 bits of microseconds; give a shorter one")
    return found


def describe(timestamp: Timestamp) -> str:
    """For people: ISO text, with words for the two ends of time."""
    if timestamp <= START_OF_TIME:
        return "-∞"
    if timestamp >= END_OF_TIME:
        return "+∞"
    try:
        return to_datetime(timestamp).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{int(timestamp)} µs"
