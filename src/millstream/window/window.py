"""Windows that are told once, when nothing can come to them any more."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from millstream import arguments
from millstream.aggregate.protocol import Aggregate, EmptySpan, Span
from millstream.errors import TopologyError
from millstream.record import Clock, Record, Timer
from millstream.stream import Output
from millstream.timestamp import END_OF_TIME, Duration, Timestamp
from millstream.window.kept import FORMAT, NEVER, SESSION, SKIP, Pane, Windowing, retry_tag
from millstream.window.spans import LAST_INSTANT, Tumbling, Windowed, Windows

A = TypeVar("A")
V = TypeVar("V")
R = TypeVar("R")

_by_end = attrgetter("end", "start")


class OpenWindows(msgspec.Struct, Generic[A], array_like=True):
    """What is kept for a key."""

    format: int
    mark: int
    panes: list[Pane[A]]  # by their ends
    told: list[Span]  # those that patience closed, until the low watermark has passed them: they must not be told again
    untold: list[Pane[A]] = []  # what belongs to windows that could not be told; nothing of it is left when a turn ends


class Window(Windowing[V, R], Generic[V, R]):
    """What the records of a key amount to in each span of time: told once, when the low watermark has reached its end.

        per_minute = Window(Order, Tumbling(ms.MINUTE), aggregate.count())
        topology.compute("per-minute", per_minute).reads(orders)

    A result carries the last instant of its span as its timestamp. A record that came too late for one of its spans goes to
    `late`; it still counts in those that are open.

    `fill`: spans without records are told too, up to that long after the end of the last one with records; for tumbling windows.
    `patience`: a span to which nothing has come for so long on the wall clock is told all the same, though the low watermark
    has not reached its end. What comes to it later goes to `late`.

    A window whose result cannot be told is an error of its own: with `errors=ms.Errors.DEAD_LETTER` it becomes one dead letter
    and is forgotten, and all others go on.
    """

    results: Output[Windowed[R]]

    def __init__(
        self,
        of: type[V],
        windows: Windows,
        aggregate: Aggregate[V, Any, R],
        *,
        fill: Duration | None = None,
        patience: Duration | None = None,
    ) -> None:
        super().__init__(of, windows, aggregate)
        self.fill = arguments.maybe_span("Window", "fill", fill)
        self.patience = arguments.maybe_span("Window", "patience", patience)
        if fill is not None:
            self._check_fill()

    def _check_fill(self) -> None:
        if not isinstance(self.windows, Tumbling):
            raise TopologyError("Window(fill=...): only tumbling windows follow one another; leave fill out")
        if self.patience is not None:
            raise TopologyError("Window(fill=..., patience=...): empty windows follow the low watermark, and patience does not; give one")
        try:
            self.aggregate.result(self.aggregate.zero(), Span(Timestamp(0), Timestamp(0) + self.windows.size))
        except EmptySpan as error:
            raise TopologyError(f"Window(fill=...): {error}; give an aggregate that has a value for an empty window") from None

    def state_type(self) -> Any:
        return OpenWindows[self.aggregate.kept(self.of)]  # type: ignore[misc]

    def initial_state(self) -> OpenWindows[Any]:
        return OpenWindows(FORMAT, self.mark, [], [])

    def filled(self) -> OpenWindows[Any]:
        return OpenWindows(FORMAT, self.mark, [Pane(NEVER, NEVER, self.aggregate.zero())], [])

    def process_record(self, record: Record[V]) -> None:
        at = record.timestamp
        if self.disjoint:
            for pane in reversed(self.state.panes):
                # What is open goes on as it began, also where the windows have been changed since.
                if pane.start <= at < pane.end and pane.hops:
                    if pane.hops == 1 or self._is_whole(pane):
                        self._add(pane, record)
                        return
                    break
        counted = [self._take(span, record) for span in self.panes.spans(at)]
        if not counted or not all(counted):
            self.late.produce(record.value, timestamp=at)

    def _is_whole(self, pane: Pane[Any]) -> bool:
        """Whether none of the windows that it is part of has been told."""
        return pane.end > self.low_watermark and not any(pane.is_in(told) for told in self.state.told)

    def _take(self, span: Span, record: Record[V]) -> bool:
        """Count a record in a span; says whether no window that this is part of has been told already."""
        if self.windows.merges:
            return self._take_session(span, record)
        new: Pane[Any] = Pane(span.start, span.end, None, self.hops)
        pane = next((pane for pane in self.state.panes if pane.hops and pane.start == span.start and pane.end == span.end), new)
        if self._is_done(pane):
            return False
        if pane is new:
            self._open(pane)
        self._add(pane, record)
        return self._is_whole(pane)

    def _take_session(self, span: Span, record: Record[V]) -> bool:
        near = [pane for pane in self.state.panes if pane.hops == SESSION and pane.start < span.end and span.start < pane.end]
        if any(told.start < span.end and span.start < told.end for told in self.state.told):
            return False
        if near:
            home = self._merge(near, span)
        elif span.end > self.low_watermark:
            home = Pane(span.start, span.end, None, SESSION)
            self._open(home)
        else:
            return False
        self._add(home, record)
        return True

    def _merge(self, near: list[Pane[Any]], span: Span) -> Pane[Any]:
        """Sessions that a new one touches become one with it."""
        home, *others = near
        for other in others:
            home.so_far = self.aggregate.merge(home.so_far, other.so_far)
            self.state.panes.remove(other)
        ends = near[-1].end
        if span.start < home.start or span.end > ends or others:
            home.start, home.end = min(home.start, span.start, key=int), max(ends, span.end, key=int)
            # The timer stays at the old end, where it will find nothing to tell, and be set anew: cheaper than with every record.
            self.state.panes.sort(key=_by_end)
        return home

    def _open(self, pane: Pane[Any]) -> None:
        panes = self.state.panes
        pane.so_far = self.aggregate.zero()
        insort(panes, pane, key=_by_end)
        if panes[0] is pane or panes[0].hops > 1:
            self._wait()
        if self.patience is not None and len(panes) == 1:
            self.set_timer("patience", at=self.now + self.patience, clock=Clock.WALL)

    def _add(self, pane: Pane[Any], record: Record[V]) -> None:
        pane.so_far = self.aggregate.add(pane.so_far, record)
        if self.patience is not None:
            pane.heard = self.now
        elif self.fill is not None:
            pane.empty_since = NEVER

    def process_timer(self, timer: Timer) -> None:
        if timer.tag == "patience":
            self._lose_patience()
        elif timer.tag == "close":
            self._close(since=timer.at)
        else:
            self._tell_by_itself(skip=timer.tag == SKIP)
        self._wait()

    def _close(self, since: Timestamp) -> None:
        """Tell what the low watermark has reached. Nothing that ends at `since` or later has been told, but by patience."""
        low_watermark, state = self.low_watermark, self.state
        panes = state.panes
        while panes and panes[0].end <= low_watermark and panes[0].hops <= 1:
            pane = panes.pop(0)
            self._tell(Span(pane.start, pane.end), [pane])
            if self.fill is not None:
                self._fill(pane, self.fill)
        if panes and panes[0].end <= low_watermark:
            for window in self._windows(since, low_watermark):
                self._tell(window, panes)
            state.panes = [pane for pane in panes if pane.last_end() > low_watermark]
        state.told = [window for window in state.told if window.end > low_watermark]

    def _fill(self, last: Pane[Any], fill: Duration) -> None:
        """The window after one that was told, empty, unless it is there or the last one with records is too far back."""
        since = last.empty_since or last.end
        end = last.end + (last.end - last.start)
        if end <= since + fill and not any(pane.start <= last.end < pane.end for pane in self.state.panes):
            insort(self.state.panes, Pane(last.end, end, self.aggregate.zero(), empty_since=since), key=_by_end)

    def _lose_patience(self) -> None:
        assert self.patience is not None
        state, waiting = self.state, END_OF_TIME
        for window in self._windows(self.low_watermark + LAST_INSTANT, END_OF_TIME):
            heard = max((pane.heard for pane in state.panes if pane.is_in(window)), key=int)
            if heard + self.patience <= self.now:
                self._tell(window, state.panes)
                state.told.append(window)
            else:
                waiting = min(waiting, heard + self.patience, key=int)
        state.panes = [pane for pane in state.panes if not self._is_done(pane)]
        if state.panes:
            self.set_timer("patience", at=waiting, clock=Clock.WALL)

    def _windows(self, since: Timestamp, until: Timestamp) -> list[Span]:
        """Those with records that end in a span of time and were not told, in the order of their ends."""
        found = {window for pane in self.state.panes for window in pane.windows(since, until)}
        return sorted(found.difference(self.state.told), key=_by_end)

    def _is_done(self, pane: Pane[Any]) -> bool:
        """Whether all windows that it is part of have been told."""
        if pane.last_end() <= self.low_watermark:
            return True
        return bool(self.state.told) and not self._unless_told(pane)

    def _unless_told(self, pane: Pane[Any]) -> list[Span]:
        return [window for window in pane.windows(self.low_watermark + LAST_INSTANT, END_OF_TIME) if window not in self.state.told]

    def _tell(self, window: Span, panes: list[Pane[Any]]) -> None:
        """Tell a window, made of those of the panes that are in it. One that cannot be told must not undo the others that are
        told in the same call: it is set aside, and tried once more in a call of its own, which fails by itself."""
        try:
            self._produce(window, panes)
        except Exception:
            self.state.untold += [Pane(window.start, window.end, pane.so_far) for pane in panes if pane.is_in(window)]
            self._wait_for_untold()

    def _produce(self, window: Span, panes: list[Pane[Any]]) -> None:
        value = self.aggregate.result(panes[0].so_far if len(panes) == 1 else self.merged(panes, window), window)
        self.results.produce(Windowed(self.key, window.start, window.end, value), timestamp=window.end - LAST_INSTANT)

    def _tell_by_itself(self, *, skip: bool) -> None:
        """The first window that could not be told: once more, or, where that has failed and was undone, no more."""
        untold = self.state.untold
        window = Span(untold[0].start, untold[0].end)
        if not skip:
            self._produce(window, [pane for pane in untold if pane.is_in(window)])
        self.state.untold = [pane for pane in untold if not pane.is_in(window)]
        self.cancel_timer(SKIP)
        if self.state.untold:
            self._wait_for_untold()

    def _wait_for_untold(self) -> None:
        first = self.state.untold[0]
        window, hold = Span(first.start, first.end), first.end - LAST_INSTANT
        for tag in (retry_tag(window), SKIP):
            if window.end <= self.low_watermark:
                self.set_timer(tag, at=window.end, hold=hold)
            else:
                self.set_timer(tag, at=self.now, hold=hold, clock=Clock.WALL)

    def _wait(self) -> None:
        """Be called when the next window ends; what it tells lies just before."""
        state = self.state
        at = min((pane.next_end(self.low_watermark) for pane in state.panes), default=END_OF_TIME, key=int)
        if at < END_OF_TIME:
            self.set_timer("close", at=at, hold=at - LAST_INSTANT)
            return
        if self.patience is not None:
            self.cancel_timer("patience")
        if state.told:
            self.set_timer("close", at=min((window.end for window in state.told), key=int))
        else:
            self.cancel_timer("close")
