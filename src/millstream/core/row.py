"""All that belongs to one key of one computation: one row, read once and written once an epoch."""

from __future__ import annotations

from typing import cast

import msgspec

from millstream.record import Clock, Timer
from millstream.timestamp import END_OF_TIME, Timestamp


class KeptTimer(msgspec.Struct, array_like=True, frozen=True):
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


END = cast(int, END_OF_TIME)  # minima are compared far more often than anything else: they are plain numbers from here on


class Row(msgspec.Struct, array_like=True, gc=False):
    """A row with timers, or with a state that expires. Never changed in place: a turn puts a new one.

    Timers stay encoded until their key has its turn. `low`, `wall` and `hold` are the row's minima, as in `Minima`.
    A row that lives apart from its page leaves one with neither state nor timers in its place there.
    """

    # Not frozen, although nobody changes one: making it costs half as much, and gc=False leaves the collector nothing to walk.
    state: bytes | None
    timers: bytes | None
    count: int
    low: int
    wall: int
    hold: int


# What is held for a key: only its state, where it has no timers and nothing expires; that is a third of the memory.
HeldRow = bytes | Row


class Changes(msgspec.Struct, frozen=True):
    """The rows that an epoch changed, by bucket, computation and key; None for one that is gone."""

    changed: dict[int, dict[str, dict[str, HeldRow | None]]]
    rows: int

    def encode(self) -> bytes:
        """The rows part of a frame."""
        return _encode(self.changed)


_encode = msgspec.msgpack.Encoder().encode
decode_timers = msgspec.msgpack.Decoder(list[KeptTimer]).decode


def state_of(row: HeldRow | None) -> bytes | None:
    """The state in a row; None for the initial one."""
    return row.state if isinstance(row, Row) else row


def timers_of(row: HeldRow | None) -> dict[str, KeptTimer]:
    """The timers of a row by tag."""
    if not isinstance(row, Row) or row.timers is None:
        return {}
    return {pending.tag: pending for pending in decode_timers(row.timers)}


def minima_of(row: HeldRow | None) -> Minima:
    return Minima(Timestamp(row.low), Timestamp(row.wall), Timestamp(row.hold)) if isinstance(row, Row) else NOTHING


def keep(state: bytes | None, timers: dict[str, KeptTimer], expires: int = END) -> HeldRow | None:
    """The row for a key after its turn; None if nothing is left to keep."""
    if not timers:
        if state is None or expires == END:
            return state
        return Row(state, None, 0, expires, END, END)
    low, wall, hold = expires, END, END
    for pending in timers.values():
        at, held = cast(int, pending.at), cast("int | None", pending.hold)
        if pending.wall:
            if at < wall:
                wall = at
        elif at < low:
            low = at
        if held is not None and held < hold:
            hold = held
    return Row(state, _encode(list(timers.values())), len(timers), low, wall, hold)
