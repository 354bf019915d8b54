"""Windows as the rows of a table: told early, and corrected when late records come."""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right, insort
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from millstream import arguments
from millstream.aggregate.live import encode
from millstream.aggregate.protocol import Aggregate, Span
from millstream.change import Change, key
from millstream.errors import TopologyError
from millstream.record import Clock, Record, Timer
from millstream.stream import Output
from millstream.timestamp import END_OF_TIME, Duration, Timestamp, describe, floor
from millstream.window.kept import FORMAT, NEVER, SESSION, SKIP, Pane, Windowing, retry_tag
from millstream.window.spans import Every, Windowed, Windows

A = TypeVar("A")
R = TypeVar("R")
V = TypeVar("V")

_by_end = attrgetter("end", "start")
_end = attrgetter("end")


class WindowRow(msgspec.Struct, Generic[R], array_like=True):
    """One window, as the table has it."""

    start: Timestamp
    end: Timestamp
    at: Timestamp  # when the table last changed here: no change of a row is older than the one before it
    told: tuple[Timestamp, R] | None = None  # what the table has: its end, and its value
    changed: bool = True  # since it was last told


class CorrectableWindows(msgspec.Struct, Generic[A, R], array_like=True):
    """What is kept for a key."""

    format: int
    mark: int
    panes: list[Pane[A]]
    rows: list[WindowRow[R]]  # by their ends; no two begin at one time
    untold: list[Timestamp] = []  # where those begin that could not be told; empty when a turn ends


