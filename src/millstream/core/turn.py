"""One computation at work: its keys one after the other, each with its records and its due timers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, cast

from millstream.core.arrivals import Arrivals, has_ties
from millstream.core.codec import StateCodec, encode_value
from millstream.core.epoch import Header, Tally
from millstream.core.graph import DEAD_LETTERS, NodePlan
from millstream.core.parts import NO_KEY
from millstream.core.productions import FIRST_DATE, LAST_DATE, Fits, Productions, lend, no_moment, no_text
from millstream.core.route import Reading
from millstream.core.row import END, HeldRow, KeptTimer, Row, decode_timers, keep
from millstream.core.types import is_text
from millstream.errors import RecordError, TopologyError
from millstream.expiry import Expiry
from millstream.record import Clock, DeadLetter, Errors, Late, Record
from millstream.stream import called
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Timestamp, describe

MAX_OWN_PAST = 1_000_000  # timers set in the past while timers of one key fire; more is a loop, not work


class Turn:
    """What the engine lends a computation. Made once a worker; `open` for each epoch, `begin` and `end` for each bucket in it.

    What a key needs is set once per key, in the instance's own dictionary: `self.state` then costs a look-up, not a call.
    """

    def __init__(self, plan: NodePlan) -> None:
        # Thirty attributes in all: with one more, CPython 3.11 keeps them in a slower dictionary, which costs every record 3%.
        self._plan, self.name = plan, plan.name
        self._codec = StateCodec(plan.computation)
        self.fresh = self._codec.fresh  # what a key starts with
        self._own = plan.computation.__dict__
        self._process = plan.computation.process_record
        self._readings = {read.index: Reading(read, rank) for read, rank in zip(plan.inputs, plan.ranks, strict=True)}
        self._sends_dead_letters = plan.errors is Errors.DEAD_LETTER
        self._expiry = plan.computation.expiry
        self._outputs = [
            (output := getattr(plan.computation, attribute), attribute, stream, Fits(output.value_type))
            for attribute, stream in plan.outputs.items()
        ]
        self._encoders = {stream: fits.encode for _, _, stream, fits in self._outputs}
        self.key = ""

    def open(self, header: Header, arrivals: Arrivals, productions: Productions) -> None:
        """The clocks of an epoch, what it brings, and where productions go."""
        self._now = header.now
        self._low_watermark = header.low_watermarks[self._plan.name].input
        self._before = header.before[self._plan.name]
        self._clocks = cast(tuple[int, int], (self._low_watermark, self._now))
        self._arrivals, self._productions = arrivals, productions
        self._of_packet = [[self._readings[read] for read in packet.inputs if read in self._readings] for packet in arrivals.packets]
        self._tied = len(set(self._plan.ranks)) > 1 and has_ties(arrivals.timestamps)
        self._late_below = [START_OF_TIME if of and of[0].timeless else self._before for of in self._of_packet]
        self._ids = [f"{packet.origin}/{packet.major}/" for packet in arrivals.packets]
        decided = self._plan.late is not Late.PROCESS and arrivals.timestamps and arrivals.timestamps[0] < self._before
        # No policy that could send a record anywhere but to the code, no packet that is read twice, and only values are seen.
        varied = self._sends_dead_letters or arrivals.errors or decided
        self._plain = not varied and all(not of or (len(of) == 1 and of[0].show is None) for of in self._of_packet)
        self._lent = [
            (output, lend(self._own, attribute, productions.of(stream), productions.order, fits))
            for output, attribute, stream, fits in self._outputs
        ]

    def begin(self) -> None:
        """Lend the computation what it needs for the keys of one bucket."""
        self.tally, self._letters, self._made_before = Tally(), 0, len(self._productions.order)
        own = self._own
        own["_turn"], own["now"] = self, self._now
        for output, produce in self._lent:
            output.__dict__["produce"] = produce

    def end(self) -> None:
        """Take back all that was lent."""
        for name in ("_turn", "now", "low_watermark", "key", "state"):
            self._own.pop(name, None)
        for output, _ in self._lent:
            output.__dict__.pop("produce", None)
        self.tally.produced = len(self._productions.order) - self._made_before - self._letters

    def run(self, key: str, positions: Sequence[int], row: HeldRow | None) -> HeldRow | None:
        """All that an epoch brings to one key: the arrivals at these positions, then the timers that are due."""
        codec, own = self._codec, self._own
        self.key = own["key"] = key
        before: bytes | None
        if isinstance(row, Row):
            before = row.state
            self._timers = {pending.tag: pending for pending in decode_timers(row.timers)} if row.timers is not None else {}
            low, wall = row.low, row.wall
            due = self._overdue = (low <= self._clocks[0] and low < END) or (wall <= self._clocks[1] and wall < END)
        else:
            before, self._timers, low = row, {}, END
            due = self._overdue = False
        # Decoded for each turn and encoded once: a state that was held would be another one after a recovery.
        try:
            own["state"] = codec.fresh() if before is None else codec.decode(before)
        except Exception as error:
            raise self._unreadable(error) from error
        self._timers_changed = False
        own["low_watermark"] = self._before
        if not self._plain:
            self._receive_each(positions)
        elif positions:
            self._receive_plain(positions)
        if self._overdue:
            own["low_watermark"] = self._low_watermark
            self._fire()
        expires = END if self._expiry is None else self._expire(self._expiry, self._low_watermark)
        after: bytes | None = self._encode_state(own["state"], before)
        if after == codec.initial:
            after, expires = None, END
        if after == before and not self._timers_changed and not due and (row is None or low <= expires):
            return row
        return keep(after, self._timers, expires)

    # What the computation calls.

    def set_timer(self, tag: str, at: Timestamp, clock: Clock, hold: Timestamp | None) -> None:
        if type(tag) is not str or not (tag.isascii() or is_text(tag)):
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
        self._timers[tag] = KeptTimer(tag, at, wall, hold)
        self._timers_changed = True
        if at <= (self._now if wall else self._low_watermark):
            self._overdue = True

    def cancel_timer(self, tag: str) -> None:
        if type(tag) is not str:
            raise no_text("cancel_timer", "tag", tag)
        if self._timers.pop(tag, None) is not None:
            self._timers_changed = True

    # One event each.

    def _receive_plain(self, positions: Sequence[int]) -> None:
        """The same as `_receive` for each, where nothing but the code decides what becomes of a record."""
        arrivals, key, process, late_below = self._arrivals, self.key, self._process, self._late_below
        values, timestamps, packet_of, of_packet = arrivals.values, arrivals.timestamps, arrivals.packet_of, self._of_packet
        several, ids, minors = len(self._readings) > 1, self._ids, arrivals.minors
        positions = self._by_rank(positions)
        decode, before = of_packet[packet_of[positions[0]]][0].decode, late_below[packet_of[positions[0]]]
        late = 0
        try:
            for position in positions:
                timestamp = timestamps[position]
                if several:
                    decode, before = of_packet[packet_of[position]][0].decode, late_below[packet_of[position]]
                is_late = timestamp < before
                if is_late:
                    late += 1
                process(Record(key, decode(values[position]), timestamp, is_late, ids[packet_of[position]], minors[position]))
        except Exception as error:
            stream = self._of_packet[arrivals.packet_of[position]][0].stream
            raise self._failure(f"record {arrivals.id(position)} of stream {stream!r}", error) from error
        tally = self.tally
        tally.received += len(positions)
        tally.applied += len(positions)
        tally.late += late

    def _by_rank(self, positions: Sequence[int]) -> Sequence[int]:
        """Records stand in the order of times and ids; of one time, the rank of their stream comes first."""
        if not self._tied:
            return positions
        timestamps, packet_of, of_packet = self._arrivals.timestamps, self._arrivals.packet_of, self._of_packet
        return sorted(positions, key=lambda position: (timestamps[position], of_packet[packet_of[position]][0].rank))

    def _receive_each(self, positions: Sequence[int]) -> None:
        for position in self._by_rank(positions):
            for reading in self._of_packet[self._arrivals.packet_of[position]]:
                self._receive(position, reading)

    def _receive(self, position: int, reading: Reading) -> None:
        arrivals, tally = self._arrivals, self.tally
        timestamp, wrong = arrivals.timestamps[position], arrivals.errors.get(position)
        tally.received += 1
        if wrong == NO_KEY:
            tally.unkeyed += 1
            return
        late = timestamp < self._late_below[arrivals.packet_of[position]]
        if late and wrong is None:
            tally.late += 1
            if self._plan.late is Late.DROP:
                tally.dropped += 1
                return
        from_, own = self._ids[arrivals.packet_of[position]], arrivals.own[position] if arrivals.own else None
        self._apply(reading, arrivals.values[position], timestamp, late, from_, arrivals.minors[position], own, wrong)

    def _apply(
        self,
        reading: Reading,
        value: bytes,
        timestamp: Timestamp,
        late: bool,
        from_: str,
        number: int,
        own: str | None,
        wrong: str | None = None,
    ) -> None:
        """One record, and what its policies make of it; `own` is the key that it was produced under, None if that is the key at
        hand; `wrong` says why it has no key."""
        tally, decode, show = self.tally, reading.decode, reading.show
        if show is not None:
            decode = partial(show, self.key if own is None else own, timestamp, from_, number)
        try:
            if self._sends_dead_letters:
                before = self._remember()
            if wrong is not None:
                raise ValueError(wrong)
            if late and isinstance(self._plan.late, str):
                self._productions.add(self._plan.late, self.key, self._as_read(self._plan.late, value, reading, decode), timestamp)
                tally.diverted += 1
                return
            self._process(Record(self.key, decode(value), timestamp, late, from_, number))
            if self._sends_dead_letters:
                self._encode_state(self._own["state"], before[0])  # what cannot be kept is an error of this record
        except Exception as error:
            stream, id_ = reading.stream, f"{from_}{number}"
            failure = self._failure(f"record {id_} of stream {stream!r}", error)
            if not self._sends_dead_letters:
                raise failure from error
            self._undo(before)
            self._send_dead_letter(failure, stream, id_, value.decode(), timestamp)
            tally.dead += 1
            return
        tally.applied += 1

    def _as_read(self, output: str, stored: bytes, reading: Reading, decode: Callable[[bytes], Any]) -> bytes:
        """A value as its reader sees it, for an output: that one may be of more types, and tell them apart."""
        encode = self._encoders[output]
        return encode(decode(stored)) if reading.mapped or encode is not encode_value else stored

    def _fire(self, upto: Timestamp = END_OF_TIME) -> None:
        """Due timers in the order of their times, until none is due; only those up to a time."""
        set_in_past = 0
        low_watermark, now = min(self._low_watermark, upto), min(self._now, upto)
        while self._overdue:
            self._overdue = False
            due = [p for p in self._timers.values() if p.at <= (now if p.wall else low_watermark) and p.at < END_OF_TIME]
            if len(due) > 1:
                due.sort(key=_by_time)
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
            if set_in_past > MAX_OWN_PAST:
                raise TopologyError(
                    f"{self._plan.name!r} sets timers for key {self.key!r} in the past again and again while its timers fire; "
                    f"set them after self.low_watermark, and none once it is ms.END_OF_TIME: the input has ended then"
                )

    def _expire(self, expiry: Expiry[Any], low_watermark: Timestamp) -> int:
        """Let go of old entries; returns when the next ones are due."""
        try:
            return cast(int, expiry.expire(self._own["state"], low_watermark))
        except Exception as error:
            raise self._failure("its entries cannot be rolled up", error) from error

    def _call(self, pending: KeptTimer) -> None:
        timer = pending.timer()
        try:
            if self._sends_dead_letters:
                before = self._remember()
            self._plan.computation.process_timer(timer)
            if self._sends_dead_letters:
                self._encode_state(self._own["state"], before[0])
        except Exception as error:
            failure = self._failure(f"timer {timer.tag!r} at {describe(timer.at)}", error)
            if not self._sends_dead_letters:
                raise failure from error
            self._undo(before)
            # At what it holds, so that it is not late for who reads it.
            timestamp = min(max(timer.at if timer.hold is None else timer.hold, FIRST_DATE), LAST_DATE)
            self._send_dead_letter(failure, f"timers of {self._plan.name}", f"{timer.tag}@{int(timer.at)}", "", timestamp)

    # When code raises and the computation sends dead letters, all that it did is undone and a dead letter is sent.

    def _remember(self) -> tuple[bytes, dict[str, KeptTimer], int, bool]:
        return self._codec.encode(self._own["state"]), dict(self._timers), len(self._productions.order), self._overdue

    def _undo(self, before: tuple[bytes, dict[str, KeptTimer], int, bool]) -> None:
        state, self._timers, produced, self._overdue = before
        try:
            self._own["state"] = self._codec.decode(state)
        except Exception as error:
            raise self._unreadable(error) from error
        self._productions.cut(produced)

    def _send_dead_letter(self, failure: RecordError, stream: str, id_: str, value: str, timestamp: Timestamp) -> None:
        reason = f"{failure.cause}\n{failure.trace}".strip()
        letter = DeadLetter(stream, self._plan.name, self.key, id_, reason, value)
        self._productions.add(DEAD_LETTERS, self.key, encode_value(letter), timestamp)
        self._letters += 1

    def _encode_state(self, state: Any, before: bytes | None = None) -> bytes:
        """The state as it is kept; refused here if it could not be read back, and not when its key comes again."""
        codec = self._codec
        try:
            kept = codec.encode(state)
        except Exception as error:
            raise self._failure("its state cannot be kept", error) from error
        if state.__class__ is not codec.plain and kept != before and kept != codec.initial:
            try:
                codec.check(kept)
            except Exception as error:
                kind = called(self._plan.computation.state_type())
                raise RecordError(
                    self._place,
                    f"its state is not the {kind} that Computation[{kind}] declares: {error}; keep that, or declare what is kept",
                ) from error
        return kept

    def _unreadable(self, error: Exception) -> RecordError:
        kept = self._plan.computation.state_type()
        return RecordError(
            self._place, f"the state kept for it does not fit {kept} any more: {error}; give new fields defaults, or define decode_state"
        )

    @property
    def _place(self) -> str:
        return f"computation {self._plan.name!r}, key {self.key!r}"

    def _failure(self, what: str, error: Exception) -> RecordError:
        if isinstance(error, RecordError):
            return error
        trace = "".join(traceback.format_exception(type(error), error, _users(error.__traceback__)))
        return RecordError(f"{self._place}, {what}", f"{type(error).__name__}: {error}", trace.rstrip())


def _by_time(pending: KeptTimer) -> tuple[Timestamp, bool, str]:
    return pending.at, pending.wall, pending.tag


def _users(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is the user's own: what lies below the last frame of the engine on top."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith(("millstream.core", "millstream.expiry")):
        inner = inner.tb_next
    return inner or trace
