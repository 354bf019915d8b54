"""The values of a Python iterable: taken by one thread, made into frames by another, a slice of a few milliseconds at a time."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

from millstream.core.codec import encode_value
from millstream.core.parts import NO_LANE, Dealt, Frame
from millstream.errors import MillstreamError, RecordError, TopologyError
from millstream.injector import ValueSource
from millstream.mill.actions import Fed
from millstream.sources.dealing import Intake
from millstream.timestamp import Timestamp

MAX_AHEAD = 5_000  # values taken from the iterable and not yet in a frame
MAX_PER_SLICE = 5_000
MIN_PER_SLICE = 50
SECONDS_PER_SLICE = 0.005  # of work: planner and deliveries wait for the same interpreter lock
POLL = 0.05  # seconds between two looks for room, and for a stop meanwhile

_used: list[Iterator[Any]] = []  # iterators that a run of this process has begun: they cannot be gone through again


class FrameWriter(Protocol):
    """Where frames are appended: a SegmentWriter of the journal."""

    def append(self, dealt: list[Dealt], *, lane: int) -> Frame:
        """Write a frame and sync it."""

    def close(self) -> None: ...


class Taker(threading.Thread):
    """Goes through the iterable, which may be silent for ever: nobody waits for this thread.

    A value is encoded at once, for the iterable may go on to change it, and handed over through a deque: the other side is
    woken only if it sleeps, so that a value costs no lock.
    """

    def __init__(self, injector: str, source: ValueSource[Any], position: int) -> None:
        super().__init__(name=f"millstream takes values of {injector}", daemon=True)
        self._source, self._position = source, position
        self._coming: deque[bytes] = deque()
        self._news = threading.Event()
        self._room = threading.Event()
        self._sleeping = False  # of who takes
        self._full = False
        self.stopped = False
        self.ended = False  # no more will come; it is said after the last value was handed over
        self.error: BaseException | None = None

    def run(self) -> None:
        coming = self._coming
        try:
            for value in self._values():
                if self.stopped:
                    return
                coming.append(encode_value(value))
                if self._sleeping:
                    self._news.set()
                if len(coming) >= MAX_AHEAD:
                    self._wait_for_room()
        except BaseException as error:  # of the user's code, which may even exit
            self.error = error
        finally:
            self.ended = True
            self._news.set()

    def take(self, at_most: int) -> list[bytes]:
        """What has come, without waiting."""
        coming = self._coming
        taken = [coming.popleft() for _ in range(min(len(coming), at_most))]
        if self._full and len(coming) <= MAX_AHEAD // 2:
            self._room.set()
        return taken

    @property
    def has_more(self) -> bool:
        """Something that it was given, or met, and nobody has taken."""
        return bool(self._coming) or self.error is not None

    def wait(self) -> None:
        """Until there is a value, or the end, or `stop`."""
        self._news.clear()
        self._sleeping = True
        if not self._coming and not self.ended and not self.stopped:  # looked at after it is known that somebody sleeps
            self._news.wait()
        self._sleeping = False

    def stop(self) -> None:
        self.stopped = True
        self._news.set()
        self._room.set()

    def _wait_for_room(self) -> None:
        self._room.clear()
        self._full = True
        if len(self._coming) >= MAX_AHEAD and not self.stopped:
            self._room.wait()
        self._full = False

    def _values(self) -> Iterator[Any]:
        of = self._source.values
        if isinstance(of, Iterator):
            if any(of is used for used in _used):
                raise TopologyError("this iterator was used by an earlier run; give a list, or a function of the number of values taken")
            _used.append(of)
        if callable(of):
            resume: Callable[[int], Iterator[Any]] = of
            return iter(resume(self._position))
        return itertools.islice(iter(of), self._position, None)


class ValuesThread(threading.Thread):
    """Takes what has come, appends it as a frame, and feeds it to the planner. `error` is why it stopped, for the run to raise.

    A slice goes at once, however small; while it is written the next one gathers, so slices grow with the load by themselves.
    `position` is the number of values that commits have: what was taken beyond that is asked for again by the next start.
    """

    def __init__(
        self,
        injector: str,
        source: ValueSource[Any],
        intake: Intake,
        writer: FrameWriter,
        *,
        position: int,
        feed: Callable[[Fed], None],
        room: Callable[[float], bool],  # waits so many seconds at most until the backlog is not full; an Event's `wait`
        clock: Callable[[], Timestamp],
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(name=f"millstream injects {injector}", daemon=True)
        self._injector, self._intake, self._writer, self.position = injector, intake, writer, position
        self._feed, self._has_room, self._clock, self._seconds = feed, room, clock, seconds
        self._taker = Taker(injector, source, position)
        self._at_most = MIN_PER_SLICE
        self._segments: list[str] = []
        self._finishing = False
        self.error: MillstreamError | None = None

    def stop(self) -> None:
        """No more values. Does not wait, and an iterable that is silent does not matter."""
        self._finishing = False
        self._taker.stop()

    def join_taker(self, timeout: float) -> str | None:
        """After `stop`: wait for the thread that goes through the iterable; its name if it is in there still."""
        if self._taker.ident is not None:
            self._taker.join(timeout)
        return self._taker.name if self._taker.is_alive() else None

    def finish(self) -> None:
        """No more values but those that the iterable has given already. Does not wait either."""
        self._finishing = True
        self._taker.stop()

    def run(self) -> None:
        try:
            self._taker.start()
            while self._slice():
                pass
        except Exception as error:  # the run watches for it: a thread has nobody to raise to
            self.error = error if isinstance(error, MillstreamError) else _explained(self._injector, "", error)
        finally:
            self._taker.stop()
            self._writer.close()

    def _slice(self) -> bool:
        """One slice, or a wait for it; False when there is nothing more to do."""
        taker = self._taker
        while not self._has_room(POLL):
            if taker.stopped and not self._finishing:
                return False
        if taker.stopped and not (self._finishing and taker.has_more):
            return False
        ended = taker.ended  # asked before the values are taken: the last of them come before it
        values = taker.take(self._at_most)
        if values:
            self._inject(values)
        elif not ended:
            taker.wait()
        elif taker.error is not None:
            raise _explained(self._injector, "its values: ", taker.error)
        else:
            self._feed(Fed(self._injector, [], {}, position=self.position, finished=True))
            return False
        return True

    def _inject(self, values: list[bytes]) -> None:
        begun = self._seconds()
        made = self._intake.take(self.position, values, now=self._clock())
        took = self._seconds() - begun
        frames = [self._writer.append(made.dealt, lane=NO_LANE)] if made.dealt else []
        if frames:
            self._segments = [frames[0].segment]
        self.position += len(values)
        self._feed(Fed(self._injector, frames, made.marks, made.injected, made.dead, self.position, open_segments=self._segments))
        self._at_most = slice_size(self._at_most, len(values), took)


def slice_size(last: int, values: int, took: float) -> int:
    """How many values the next slice may have: as many as fit into its time, by what a full one took."""
    if values < last:
        return last
    fits = int(values * SECONDS_PER_SLICE / took) if took > 0 else MAX_PER_SLICE
    return max(MIN_PER_SLICE, min(MAX_PER_SLICE, fits, 4 * last))


def _explained(injector: str, what: str, error: BaseException) -> RecordError:
    """As the run raises it, with the part of the traceback that is the user's own."""
    inner: TracebackType | None = error.__traceback__
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith("millstream."):
        inner = inner.tb_next
    trace = "".join(traceback.format_exception(type(error), error, inner or error.__traceback__)).rstrip()
    found = RecordError(f"injector {injector!r}", f"{what}{type(error).__name__}: {error}", trace)
    found.__cause__ = error
    return found