class WindowTable(Windowing[V, R], Generic[V, R]):
    """Windows as a table, with a row for each under `ms.key(key, start)`.

        visits = WindowTable(Click, Session(30 * ms.MINUTE), aggregate.count(), correct=ms.DAY, early=Every(10 * ms.SECOND))
        topology.compute("visits", visits).reads(clicks)

    A row is told when the low watermark reaches the end of its window, and again, at once, when a late record comes up to
    `correct` after that. `early` tells open windows that often too, by the wall clock or by the low watermark, if something
    has come. Sessions that a record joins become one row; the others are deleted. What comes later than `correct` goes to
    `late`; of several windows, those that can still be corrected count it. A record of a session that is kept counts however
    late it is, unless the session would begin earlier by it: then the record's own span must not be over for `correct`.

    A change carries the time at which the table changed, so a correction is not late for who reads it: the end of the window
    when it is told then; when it is corrected, the low watermark, or the time of the record if that is later.

    A row that cannot be told is an error of its own: with `errors=ms.Errors.DEAD_LETTER` it becomes a dead letter, stays as it
    was told last, and is told again when something comes to it that puts it right. A late record that makes such a row of one
    that was told becomes the dead letter itself, and counts nowhere.
    """

    changes: Output[Change[Windowed[R]]]

    def __init__(
        self,
        of: type[V],
        windows: Windows,
        aggregate: Aggregate[V, Any, R],
        *,
        correct: Duration,
        early: Every | None = None,
    ) -> None:
        super().__init__(of, windows, aggregate)
        self.correct = arguments.span("WindowTable", "correct", correct, least=0)
        if early is not None and not isinstance(early, Every):
            raise TopologyError(f"WindowTable(early={early!r}): give Every(10 * ms.SECOND), or Every(..., clock=ms.Clock.LOW_WATERMARK)")
        self.early = early

    def state_type(self) -> Any:
        return CorrectableWindows[self.aggregate.kept(self.of), self.aggregate.returned(self.of)]  # type: ignore[misc]

    def initial_state(self) -> CorrectableWindows[Any, R]:
        return CorrectableWindows(FORMAT, self.mark, [], [])

    def filled(self) -> CorrectableWindows[Any, R]:
        return CorrectableWindows(FORMAT, self.mark, [Pane(NEVER, NEVER, self.aggregate.zero())], [])

    # Records.

    def process_record(self, record: Record[V]) -> None:
        awaited, take = self._has_news(), self._take_session if self.windows.merges else self._take
        counted = [take(span, record) for span in self.panes.spans(record.timestamp)]
        if not counted or not all(counted):
            self.late.produce(record.value, timestamp=record.timestamp)
        if self.early is not None and not awaited and self._has_news():
            self._set_early(self.early, record.timestamp)

    def _take(self, span: Span, record: Record[V]) -> bool:
        """Count a record in all windows of a span that can still be corrected; says whether these are all of them."""
        new: Pane[Any] = Pane(span.start, span.end, None, self.hops)
        pane = next((pane for pane in reversed(self.state.panes) if self._is_of(pane, span, record.timestamp)), new)
        windows = list(pane.windows(self.low_watermark - self.correct + Duration(1), END_OF_TIME))
        if not windows:
            return False
        if pane is new:
            pane.so_far = self.aggregate.zero()
            insort(self.state.panes, pane, key=_by_end)
        pane.so_far = self.aggregate.add(pane.so_far, record)
        for row in self._rows(windows):
            row.changed = True
            if row.end <= self.low_watermark:
                self._tell(row, self._soonest(row, record.timestamp))
        return len(windows) == pane.hops

    def _rows(self, windows: list[Span]) -> list[WindowRow[R]]:
        """Those of these windows, be they new."""
        rows, found, new = self.state.rows, list[WindowRow[R]](), list[Span]()
        for window in windows:
            place = bisect_left(rows, (window.end, window.start), key=_by_end)
            if place < len(rows) and (rows[place].start, rows[place].end) == (window.start, window.end):
                found.append(rows[place])
            else:
                new.append(window)
        return found + self._insert(new) if new else found

    def _is_of(self, pane: Pane[Any], span: Span, at: Timestamp) -> bool:
        """What is open goes on as it began, also where the windows have been changed since."""
        if not pane.hops:
            return False
        return pane.start <= at < pane.end if self.disjoint else pane.start == span.start and pane.end == span.end

    def _take_session(self, span: Span, record: Record[V]) -> bool:
        panes = self.state.panes
        near = [pane for pane in panes if pane.hops == SESSION and pane.start < span.end and span.start < pane.end]
        # No row may begin where one has stood that is forgotten: that one ended no sooner than the span of a record there does.
        if not any(pane.start <= span.start for pane in near) and span.end + self.correct <= self.low_watermark:
            return False
        rows = [row for row in self.state.rows if any(pane.start == row.start and pane.end == row.end for pane in near)]
        for pane in near:
            panes.remove(pane)
        joined: Pane[Any] = Pane(span.start, span.end, self.aggregate.zero(), SESSION)
        for pane in near:
            joined.start, joined.end = min(joined.start, pane.start, key=int), max(joined.end, pane.end, key=int)
            joined.so_far = self.aggregate.merge(joined.so_far, pane.so_far)
        joined.so_far = self.aggregate.add(joined.so_far, record)
        insort(panes, joined, key=_by_end)
        self._join_rows(rows, joined, record.timestamp)
        return True

    def _join_rows(self, rows: list[WindowRow[R]], joined: Pane[Any], at: Timestamp) -> None:
        """One row in place of several. Its key is its start: the row that has it stays, and the others go."""
        row = next((row for row in rows if row.start == joined.start), None)
        corrected = any(other.told and other.told[0] <= self.low_watermark for other in rows)
        for other in rows:
            if other is not row:
                self.state.rows.remove(other)
                corrected |= self._delete(other, at)
        if row is None:
            (row,) = self._insert([Span(joined.start, joined.end)])
        elif row.end != joined.end:
            was_over, row.end = row.end <= self.low_watermark, joined.end
            self.state.rows.sort(key=_by_end)
            if was_over:
                self._wait()  # else a timer stands at its old end: there it will find nothing to tell, and be set anew
        row.changed = True
        if corrected or row.end <= self.low_watermark:
            self._tell(row, self._soonest(row, at))

    def _insert(self, windows: list[Span]) -> list[WindowRow[R]]:
        """Rows for windows that have none."""
        new: list[WindowRow[R]] = [WindowRow(window.start, window.end, window.start) for window in windows]
        taken = {row.start for row in self.state.rows}
        for row in new:
            if row.start in taken:
                raise TopologyError(
                    f"two windows begin at {describe(row.start)}, and a row stands under the start of its window; let them begin at "
                    f"different times, or give the computation a new name if its windows were others before"
                )
            taken.add(row.start)
            insort(self.state.rows, row, key=_by_end)
        self._wait()
        return new

    # Timers.

    def process_timer(self, timer: Timer) -> None:
        state, low_watermark = self.state, self.low_watermark
        if timer.tag in ("close", "early"):
            for row in state.rows:
                if row.changed and (row.end <= low_watermark or timer.tag == "early"):
                    self._try(row, timer)
        else:
            self._tell_by_itself(timer)
        if state.untold:
            self._wait_for_untold(timer)
            return
        state.rows = [row for row in state.rows if row.end + self.correct > low_watermark]
        state.panes = [pane for pane in state.panes if pane.last_end() + self.correct > low_watermark]
        self._wait()
        if self.early is not None and not self._has_news():
            self.cancel_timer("early")

    def _try(self, row: WindowRow[R], timer: Timer) -> None:
        """Tell a row. One that cannot be told must not undo the others that are told in the same call: it is tried once more in a
        call of its own, which fails by itself."""
        try:
            self._tell(row, self._due(row, timer))
        except Exception:
            self.state.untold.append(row.start)

    def _due(self, row: WindowRow[R], timer: Timer) -> Timestamp:
        """The time of what a timer tells of a row."""
        if row.end <= self.low_watermark:
            return row.end
        return timer.at if timer.clock is Clock.LOW_WATERMARK else self._soonest(row, row.at)

    def _tell_by_itself(self, timer: Timer) -> None:
        """The first row that could not be told: once more, or, where that has failed and was undone, not as it is now."""
        row = self._untold()
        if timer.tag == SKIP:
            row.changed = False
        else:
            self._tell(row, self._due(row, timer))
        del self.state.untold[0]
        self.cancel_timer(SKIP)

    def _wait_for_untold(self, timer: Timer) -> None:
        row = self._untold()
        over = row.end <= self.low_watermark
        for tag in (retry_tag(Span(row.start, row.end)), SKIP):
            self.set_timer(tag, at=row.end if over else timer.at, clock=Clock.LOW_WATERMARK if over else timer.clock)

    def _untold(self) -> WindowRow[R]:
        return next(row for row in self.state.rows if row.start == self.state.untold[0])

    def _has_news(self) -> bool:
        """Whether an open window has changed since it was told."""
        if self.early is None:
            return False
        rows = self.state.rows
        return any(row.changed for row in rows[bisect_right(rows, self.low_watermark, key=_end) :])

    def _set_early(self, early: Every, at: Timestamp) -> None:
        """After the record, too: nothing may be told at a time that lies before all that came."""
        since = self.now if early.clock is Clock.WALL else max(self.low_watermark, at, key=int)
        self.set_timer("early", at=floor(since, early.span) + early.span, clock=early.clock)

    def _wait(self) -> None:
        """Be called when the next window ends, or can no longer be corrected."""
        rows = self.state.rows
        over = bisect_right(rows, self.low_watermark, key=_end)
        ends = [rows[0].end + self.correct] if over else []
        if over < len(rows):
            ends.append(rows[over].end)
        if ends:
            self.set_timer("close", at=min(ends, key=int))
        else:
            self.cancel_timer("close")

    # Changes.

    def _tell(self, row: WindowRow[R], at: Timestamp) -> None:
        """What a row has become, at a time that is not past for who reads it."""
        value = self._value(row)
        before, after = self._told(row), Windowed(self.key, row.start, row.end, value)
        # What was kept of a type that nobody says comes back as plain types: then only what is written is the same.
        if before is None or (before != after and encode(before) != encode(after)):
            self._produce(row, Change(before, after), at)
            row.told = row.end, copy.deepcopy(value)  # an aggregate may go on changing what it has returned
        row.changed = False

    def _delete(self, row: WindowRow[R], at: Timestamp) -> bool:
        """Says whether there was something to delete."""
        if row.told is None:
            return False
        self._produce(row, Change(self._told(row), None), self._soonest(row, at))
        return True

    def _produce(self, row: WindowRow[R], change: Change[Windowed[R]], at: Timestamp) -> None:
        row.at = max(at, row.at, key=int)
        self.changes.produce(change, timestamp=row.at, key=key(self.key, int(row.start)))

    def _soonest(self, row: WindowRow[R], at: Timestamp) -> Timestamp:
        """The first time at which a change is not late for who reads it. What a record brings is not dated before the record:
        readers may learn in the same epoch that all older ones have come."""
        low_watermark = at if self.low_watermark == END_OF_TIME else self.low_watermark
        return max(row.at, at, low_watermark, key=int)

    def _told(self, row: WindowRow[R]) -> Windowed[R] | None:
        return None if row.told is None else Windowed(self.key, row.start, *row.told)

    def _value(self, row: WindowRow[R]) -> R:
        window = Span(row.start, row.end)
        value: R = self.aggregate.result(self.merged(self.state.panes, window), window)
        return value
