"""What every part of an epoch knows, and what its buckets say after it."""

from __future__ import annotations

import msgspec

from millstream.core.low_watermark import LowWatermark
from millstream.core.row import Minima
from millstream.timestamp import Timestamp

EPOCH_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds, by which epochs are counted


class Header(msgspec.Struct, frozen=True):
    """What every part of an epoch knows: its number and its clocks, fixed when it is planned.

    Low watermarks are those of the computations that have something to do: the others cost nothing. `before` are the input
    low watermarks of the epoch before: what a record is late against. A low watermark speaks of what comes after its own
    epoch, so the records of an epoch come first, then it moves on and timers fire.
    """

    epoch: int
    now: Timestamp
    low_watermarks: dict[str, LowWatermark]
    before: dict[str, Timestamp]


class Tally(msgspec.Struct):
    """Where the records of a computation went: received = applied + dropped + diverted + dead + unkeyed, and those that wait for
    their time. A record that `by_each` puts under several keys is received under each."""

    received: int = 0
    applied: int = 0
    late: int = 0
    dropped: int = 0
    diverted: int = 0
    dead: int = 0
    fired: int = 0
    produced: int = 0
    unkeyed: int = 0  # under no key: `by_each` found none

    def plus(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class BucketReport(msgspec.Struct, omit_defaults=True):
    """What a bucket says of a computation after an epoch; stays valid until it says something new."""

    minima: Minima
    rows: int
    timers: int
    waiting: int = 0  # records that wait for their time


class Summary(msgspec.Struct):
    """All that a bucket says after an epoch, beside its productions."""

    bucket: int
    reports: dict[str, BucketReport]
    tallies: dict[str, Tally]
