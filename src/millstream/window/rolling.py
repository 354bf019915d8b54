"""Spans that slide: each record with those shortly before it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from millstream import arguments
from millstream.aggregate.protocol import Aggregate, Reversible, Span
from millstream.aggregate.values import Dated
from millstream.record import Order, Record, Timer
from millstream.stream import Output
from millstream.timestamp import MICROSECOND, Duration, Timestamp
from millstream.window.kept import FORMAT, Aggregating
from millstream.window.spans import Windowed

A = TypeVar("A")
R = TypeVar("R")
V = TypeVar("V")


class Recent(msgspec.Struct, Generic[V, A], array_like=True):
    """What is kept for a key."""

    format: int
    mark: int
    records: list[Dated[V]]  # by their times
    so_far: A | None  # of all of them, where what has left can be taken out again


class Rolling(Aggregating[V, R], Generic[V, R]):
    """For each record: what the records of its key in `(t - over, t]` amount to, itself included, told with its timestamp t.

        recent = Rolling(Request, 10 * ms.MINUTE, aggregate.mean(lambda request: request.milliseconds))
        topology.compute("recent", recent).reads(requests)

    Records come in the order of event time, once the low watermark has passed them; of several at the same time, each sees
    those before it. Late ones go to `late`, and count nowhere; so do those of an input without event time that are older than a
    record which has been told.

    The records of the last `over` are kept. A reversible aggregate (count, sum, mean, stddev, rate) costs the same however many
    these are; any other is made anew of all of them for each record.
    """

    order = Order.EVENT_TIME
    results: Output[Windowed[R]]

    def __init__(self, of: type[V], over: Duration, aggregate: Aggregate[V, Any, R]) -> None:
        self.over = arguments.span("Rolling", "over", over)
        super().__init__(of, aggregate)

    def state_type(self) -> Any:
        return Recent[self.of, self.aggregate.kept(self.of)]  # type: ignore[name-defined, misc]

    def initial_state(self) -> Recent[V, Any]:
        return Recent(FORMAT, self.mark, [], None)

    def filled(self) -> Recent[V, Any]:
        return Recent(FORMAT, self.mark, [], self.aggregate.zero())

    def process_record(self, record: Record[V]) -> None:
        at = record.timestamp
        if record.late or (self.state.records and at < self.state.records[-1].at):
            self.late.produce(record.value, timestamp=at)
            return
        if not self.state.records:
            self.set_timer("forget", at=at + self.over)
        self._forget(at - self.over)
        self.state.records.append(Dated(at, record.value))
        span = Span(at - self.over + MICROSECOND, at + MICROSECOND)
        value = self.aggregate.result(self._with(record), span)
        self.results.produce(Windowed(self.key, span.start, span.end, value), timestamp=at)

    def _with(self, record: Record[V]) -> Any:
        """What all that is recent amounts to, with a record that has just come."""
        state, of = self.state, self.aggregate
        if isinstance(of, Reversible):
            state.so_far = of.add(of.zero() if state.so_far is None else state.so_far, record)
            return state.so_far
        so_far = of.zero()
        for one in state.records:
            so_far = of.add(so_far, Record(self.key, one.value, one.at))
        return so_far

    def _forget(self, until: Timestamp) -> None:
        state, of = self.state, self.aggregate
        gone = next((place for place, one in enumerate(state.records) if one.at > until), len(state.records))
        if isinstance(of, Reversible):
            for one in state.records[:gone]:
                state.so_far = of.remove(state.so_far, Record(self.key, one.value, one.at))
        del state.records[:gone]
        if not state.records:
            state.so_far = None

    def process_timer(self, timer: Timer) -> None:
        self._forget(timer.at - self.over)
        if self.state.records:
            self.set_timer("forget", at=self.state.records[-1].at + self.over)
