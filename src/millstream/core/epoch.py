"""What goes into an epoch of a bucket, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from millstream.core.low_watermark import LowWatermark
from millstream.core.row import Minima
from millstream.timestamp import Timestamp


class Header(msgspec.Struct, frozen=True):
    """What every part of an epoch knows: its number, its clocks. Fixed before anything runs, so a replay sees the same.

    `before` are the input low watermarks of the epoch before: what a record is late against. A low watermark speaks of
    what comes after its own epoch, so the records of an epoch come first, then it moves on and timers fire.
    """

    epoch: int
    now: Timestamp
    low_watermarks: dict[str, LowWatermark]
    before: dict[str, Timestamp]


@dataclass(slots=True)
class Arrivals:
    """Records on their way into computations, as columns: still encoded, their keys already extracted.

    They stand in the order of their timestamps and ids. `errors` says, by position, why a key could not be extracted.
    """

    inputs: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    timestamps: list[Timestamp] = field(default_factory=list)
    ids: list[tuple[str, int, int]] = field(default_factory=list)  # table, epoch, sequence
    errors: dict[int, str] = field(default_factory=dict)

    def id(self, position: int) -> str:
        table, epoch, sequence = self.ids[position]
        return f"{table}/{epoch}/{sequence}"


@dataclass(slots=True)
class Productions:
    """Records produced, as columns: they go to Arrow and never become rows."""

    streams: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    timestamps: list[Timestamp] = field(default_factory=list)

    def add(self, stream: str, key: str, value: bytes, timestamp: Timestamp) -> None:
        self.streams.append(stream)
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp)

    def cut(self, length: int) -> None:
        """Forget what was produced after the first `length` records."""
        for column in (self.streams, self.keys, self.values, self.timestamps):
            del column[length:]

    def __len__(self) -> int:
        return len(self.streams)


class Tally(msgspec.Struct):
    """Where the records of a computation went: received = applied + dropped + diverted + dead."""

    received: int = 0
    applied: int = 0
    late: int = 0
    dropped: int = 0
    diverted: int = 0
    dead: int = 0
    fired: int = 0
    produced: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class Report(msgspec.Struct):
    """What a bucket says of a computation after an epoch; stays valid until it says something new."""

    minima: Minima
    rows: int
    timers: int


class Summary(msgspec.Struct):
    """All that a bucket says after an epoch, beside its productions."""

    bucket: int
    reports: dict[str, Report]
    tallies: dict[str, Tally]
