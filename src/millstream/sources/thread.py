"""A source in the driver: one thread that asks it for what is new, and passes that on to planner and lanes."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from types import TracebackType
from typing import Protocol

from millstream.core.ledger import Commit
from millstream.core.parts import NO_LANE, Dealt, Frame
from millstream.errors import MillstreamError, RecordError, Unreachable
from millstream.injector import Injection
from millstream.mill.messages import Fed, Range
from millstream.source import Batch, Piece, Position, SourceContext, SourceReader
from millstream.sources.dealing import Intake
from millstream.timestamp import Timestamp

log = logging.getLogger("millstream")

MAX_PER_SLICE = 5_000
MIN_PER_SLICE = 50
SECONDS_PER_SLICE = 0.005  # of work: deliveries wait for the same interpreter lock
POLL_TIMEOUT = 0.2  # seconds that a source may wait for news; a stop waits for it too
LOOK_AGAIN = 0.1  # seconds until a source of which lanes read pieces is asked again, unless a commit comes first
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two tries to reach it


class FrameWriter(Protocol):
    """Where frames are appended: a SegmentWriter of the journal."""

    def append(self, dealt: list[Dealt], *, lane: int) -> Frame:
        """Write a frame and sync it."""

    def close(self) -> None: ...


class Door(Protocol):
    """The planner, as a source sees it."""

    def feed(self, fed: Fed) -> None:
        """Records that lie in the journal."""

    def offer(self, ranges: list[Range]) -> None:
        """Pieces for lanes to read."""

    def unread(self, injector: str, partitions: list[str] | None) -> None:
        """Which partitions have something that was not given yet; None while the source cannot be reached."""

    def has_room(self, timeout: float) -> bool:
        """Waits until the backlog is not full, so many seconds at most."""


class SourceThread(threading.Thread):
    """Takes what a source has, and feeds or offers it. `error` is why it stopped, for the run to raise.

    A slice goes at once, however small; while it is written the next one gathers, so slices grow with the load by themselves.
    What no commit has is asked for again by the next run.
    """

    def __init__(
        self,
        injection: Injection,
        context: SourceContext,
        intake: Intake,
        writer: FrameWriter,
        door: Door,
        *,
        clock: Callable[[], Timestamp],
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(name=f"millstream injects {injection.name}", daemon=True)
        self._source, self._context, self._intake, self._writer, self._door = injection.source, context, intake, writer, door
        self._injector, self._clock, self._seconds = injection.name, clock, seconds
        self._reader: SourceReader | None = None
        self._positions: dict[str, Position] = dict(context.positions)  # with what was given and no commit has yet
        self._committed: dict[str, Position] = {}  # since it was last confirmed
        self._pieces = 0  # that are offered and not read
        self._news = threading.Condition()
        self._stopped = self._finishing = False
        self._at_most = MIN_PER_SLICE
        self._segments: list[str] = []
        self._unread: list[str] | None = []
        self._pause = FIRST_PAUSE
        self._unreachable: str | None = None
        self.left_running: str | None = None  # a thread of the source's own that has not ended
        self.error: MillstreamError | None = None

    # Called by other threads.

    @property
    def trouble(self) -> str | None:
        """What the status should say of it."""
        reader, unreachable = self._reader, self._unreachable
        says = None if reader is None else reader.trouble  # once: it may be over by the next look
        return unreachable or (None if says is None else f"injector {self._injector!r}: {says}")

    def lag(self) -> Mapping[str, int]:
        reader = self._reader
        return {} if reader is None else reader.lag()

    def on_commit(self, commit: Commit) -> None:
        change = commit.sources.get(self._injector)
        if change is not None and (change.positions or change.pieces):
            with self._news:
                self._committed.update(change.positions)
                if change.pieces:  # of what lanes have read only a commit tells; all that was fed before is in it, or in one before it
                    self._pieces -= change.pieces
                    self._positions.update(change.positions)
                self._news.notify()

    def stop(self) -> None:
        """Nothing more. Does not wait."""
        with self._news:
            self._stopped = True
            self._news.notify()

    def finish(self) -> None:
        """No more than there is now; it ends when that is read. Does not wait either."""
        with self._news:
            self._finishing = True
            self._news.notify()

    # Its own.

    def run(self) -> None:
        try:
            self._try(self._read)
            self._try(self._close)
        finally:
            self._writer.close()

    def _try(self, act: Callable[[], None]) -> None:
        """What a source raises, even to exit, is kept for the run, which watches for it: a thread has nobody to raise to."""
        try:
            act()
        except BaseException as error:
            self.error = self.error or (error if isinstance(error, MillstreamError) else explained(self._injector, "", error))

    def _read(self) -> None:
        self._tell_unread(None)  # nobody listens before it is open
        while self._turn():
            pass

    def _turn(self) -> bool:
        """One look at the source, and what it gave; False when there is nothing more to do."""
        if self._stopped:
            return False
        try:
            reader = self._open() if self._reader is None else self._reader
            if reader is None:
                return True
            if self._finishing and not reader.finishing:
                reader.finish()
            self._confirm(reader)
            given = reader.poll(self._at_most, 0.0 if self._pieces else POLL_TIMEOUT)
            unread = _unread(reader)
            over = not given and not self._pieces and reader.ended()
            complete = over and self._source.bounded and reader.is_complete()
        except Unreachable as error:
            return self._wait_for_it(str(error))
        self._note_reached()
        if given:
            return self._pass_on(given, unread)
        self._tell_unread(unread)
        if complete:
            self._door.feed(Fed(self._injector, [], {}, positions=dict(self._positions), finished=True))
        elif self._pieces:
            self._wait(lambda: bool(self._committed), LOOK_AGAIN)
        return not over

    def _open(self) -> SourceReader | None:
        """From where it is; None if lanes are reading still, or the run stops."""
        if not self._wait_for_lanes():
            return None
        self._reader = reader = self._source.open(replace(self._context, positions=dict(self._positions)))
        self._tell_unread(_unread(reader))
        return reader

    def _note_reached(self) -> None:
        """Not before it has answered: many a client opens without a word to the other side."""
        if self._unreachable is not None:
            log.info("injector %r: %s is reached again", self._injector, self._source.describe())
        self._unreachable, self._pause = None, FIRST_PAUSE

    def _confirm(self, reader: SourceReader) -> None:
        with self._news:
            committed, self._committed = self._committed, {}
        if not committed:
            return
        try:
            reader.confirm(committed)
        except Unreachable:
            with self._news:  # for the next one that is opened
                self._committed = {**committed, **self._committed}
            raise

    def _pass_on(self, given: Sequence[Batch | Piece], unread: set[str]) -> bool:
        """In the order in which it was given: what a batch holds comes after all pieces before it.

        What was given is unread until it is passed on: before that, the planner knows neither its marks nor that it waits.
        """
        steps = [list(some) for _, some in groupby(given, key=type)]
        waiting = {each.partition for each in given}
        if len(steps) == 1:  # it goes at once, unless it must wait
            waiting &= set(self._unread or ())
        self._tell_unread(unread | waiting)
        for step in steps:
            if batches := [each for each in step if isinstance(each, Batch)]:
                if not self._feed(batches):
                    return False
            else:
                self._offer([each for each in step if isinstance(each, Piece)])
        self._tell_unread(unread)
        return True

    def _offer(self, pieces: list[Piece]) -> None:
        with self._news:
            self._pieces += len(pieces)
        self._door.offer([Range(self._injector, each.lane, each.size, each.content, each.partition) for each in pieces])

    def _feed(self, batches: list[Batch]) -> bool:
        """Together in one frame; False if the run stops before there is room for it."""
        unread = {*(self._unread or ()), *(batch.partition for batch in batches)}
        while not self._door.has_room(0.0):
            self._tell_unread(unread)
            self._door.has_room(POLL_TIMEOUT)
            if self._stopped:
                return False
        if self._pieces:
            self._tell_unread(unread)
        if not self._wait_for_lanes():
            return False
        begun, now = self._seconds(), self._clock()
        slices = [self._intake.take(batch, now=now) for batch in batches]
        took = self._seconds() - begun
        dealt = [each for made in slices for each in made.dealt]
        fed = Fed(self._injector, [self._writer.append(dealt, lane=NO_LANE)] if dealt else [], {})
        if fed.frames:
            self._segments = [fed.frames[0].segment]
        fed.open_segments = self._segments
        for made in slices:
            fed.add(made)
        self._positions.update(fed.positions)
        self._door.feed(fed)
        self._at_most = slice_size(self._at_most, sum(len(batch.values) for batch in batches), took)
        return True

    def _wait_for_lanes(self) -> bool:
        """Until all pieces are read; False if the run stops first."""
        self._wait(lambda: not self._pieces, None)
        return not self._stopped

    def _wait(self, for_what: Callable[[], bool], timeout: float | None) -> None:
        with self._news:
            self._news.wait_for(lambda: self._stopped or for_what(), timeout)

    def _wait_for_it(self, why: str) -> bool:
        self._close()
        place = f"injector {self._injector!r} waits: {self._source.describe()} cannot be reached"
        if self._unreachable is None:
            log.warning("%s: %s", place, why)
        self._unreachable = f"{place}: {why}"
        self._tell_unread(None)
        self._wait(lambda: False, self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True

    def _tell_unread(self, partitions: Iterable[str] | None) -> None:
        """Before anything is fed: what was not read yet holds the promise."""
        unread = None if partitions is None else sorted(partitions)
        if unread != self._unread:
            self._unread = unread
            self._door.unread(self._injector, unread)

    def _close(self) -> None:
        reader = self._reader
        if reader is not None:
            with suppress(Unreachable):  # it is gone already
                reader.close()
            self.left_running = reader.left_running
        self._reader = None


def _unread(reader: SourceReader) -> set[str]:
    return {partition for partition, behind in reader.lag().items() if behind > 0}


def slice_size(last: int, values: int, took: float) -> int:
    """How many values the next slice may have: as many as fit into its time, by what a full one took."""
    if values < last:
        return last
    fits = int(values * SECONDS_PER_SLICE / took) if took > 0 else MAX_PER_SLICE
    return max(MIN_PER_SLICE, min(MAX_PER_SLICE, fits, 4 * last))


def explained(injector: str, what: str, error: BaseException) -> RecordError:
    """As the run raises it, with the part of the traceback that is the user's own."""
    inner: TracebackType | None = error.__traceback__
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith("millstream."):
        inner = inner.tb_next
    trace = "".join(traceback.format_exception(type(error), error, inner or error.__traceback__)).rstrip()
    found = RecordError(f"injector {injector!r}", f"{what}{type(error).__name__}: {error}", trace)
    found.__cause__ = error
    return found
