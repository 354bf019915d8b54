"""A computation in the order of event time: records and timers of a key come in one sequence, once the low watermark is there.

A timer is due when the low watermark has reached its time, a record when it is above its own, since others of that time may
come until then. So at the same time timers come first, wherever epochs are cut; records of the same time come by the rank of
their stream, then in the order of their ids, whenever each arrived.

A record without event time comes in its place too if the low watermark has not passed it, else at once: nobody waited for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from millstream.core.arrivals import Arrivals, place_of_origin
from millstream.core.epoch import Header
from millstream.core.graph import NodePlan
from millstream.core.productions import Productions
from millstream.core.route import Reading
from millstream.core.row import END, KeptTimer
from millstream.core.turn import Turn
from millstream.core.waiting import Waited
from millstream.record import Clock, Late
from millstream.timestamp import END_OF_TIME, MICROSECOND, Timestamp


class _Due(NamedTuple):
    """A record whose time has come. The first six are its place in the sequence."""

    timestamp: Timestamp
    rank: int  # of its stream, by its place in `reads`
    origin: str
    major: int
    minor: int
    nth: int
    past: bool  # nobody waited for it: it is late, or it is old and has no event time
    late: bool
    reading: Reading
    value: bytes
    from_: str
    own: str | None  # the key that it was produced under, if its reader sees it and has it under another


class OrderedTurn(Turn):
    """`waited` are the records of the key at hand that wait no longer; after its turn, `put_off` are those that begin to wait."""

    def __init__(self, plan: NodePlan) -> None:
        super().__init__(plan)
        self._of_place = {reading.place: reading for reading in self._readings.values()}
        self.waited: Sequence[Waited] = ()
        self.put_off: list[Waited] = []
        self._earliest = END  # no timer that is due now is earlier

    def open(self, header: Header, arrivals: Arrivals, productions: Productions) -> None:
        super().open(header, arrivals, productions)
        self._plain = False

    def reach(self, low_watermark: Timestamp) -> None:
        """In this bucket, go no further than this: what is due after it is left to the next epoch."""
        self._low_watermark = low_watermark
        self._clocks = cast(tuple[int, int], (low_watermark, self._now))

    def _receive_each(self, positions: Sequence[int]) -> None:
        """The whole sequence of a key, but for the timers after its last record."""
        due = self._due(positions)
        # No record of the key is older than this that still comes, but what is past: so it is what the code sees as low watermark.
        ahead = [self._low_watermark]
        for record in reversed(due):
            ahead.append(ahead[-1] if record.past else record.timestamp)
        ahead.reverse()
        own, expiry = self._own, self._expiry
        self._find_earliest()
        for n, record in enumerate(due):
            timestamp = record.timestamp
            if self._earliest <= timestamp:  # type: ignore[operator]
                own["low_watermark"] = ahead[n]
                self._fire(timestamp)
                self._find_earliest()
            if expiry is not None:
                self._expire(expiry, timestamp)
            own["low_watermark"] = ahead[n + 1]
            self._apply(record.reading, record.value, timestamp, record.late, record.from_, record.minor, record.own)

    def _due(self, positions: Sequence[int]) -> list[_Due]:
        """What has waited and what has just come, as far as its time has come too, in order. The rest begins to wait."""
        arrivals, tally, before, injectors = self._arrivals, self.tally, self._before, self._plan.injectors
        self.put_off = []
        due: list[_Due] = []
        for timestamp, origin, major, minor, place, value, own in self.waited:
            reading = self._of_place.get(place)
            if reading is None:  # the code does not read this stream any more
                tally.dropped += 1
                continue
            where = place_of_origin(origin, injectors)
            from_ = f"{origin}/{major}/"
            due.append(_Due(timestamp, reading.rank, where, major, minor, reading.index, False, False, reading, value, from_, own))
        for position in positions:
            number, timestamp = arrivals.packet_of[position], arrivals.timestamps[position]
            packet, past, late = arrivals.packets[number], timestamp < before, timestamp < self._late_below[number]
            for reading in self._of_packet[number]:
                if position in arrivals.errors or (late and self._plan.late is not Late.PROCESS):
                    self._receive(position, reading)  # it has no place in the sequence
                    continue
                tally.received += 1
                tally.late += late
                minor, value, own = arrivals.minors[position], arrivals.values[position], None
                if reading.show is not None and arrivals.own and arrivals.own[position] != self.key:
                    own = arrivals.own[position]
                if past or timestamp < self._low_watermark:
                    where, from_ = place_of_origin(packet.origin, injectors), self._ids[number]
                    due.append(
                        _Due(timestamp, reading.rank, where, packet.major, minor, reading.index, past, late, reading, value, from_, own)
                    )
                else:
                    self.put_off.append(Waited(timestamp, packet.origin, packet.major, minor, reading.place, value, own))
        due.sort(key=_in_order)
        return due

    def set_timer(self, tag: str, at: Timestamp, clock: Clock, hold: Timestamp | None) -> None:
        super().set_timer(tag, at, clock, hold)
        self._earliest = min(self._earliest, cast(int, at))

    def _find_earliest(self) -> None:
        """Of the timers that are due by the clocks of this epoch. Asked anew only once the one before has come."""
        low_watermark, now = self._low_watermark, self._now
        due = [p.at for p in self._timers.values() if p.at <= (now if p.wall else low_watermark) and p.at < END_OF_TIME]
        self._earliest, self._overdue = cast(int, min(due, default=END_OF_TIME)), bool(due)

    def _call(self, pending: KeptTimer) -> None:
        if self._expiry is not None and not pending.wall:
            self._expire(self._expiry, pending.at - MICROSECOND)  # wherever the epochs are cut, it sees no entry that is older
        super()._call(pending)


def _in_order(record: _Due) -> tuple[Timestamp, int, str, int, int, int]:
    return record[:6]
