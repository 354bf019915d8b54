"""What computations produce in an epoch, as columns by stream; and the `produce` that their outputs have while they run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from millstream.core.codec import encode_value, value_decoder, value_encoder
from millstream.core.parts import Columns
from millstream.core.types import GREATEST, LEAST, is_text, not_text, plain_class, reads_back
from millstream.errors import TopologyError
from millstream.stream import called
from millstream.timestamp import Timestamp, describe, to_timestamp

FIRST_DATE = to_timestamp(datetime.min.replace(tzinfo=UTC))  # what a date can hold, and so a table
LAST_DATE = to_timestamp(datetime.max.replace(tzinfo=UTC))
MAX_TOLD = 80  # characters of a value in an error
BUCKET_SHIFT = 40  # the minor of a production's id is bucket << 40 | n


def no_moment(what: str, found: object) -> TopologyError:
    return TopologyError(f"{what} is {found!r}; give a ms.Timestamp (a datetime goes through ms.to_timestamp)")


def no_text(call: str, what: str, found: object) -> TopologyError:
    return TopologyError(f"{call}: {what} is {not_text(what, found, 'use')}")


def _no_value(attribute: str, data: bytes, kind: Any, error: Exception) -> TopologyError:
    text = data.decode(errors="replace")
    text = text if len(text) <= MAX_TOLD else text[:MAX_TOLD] + "…"
    return TopologyError(
        f"{attribute}.produce: the value, {text} as JSON, could not be read back as {called(kind)}, which the output declares: "
        f"{error}; produce what {attribute}: ms.Output[...] says, or let it say what is produced"
    )


class Made:
    """The records of one stream."""

    __slots__ = ("keys", "minors", "timestamps", "values")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.values: list[bytes] = []
        self.timestamps: list[Timestamp] = []
        self.minors: list[int] = []


class Productions:
    """The records that a lane produces in an epoch. Their ids count over all streams of a bucket."""

    def __init__(self) -> None:
        self._streams: dict[str, Made] = {}
        self.order: list[Made] = []  # of the bucket at hand: the stream of each record, in the order in which they were made

    def of(self, stream: str) -> Made:
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = Made()
        return found

    def add(self, stream: str, key: str, value: bytes, timestamp: Timestamp) -> None:
        made = self.of(stream)
        made.keys.append(key)
        made.values.append(value)
        made.timestamps.append(timestamp)
        self.order.append(made)

    def cut(self, length: int) -> None:
        """Forget what was produced in this bucket after the first `length` records."""
        for made in self.order[length:]:
            made.keys.pop()
            made.values.pop()
            made.timestamps.pop()
        del self.order[length:]

    def number(self, bucket: int) -> None:
        """The bucket is done: its records get their ids."""
        for minor, made in enumerate(self.order, bucket << BUCKET_SHIFT):
            made.minors.append(minor)
        self.order.clear()

    def columns(self) -> dict[str, Columns]:
        return {name: Columns(made.keys, made.values, made.timestamps, made.minors) for name, made in self._streams.items() if made.keys}


class Fits:
    """What an output declares to carry, and how a value of it is read back."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.plain = kind, plain_class(kind)
        self.encode: Callable[[Any], bytes] = encode_value
        try:
            self.check = reads_back(kind, value_decoder(kind))
            self.encode = value_encoder(kind)
        except TopologyError:  # such as a dataclass or a dict: nobody reads it by its type, and so there is nothing to check
            self.check = value_decoder(Any)


def lend(own: dict[str, Any], attribute: str, made: Made, order: list[Made], fits: Fits) -> Callable[..., None]:
    """`produce` for an output of a computation whose own dictionary this is: what it needs is bound, so a call is four appends."""
    add_key, add_value, add_timestamp, add = made.keys.append, made.values.append, made.timestamps.append, order.append
    encode, earliest, latest = fits.encode, FIRST_DATE, LAST_DATE
    plain, check, least, greatest = fits.plain, fits.check, LEAST, GREATEST

    def produce(value: Any, *, timestamp: Timestamp, key: str | None = None) -> None:
        if timestamp.__class__ is not int:  # type: ignore[comparison-overlap]
            raise no_moment(f"{attribute}.produce: timestamp", timestamp)
        if not earliest <= timestamp <= latest:
            raise TopologyError(
                f"{attribute}.produce: timestamp is {describe(timestamp)}, out of range for a record; when the input has ended, "
                f"self.low_watermark is ms.END_OF_TIME: use timer.at"
            )
        if key is None:
            key = own["key"]
        elif key.__class__ is not str or not (key.isascii() or is_text(key)):
            raise no_text(f"{attribute}.produce", "key", key)
        # Encoded now, so that a value changed later is sent as it was; and first, for what cannot be encoded leaves no trace.
        data = encode(value)
        if value.__class__ is not plain or (plain is int and not least <= value <= greatest):
            try:
                check(data)
            except Exception as error:
                raise _no_value(attribute, data, fits.kind, error) from None
        add_key(key)
        add_value(data)
        add_timestamp(timestamp)
        add(made)

    return produce
