"""What an injector does with each value: decode it, find its key and timestamp, and refuse what cannot be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from millstream.clocks import Arrival, OnOurClock, on_our_clock
from millstream.core.codec import value_decoder
from millstream.core.types import is_text, not_text
from millstream.errors import MillstreamError
from millstream.injector import BoundedDisorder, Explicit, Injection
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Duration, Timestamp, describe, to_timestamp, to_timestamps

EARLIEST = to_timestamp(datetime.fromisoformat("1800-01-01T00:00:00+00:00"))


# As microseconds these lie in the first weeks of 1970; as seconds or milliseconds they lie in our time.
OTHER_UNITS = range(100_000_000, 5_000_000_000_000)


def believable(*, ahead: Duration, now: Timestamp) -> tuple[range, range]:
    """The timestamps that a record may have, as numbers: all others are refused, one by one or by column.

    A `datetime` says its unit itself, and may lie between the two ranges as well.
    """
    limit = int(now + ahead) + 1
    return range(int(EARLIEST), min(OTHER_UNITS.start, limit)), range(OTHER_UNITS.stop, limit)


class RefusedValue(MillstreamError):
    """A value that cannot become a record; the message says why."""


class FarFuture(RefusedValue):
    """A timestamp that is not believed: it would take the low watermark with it."""


class Extracted(msgspec.Struct, frozen=True):
    key: str
    timestamp: Timestamp
    partition: str
    complete: Timestamp | None  # up to when its partition is complete, by what this record says; None if it has no event time


class Chunk(NamedTuple):
    """What was found in many values, as columns, and up to when each partition is complete by what they say."""

    keys: list[str]
    timestamps: list[Timestamp]
    marks: dict[str, Timestamp]


class Extractor:
    """The functions of one injection, applied to one value at a time. Columns are found by the caller and passed in."""

    def __init__(self, injection: Injection, *, strict: bool = True) -> None:
        self._injection = injection
        self.decode = value_decoder(injection.source.value_type, strict=strict)
        policy = injection.low_watermark
        self._disorder: Duration | None = policy.by if isinstance(policy, BoundedDisorder) else None
        self._explicit = policy.of if isinstance(policy, Explicit) else None
        asks_each = self._explicit is not None or isinstance(injection.timestamp, OnOurClock) or injection.columns
        self._by_chunk: Any = None if asks_each else injection  # its functions are no names of columns then

    def extract(self, value: Any, columns: dict[str, Any], *, now: Timestamp, arrived: Timestamp | None = None) -> Extracted:
        """What it says of one value. `arrived` is when it was taken in, if that is not `now`, by which the far future is judged."""
        injection = self._injection
        key = self._find("key", injection.key, value, columns)
        if not is_text(key):
            raise RefusedValue(f"its key is {not_text('key', key, 'return')}")
        timestamp = self._timestamp(value, columns, now if arrived is None else arrived)
        check_timestamp(timestamp, ahead=injection.ahead, now=now)
        partition = "" if injection.partition is None else self._find("partition", injection.partition, value, columns)
        if not is_text(partition):
            raise RefusedValue(f"its partition is {not_text('partition', partition, 'return')}")
        complete: Timestamp | None = None
        if self._disorder is not None:
            complete = timestamp - self._disorder
        elif self._explicit is not None:
            complete = self._moment("low watermark", self._explicit, value, columns)
            if now + injection.ahead < complete < END_OF_TIME:
                raise FarFuture(f"its low watermark {describe(complete)} is far after the clock; allow it with inject(..., ahead=...)")
        return Extracted(key, timestamp, partition, complete)

    def extract_all(self, values: Sequence[Any], *, now: Timestamp, arrived: Timestamp | None = None) -> Chunk | None:
        """What `extract` finds in each, as columns: the functions are mapped over the chunk and their results checked by
        column. None on any doubt: then each is to be asked for by itself, and some will be refused."""
        injection = self._by_chunk
        if injection is None:
            return None
        if not values:
            return Chunk([], [], {})
        try:
            keys = list(map(injection.key, values))
            at = injection.timestamp
            found: list[Any] = [now if arrived is None else arrived] * len(values) if isinstance(at, Arrival) else list(map(at, values))
            timestamps = to_timestamps(found) if set(map(type, found)) == {datetime} else found
            partitions = None if injection.partition is None else list(map(injection.partition, values))
        except Exception:
            return None  # functions are called anew then: they are functions of the value
        # bool is an int: only the very types are beyond doubt.
        if set(map(type, keys)) != {str} or set(map(type, timestamps)) != {int} or (partitions and set(map(type, partitions)) != {str}):
            return None
        if not is_text("".join(keys)) or (partitions and not is_text("".join(partitions))):
            return None
        stamps = cast(list[Timestamp], timestamps)
        first, last = min(stamps), max(stamps)
        if not any(int(first) in those and int(last) in those for those in believable(ahead=injection.ahead, now=now)):
            return None
        if self._disorder is None:
            return Chunk(keys, stamps, {})
        if partitions is None:
            return Chunk(keys, stamps, {"": last - self._disorder})
        marks: dict[str, Timestamp] = {}
        for partition, at in zip(partitions, stamps, strict=True):
            if partition not in marks or at > marks[partition]:
                marks[partition] = at
        return Chunk(keys, stamps, {partition: at - self._disorder for partition, at in marks.items()})

    def _timestamp(self, value: Any, columns: dict[str, Any], arrived: Timestamp) -> Timestamp:
        how = self._injection.timestamp
        if isinstance(how, Arrival):
            return arrived
        if not isinstance(how, OnOurClock):
            return self._moment("timestamp", how, value, columns)
        received = arrived if how.received is None else self._moment("received", how.received, value, columns)
        occurred, sent = (
            as_timestamp(what, self._find(what, of, value, columns), any_clock=True)
            for what, of in (("occurred", how.occurred), ("sent", how.sent))
        )
        return on_our_clock(occurred, sent=sent, received=received)

    def _moment(self, what: str, how: Callable[[Any], Any] | str, value: Any, columns: dict[str, Any]) -> Timestamp:
        return as_timestamp(what, self._find(what, how, value, columns))

    def _find(self, what: str, how: Callable[[Any], Any] | str, value: Any, columns: dict[str, Any]) -> Any:
        if isinstance(how, str):
            return columns[what]
        try:
            return how(value)
        except Exception as error:
            raise RefusedValue(f"its {what} cannot be extracted: {type(error).__name__}: {error}") from error


def as_timestamp(what: str, found: Any, *, any_clock: bool = False) -> Timestamp:
    """A timestamp from what an extractor returned. One of `any_clock` may lie anywhere: a device may begin to count in 1970."""
    if found.__class__ is int:
        if found in OTHER_UNITS and not any_clock:
            raise RefusedValue(f"its {what} is {found}; is it in seconds or milliseconds? A ms.Timestamp counts microseconds since 1970")
        if not int(START_OF_TIME) <= found <= int(END_OF_TIME):
            raise RefusedValue(f"its {what} is {found}, beyond the ends of time; a ms.Timestamp counts microseconds since 1970")
        return Timestamp(found)
    if isinstance(found, datetime):
        try:
            return to_timestamp(found)
        except ValueError as error:
            raise RefusedValue(f"its {what}: {error}") from None
    raise RefusedValue(f"its {what} is {found!r}; return a datetime with a time zone or a ms.Timestamp")


def check_timestamp(timestamp: Timestamp, *, ahead: Duration, now: Timestamp) -> None:
    """Refuse what cannot be the time of a record."""
    if timestamp < EARLIEST:
        raise RefusedValue(
            f"its timestamp is {describe(timestamp)}, out of range for a record; a ms.Timestamp counts microseconds since 1970"
        )
    if timestamp > now + ahead:
        far = f"more than {int(ahead) / 1e6:,.0f} s after the clock"
        raise FarFuture(f"its timestamp {describe(timestamp)} is {far}; allow it with inject(..., ahead=...)")
