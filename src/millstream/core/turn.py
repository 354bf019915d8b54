"""One computation at work: its keys one after the other, each with its records and its due timers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from millstream.core.codec import StateCodec, encode_value, value_decoder
from millstream.core.epoch import Arrivals, Header, Productions, Tally
from millstream.core.graph import DEAD_LETTERS, NodePlan
from millstream.core.row import Pending, Row, keep, timers_of
from millstream.errors import RecordError, TopologyError
from millstream.expiry import Expiry
from millstream.record import Clock, DeadLetter, Errors, Late, Record
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Timestamp, describe, to_timestamp

EARLIEST = to_timestamp(datetime.min.replace(tzinfo=UTC))  # what a date can hold, and so a table
LATEST = to_timestamp(datetime.max.replace(tzinfo=UTC))
MOST_OWN_PAST = 1_000_000  # timers set in the past while timers of one key fire; more is a loop, not work


def no_moment(what: str, told: object) -> TopologyError:
    return TopologyError(f"{what} is {told!r}; give a ms.Timestamp (a datetime goes through ms.to_timestamp)")


def no_text(call: str, what: str, told: object) -> TopologyError:
    return TopologyError(f"{call}: {what} is {told!r}; a {what} is text: use str(...)")


class Turn:
    """What the engine lends a computation. Made once a worker for each computation; `begin` for each bucket and epoch.

    What a key needs is set once per key, in the instance's own dictionary: `self.state` then costs a look-up, not a call.
    """

    def __init__(self, plan: NodePlan) -> None:
        self._plan = plan
        self._codec = StateCodec(plan.computation)
        self._own = plan.computation.__dict__
        self._decoders: dict[int, Callable[[bytes], Any]] = {}
        for read in plan.inputs:
            self._decoders[read.index] = _reading(value_decoder(read.stream.value_type), [c.apply for c in read.changes if not c.is_key])
        self._mapped = {read.index for read in plan.inputs if any(not change.is_key for change in read.changes)}
        self._streams_of = {read.index: read.stream.name for read in plan.inputs}
        self._forgives = plan.errors is Errors.DEAD_LETTER
        self._expiry = plan.computation.expiry
        self.key = ""

    def begin(self, header: Header, arrivals: Arrivals, productions: Productions) -> None:
        """Ready the computation for the keys of one bucket."""
        self._now = header.now
        self._low_watermark = header.low_watermarks[self._plan.name].input
        self._before = header.before[self._plan.name]
        self._arrivals, self._productions = arrivals, productions
        self.tally = Tally()
        own = self._own
        own["_turn"], own["now"] = self, self._now
        for attribute in self._plan.outputs:
            getattr(self._plan.computation, attribute)._turn = self

    def end(self) -> None:
        """Take back all that was lent."""
        for name in ("_turn", "now", "low_watermark", "key", "state"):
            self._own.pop(name, None)
        for attribute in self._plan.outputs:
            getattr(self._plan.computation, attribute)._turn = None

    def run(self, key: str, positions: Sequence[int], row: Row | None) -> Row | None:
        """All that an epoch brings to one key: the arrivals at these positions, then the timers that are due."""
        codec, own = self._codec, self._own
        self.key = own["key"] = key
        before = None if row is None else row.state
        own["state"] = codec.fresh() if before is None else self._decode_state(before)
        self._timers = {} if row is None else timers_of(row)
        self._timers_changed = False
        due = self._overdue = row is not None and row.minima.due(self._low_watermark, self._now)
        own["low_watermark"] = self._before
        for position in positions:
            self._receive(position)
        if self._overdue:
            own["low_watermark"] = self._low_watermark
            self._fire()
        expires = END_OF_TIME if self._expiry is None else self._expire(self._expiry)
        after: bytes | None = self._encode_state(own["state"])
        if after == codec.initial:
            after, expires = None, END_OF_TIME
        if after == before and not self._timers_changed and not due and (row is None or row.minima.low_watermark <= expires):
            return row
        return keep(after, self._timers, expires)

    # What the computation calls.

    def produce(self, attribute: str, value: Any, timestamp: Timestamp, key: str | None) -> None:
        if type(timestamp) is not int:  # type: ignore[comparison-overlap]
            raise no_moment(f"{attribute}.produce: timestamp", timestamp)
        if not EARLIEST <= timestamp <= LATEST:
            raise TopologyError(
                f"{attribute}.produce: timestamp is {describe(timestamp)}, no time for a record; when the input has ended, "
                f"self.low_watermark is ms.END_OF_TIME: use timer.at"
            )
        if key is None:
            key = self.key
        elif type(key) is not str:
            raise no_text(f"{attribute}.produce", "key", key)
        # Encoded now, so that a value changed later is sent as it was.
        self._productions.add(self._plan.outputs[attribute], key, encode_value(value), timestamp)
        self.tally.produced += 1

    def set_timer(self, tag: str, at: Timestamp, clock: Clock, hold: Timestamp | None) -> None:
        if type(tag) is not str:
            raise no_text("set_timer", "tag", tag)
        if hold is not None and (type(hold) is not int or not START_OF_TIME <= hold <= END_OF_TIME):  # type: ignore[comparison-overlap]
            raise no_moment(f"set_timer({tag!r}): hold", hold)
        if type(at) is not int or not START_OF_TIME <= at <= END_OF_TIME:  # type: ignore[comparison-overlap]
            raise no_moment(f"set_timer({tag!r}): at", at)
        if clock.__class__ is not Clock:
            raise TopologyError(f"set_timer({tag!r}): clock is {clock!r}; give ms.Clock.LOW_WATERMARK or ms.Clock.WALL")
        wall = clock is Clock.WALL
        if hold is None:
            hold = None if wall else at
        elif hold > at and not wall:
            raise TopologyError(f"set_timer({tag!r}): hold {describe(hold)} is after at {describe(at)}; hold what the timer will produce")
        elif self._plan.on_cycle and hold < at and not wall:
            raise TopologyError(
                f"set_timer({tag!r}): {self._plan.name!r} is on a cycle, so a timer that holds the low watermark before its own time "
                f"would wait for itself; leave out hold=, or take the computation off the cycle"
            )
        self._timers[tag] = Pending(tag, at, wall, hold)
        self._timers_changed = True
        if at <= (self._now if wall else self._low_watermark):
            self._overdue = True

    def cancel_timer(self, tag: str) -> None:
        if self._timers.pop(tag, None) is not None:
            self._timers_changed = True

    # One event each.

    def _receive(self, position: int) -> None:
        arrivals, tally = self._arrivals, self.tally
        timestamp = arrivals.timestamps[position]
        tally.received += 1
        late = timestamp < self._before
        if late and position not in arrivals.errors:
            tally.late += 1
            if self._plan.late is Late.DROP:
                tally.dropped += 1
                return
        try:
            if self._forgives:
                before = self._remember()
            if position in arrivals.errors:
                raise ValueError(arrivals.errors[position])
            if late and isinstance(self._plan.late, str):
                self._productions.add(self._plan.late, self.key, self._as_read(position), timestamp)
                tally.diverted += 1
                tally.produced += 1
                return
            value = self._decoders[arrivals.inputs[position]](arrivals.values[position])
            self._plan.computation.process_record(Record(self.key, value, timestamp, late))
            if self._forgives:
                self._encode_state(self._own["state"])  # what cannot be kept is an error of this record
        except Exception as error:
            stream, id_ = self._streams_of[arrivals.inputs[position]], arrivals.id(position)
            failure = self._failure(f"record {id_} of stream {stream!r}", error)
            if not self._forgives:
                raise failure from error
            self._undo(before)
            self._bury(failure, stream, id_, arrivals.values[position].decode(), timestamp)
            tally.dead += 1
            return
        tally.applied += 1

    def _as_read(self, position: int) -> bytes:
        """The value of an arrival as its reader sees it."""
        read, stored = self._arrivals.inputs[position], self._arrivals.values[position]
        return encode_value(self._decoders[read](stored)) if read in self._mapped else stored

    def _fire(self) -> None:
        """Due timers in the order of their times, until none is due."""
        set_in_past = 0
        while self._overdue:
            self._overdue = False
            clocks = (self._low_watermark, self._now)
            due = sorted((p for p in self._timers.values() if p.at <= clocks[p.wall] and p.at < END_OF_TIME), key=_by_time)
            for pending in due:
                if self._timers.get(pending.tag) is not pending:
                    continue  # replaced or cancelled by one that fired before it
                del self._timers[pending.tag]
                self._timers_changed = True
                self.tally.fired += 1
                self._call(pending)
                if self._overdue:
                    set_in_past += 1
                    break  # the new one may come before the rest
            if set_in_past > MOST_OWN_PAST:
                raise TopologyError(
                    f"{self._plan.name!r} sets timers for key {self.key!r} in the past again and again while its timers fire; "
                    f"set them after self.low_watermark, and none once it is ms.END_OF_TIME: the input has ended then"
                )

    def _expire(self, expiry: Expiry[Any]) -> Timestamp:
        """Let go of old entries; returns when the next ones are due."""
        try:
            return expiry.go_through(self._own["state"], self._low_watermark)
        except Exception as error:
            raise self._failure("its entries cannot be rolled up", error) from error

    def _call(self, pending: Pending) -> None:
        timer = pending.timer()
        try:
            if self._forgives:
                before = self._remember()
            self._plan.computation.process_timer(timer)
            if self._forgives:
                self._encode_state(self._own["state"])
        except Exception as error:
            failure = self._failure(f"timer {timer.tag!r} at {describe(timer.at)}", error)
            if not self._forgives:
                raise failure from error
            self._undo(before)
            # At what it holds, so that it is not late for who reads it.
            timestamp = min(max(timer.at if timer.hold is None else timer.hold, EARLIEST), LATEST)
            self._bury(failure, f"timers of {self._plan.name}", f"{timer.tag}@{int(timer.at)}", "", timestamp)

    # When code raises and the computation forgives, all that it did is undone and a dead letter is sent.

    def _remember(self) -> tuple[bytes, dict[str, Pending], int, int, bool]:
        return self._encode_state(self._own["state"]), dict(self._timers), len(self._productions), self.tally.produced, self._overdue

    def _undo(self, before: tuple[bytes, dict[str, Pending], int, int, bool]) -> None:
        state, self._timers, produced, self.tally.produced, self._overdue = before
        self._own["state"] = self._decode_state(state)
        self._productions.cut(produced)

    def _bury(self, failure: RecordError, stream: str, id_: str, value: str, timestamp: Timestamp) -> None:
        reason = f"{failure.cause}\n{failure.trace}".strip()
        letter = DeadLetter(stream, self._plan.name, self.key, id_, reason, value)
        self._productions.add(DEAD_LETTERS, self.key, encode_value(letter), timestamp)

    def _encode_state(self, state: Any) -> bytes:
        try:
            return self._codec.encode(state)
        except Exception as error:
            raise self._failure("its state cannot be kept", error) from error

    def _decode_state(self, stored: bytes) -> Any:
        try:
            return self._codec.decode(stored)
        except Exception as error:
            kept = self._plan.computation.state_type()
            where = f"computation {self._plan.name!r}, key {self.key!r}"
            raise RecordError(
                where, f"the state kept for it does not fit {kept} any more: {error}; give new fields defaults, or define decode_state"
            ) from error

    def _failure(self, what: str, error: Exception) -> RecordError:
        if isinstance(error, RecordError):
            return error
        trace = "".join(traceback.format_exception(type(error), error, _users(error.__traceback__)))
        return RecordError(f"computation {self._plan.name!r}, key {self.key!r}, {what}", f"{type(error).__name__}: {error}", trace.rstrip())


def _by_time(pending: Pending) -> tuple[Timestamp, bool, str]:
    return pending.at, pending.wall, pending.tag


def _reading(decode: Callable[[bytes], Any], maps: list[Callable[[Any], Any]]) -> Callable[[bytes], Any]:
    """How a reader sees a value: decoded, then changed by the `map`s of its stream."""
    if not maps:
        return decode

    def read(stored: bytes) -> Any:
        value = decode(stored)
        for change in maps:
            value = change(value)
        return value

    return read


def _users(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is the user's own: what lies below the last frame of the engine on top."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith(("millstream.core", "millstream.expiry")):
        inner = inner.tb_next
    return inner or trace
