"""The values of a Python iterable: taken by a thread of its own, for it may be silent for ever."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from millstream.core.codec import value_encoder
from millstream.errors import TopologyError
from millstream.source import Batch, SourceContext, SourceReader
from millstream.sources.thread import explained
from millstream.sources.value_source import ValueSource

MAX_AHEAD = 5_000  # values taken from the iterable and not yet given
TAKER_TIMEOUT = 1.0  # seconds that a close waits for the iterable

_used: list[Iterator[Any]] = []  # iterators that a run of this process has begun: they cannot be gone through again


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
        self.exhausted = False  # and that is because the iterable has no more
        self.error: BaseException | None = None

    def run(self) -> None:
        coming = self._coming
        try:
            encode = value_encoder(self._source.value_type)
            for value in self._values():
                if self.stopped:
                    return
                coming.append(encode(value))
                if self._sleeping:
                    self._news.set()
                if len(coming) >= MAX_AHEAD:
                    self._wait_for_room()
            self.exhausted = True
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

    def wait(self, timeout: float) -> None:
        """Until there is a value, or the end, or `stop`; so many seconds at most."""
        self._news.clear()
        self._sleeping = True
        if not self._coming and not self.ended and not self.stopped:  # looked at after it is known that somebody sleeps
            self._news.wait(timeout)
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


class ValuesReader(SourceReader):
    """Gives values as they come. The position is how many were given."""

    def __init__(self, source: ValueSource[Any], context: SourceContext) -> None:
        self._injector, self._position = context.injector, int(context.positions.get("", 0))
        self._taker = Taker(context.injector, source, self._position)
        self._taker.start()

    def poll(self, at_most: int, timeout: float) -> list[Batch]:
        taker = self._taker
        values = taker.take(at_most)
        if not values and not taker.ended and not taker.stopped:
            taker.wait(timeout)
            values = taker.take(at_most)
        if values:
            first, self._position = self._position, self._position + len(values)
            return [Batch(values, range(first, self._position), {"": self._position})]
        if taker.error is not None:
            raise explained(self._injector, "its values: ", taker.error)
        return []

    def finish(self) -> None:
        """No more values but those that the iterable has given already."""
        self.finishing = True
        self._taker.stop()

    def ended(self) -> bool:
        return (self._taker.ended or self._taker.stopped) and not self._taker.has_more

    def is_complete(self) -> bool:
        return self._taker.exhausted

    def close(self) -> None:
        self._taker.stop()
        self._taker.join(TAKER_TIMEOUT)
        self.left_running = self._taker.name if self._taker.is_alive() else None
