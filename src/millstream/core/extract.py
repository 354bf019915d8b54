"""What an injector does with each value: decode it, find its key and timestamp, and refuse what cannot be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from millstream.core.codec import value_decoder
from millstream.core.types import is_text, not_text
from millstream.errors import MillstreamError
from millstream.injector import BoundedDisorder, Injection
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
    complete: Timestamp  # up to when its partition is complete, by what this record says


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
        self._explicit = None if isinstance(policy, BoundedDisorder) else policy.of

    def extract(self, value: Any, columns: dict[str, Any], *, now: Timestamp) -> Extracted:
        injection = self._injection
        key = self._find("key", injection.key, value, columns)
        if not is_text(key):
            raise RefusedValue(f"its key is {not_text('key', key, 'return')}")
        timestamp = self._moment("timestamp", injection.timestamp, value, columns)
        check_timestamp(timestamp, ahead=injection.ahead, now=now)
        partition = "" if injection.partition is None else self._find("partition", injection.partition, value, columns)
        if not is_text(partition):
            raise RefusedValue(f"its partition is {not_text('partition', partition, 'return')}")
        if self._disorder is not None:
            complete = timestamp - self._disorder
        else:
            assert self._explicit is not None
            complete = self._moment("low watermark", self._explicit, value, columns)
            if now + injection.ahead < complete < END_OF_TIME:
                raise FarFuture(f"its low watermark {describe(complete)} is far after the clock; allow it with inject(..., ahead=...)")
        return Extracted(key, timestamp, partition, complete)

    def extract_all(self, values: Sequence[Any], *, now: Timestamp) -> Chunk | None:
        """What `extract` finds in each, as columns: the functions are mapped over the chunk and their results checked by
        column. None on any doubt: then each is to be asked for by itself, and some will be refused."""
        injection = self._injection
        if (
            self._disorder is None
            or isinstance(injection.key, str)
            or isinstance(injection.timestamp, str)
            or isinstance(injection.partition, str)
        ):
            return None
        if not values:
            return Chunk([], [], {})
        try:
            keys, found = list(map(injection.key, values)), list(map(injection.timestamp, values))
            timestamps = to_timestamps(found) if set(map(type, found)) == {datetime} else found  # type: ignore[arg-type]
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
        if partitions is None:
            return Chunk(keys, stamps, {"": last - self._disorder})
        marks: dict[str, Timestamp] = {}
        for partition, at in zip(partitions, stamps, strict=True):
            if partition not in marks or at > marks[partition]:
                marks[partition] = at
        return Chunk(keys, stamps, {partition: at - self._disorder for partition, at in marks.items()})

    def _moment(self, what: str, how: Callable[[Any], Any] | str, value: Any, columns: dict[str, Any]) -> Timestamp:
        return as_timestamp(what, self._find(what, how, value, columns))

    def _find(self, what: str, how: Callable[[Any], Any] | str, value: Any, columns: dict[str, Any]) -> Any:
        if isinstance(how, str):
            return columns[what]
        try:
            return how(value)
        except Exception as error:
            raise RefusedValue(f"its {what} cannot be extracted: {type(error).__name__}: {error}") from error


def as_timestamp(what: str, found: Any) -> Timestamp:
    """A timestamp from what an extractor returned."""
    if found.__class__ is int:
        if found in OTHER_UNITS:
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
