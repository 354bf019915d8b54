"""What flows and what fires: records, timers, dead letters, and the choices about them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from millstream.timestamp import Timestamp

V_co = TypeVar("V_co", covariant=True)


class Clock(enum.Enum):
    """Which clock a timer waits for."""

    LOW_WATERMARK = "low watermark"
    WALL = "wall"


class Late(enum.Enum):
    """What happens to a record older than the low watermark of its reader."""

    PROCESS = "process"
    DROP = "drop"


class Order(enum.Enum):
    """In which order a computation gets the records of a key: `order = ms.Order.EVENT_TIME` in its class."""

    ARRIVAL = "arrival"
    EVENT_TIME = "event time"


class Since(enum.Enum):
    """Where a computation that is new to a stream begins: `reads(stream, since=ms.Since.OLDEST)`."""

    PRESENT = "present"  # with what comes from now on
    OLDEST = "oldest"  # with the oldest record that the log still has


class Errors(enum.Enum):
    """What happens when a record cannot be decoded, or the code for it raises."""

    FAIL = "fail"
    DEAD_LETTER = "dead letter"


class Record(msgspec.Struct, Generic[V_co], frozen=True, eq=False):
    """One value of a stream, under a key, at a time its producer gave it. Equal to another whether or not either was late.

    It does not change; a changed copy is `msgspec.structs.replace(record, value=1)`, or `copy.replace` from Python 3.13 on.
    """

    # A Struct, for one is made for every record: a tenth of the time of a dataclass.
    key: str
    value: V_co
    timestamp: Timestamp
    late: bool = False
    _from: str = ""  # of its id, all but the number: the same for many records, and put together only when it is asked for
    _number: int = -1

    @property
    def id(self) -> str:
        """Where it was produced, or its place in its source: no other record of the stream has it. Empty for one made by hand."""
        return f"{self._from}{self._number}" if self._from else ""

    def __repr__(self) -> str:
        late = ", late=True" if self.late else ""
        return f"Record(key={self.key!r}, value={self.value!r}, timestamp={self.timestamp!r}{late})"

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not Record:
            return NotImplemented
        return (self.key, self.value, self.timestamp) == (other.key, other.value, other.timestamp)

    def __hash__(self) -> int:
        return hash((self.key, self.value, self.timestamp))


def in_order(record: Record[object]) -> tuple[int, int]:
    """By this, records of one key stand as they were produced, or came in: also those of several epochs, whatever their timestamps."""
    major = record._from.rsplit("/", 2)[1] if record._from else "-1"
    return int(major), record._number


class Timer(msgspec.Struct, frozen=True):
    """A request to be called: one per tag and key."""

    tag: str
    at: Timestamp
    clock: Clock = Clock.LOW_WATERMARK
    hold: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be processed, as it came, with the reason."""

    stream: str
    computation: str | None
    key: str | None
    id: str
    reason: str
    value: str
