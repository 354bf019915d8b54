"""All that belongs to one key of one computation: one row, read once and written once an epoch."""

from __future__ import annotations

import msgspec

from millstream.record import Clock, Timer
from millstream.timestamp import END_OF_TIME, Timestamp


class Pending(msgspec.Struct, array_like=True, frozen=True):
    """A timer as it is kept."""

    tag: str
    at: Timestamp
    wall: bool
    hold: Timestamp | None

    def timer(self) -> Timer:
        return Timer(self.tag, self.at, Clock.WALL if self.wall else Clock.LOW_WATERMARK, self.hold)


class Minima(msgspec.Struct, array_like=True, frozen=True):
    """The earliest timer on each clock and the earliest hold of some keys; the end of time stands for none.

    State that expires counts with the timers on the low watermark: its key has its turn then, too.
    """

    low_watermark: Timestamp = END_OF_TIME
    wall: Timestamp = END_OF_TIME
    hold: Timestamp = END_OF_TIME

    def due(self, low_watermark: Timestamp, now: Timestamp) -> bool:
        """Whether one of the timers fires at these clocks; nothing fires at the end of time itself."""
        return (self.low_watermark <= low_watermark and self.low_watermark < END_OF_TIME) or (self.wall <= now and self.wall < END_OF_TIME)


NOTHING = Minima()


def least(minima: list[Minima]) -> Minima:
    """What holds for all of some keys together."""
    if len(minima) == 1:
        return minima[0]
    return Minima(
        min((m.low_watermark for m in minima), default=END_OF_TIME),
        min((m.wall for m in minima), default=END_OF_TIME),
        min((m.hold for m in minima), default=END_OF_TIME),
    )


class Row(msgspec.Struct, array_like=True):
    """State and timers stay bytes until their key is touched, so that its neighbours on the page cost little.

    `alone` says that state and timers are kept apart from the page because they are large.
    """

    state: bytes | None = None
    timers: bytes | None = None
    count: int = 0
    minima: Minima = NOTHING
    alone: bool = False

    def size(self) -> int:
        return len(self.state or b"") + len(self.timers or b"")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Pending]).decode


def timers_of(row: Row) -> dict[str, Pending]:
    """The timers of a row by tag."""
    return {} if row.timers is None else {pending.tag: pending for pending in _decode(row.timers)}


def keep(state: bytes | None, timers: dict[str, Pending], expires: Timestamp = END_OF_TIME) -> Row | None:
    """The row for a key after its turn; None if nothing is left to keep."""
    if not timers:
        if state is None:
            return None
        return Row(state) if expires == END_OF_TIME else Row(state, minima=Minima(expires))
    kept = list(timers.values())
    low_watermark, wall, hold = expires, END_OF_TIME, END_OF_TIME
    for pending in kept:
        if pending.wall:
            wall = min(wall, pending.at)
        else:
            low_watermark = min(low_watermark, pending.at)
        if pending.hold is not None and pending.hold < hold:
            hold = pending.hold
    return Row(state, _encode(kept), len(kept), Minima(low_watermark, wall, hold))
