"""What windows keep for a key, and how it is spelled: a format number, whose it is, and then what is open."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from millstream import arguments
from millstream.aggregate.combined import checks_itself
from millstream.aggregate.live import alive, check_kept, encode
from millstream.aggregate.protocol import Aggregate, Span, is_aggregate
from millstream.computation import Computation
from millstream.stream import Output
from millstream.timestamp import Timestamp, describe
from millstream.window.spans import Days, Hopping, Tumbling, Windows, check_windows

A = TypeVar("A")
R = TypeVar("R")
V = TypeVar("V")

FORMAT = 1
NEVER = Timestamp(0)
SESSION = 0  # in place of a number of hops
SKIP = "tell no more"  # comes after the timer of `retry_tag` at the same time: timers of one time are called by their tags


class Pane(msgspec.Struct, Generic[A], array_like=True):
    """What one accumulator is of. Windows that hop share panes: this one is part of `hops` windows, of which the first ends where
    it does, and each of the others its own length later. Any other pane is a window by itself; sessions merge."""

    start: Timestamp
    end: Timestamp
    so_far: A
    hops: int = 1
    heard: Timestamp = NEVER  # when the last record came by the wall clock, for windows with patience
    empty_since: Timestamp = NEVER  # nothing has come to it; the last one with records ended then

    def last_end(self) -> Timestamp:
        """The end of the last window that it is part of."""
        return self.end if self.hops <= 1 else self.end + (self.hops - 1) * (self.end - self.start)

    def next_end(self, after: Timestamp) -> Timestamp:
        """The end of the first of its windows that ends after a time; its last one if none does."""
        if after < self.end or self.hops <= 1:
            return self.end
        length = self.end - self.start
        passed = (after - self.end) // length + 1
        return self.end + min(passed, self.hops - 1) * length

    def windows(self, since: Timestamp, until: Timestamp) -> Iterator[Span]:
        """Those of its windows that end in a span of time, both ends of it included."""
        if self.hops <= 1:
            if since <= self.end <= until:
                yield Span(self.start, self.end)
            return
        length = self.end - self.start
        first = max(0, -((self.end - since) // length))
        for hop in range(first, min(self.hops - 1, (until - self.end) // length) + 1):
            end = self.end + hop * length
            yield Span(end - self.hops * length, end)

    def is_in(self, window: Span) -> bool:
        if self.hops <= 1:
            return self.start == window.start and self.end == window.end
        length = self.end - self.start
        fits = window.end - window.start == self.hops * length
        return fits and self.end <= window.end <= self.last_end() and not int((window.end - self.end) % length)


class Aggregating(Computation[Any], Generic[V, R]):
    """What all that aggregates over time shares: the types, and how the state is spelled."""

    late: Output[V]

    def __init__(self, of: type[V], aggregate: Aggregate[V, Any, R]) -> None:
        call = type(self).__name__
        arguments.value_type(call, of)
        is_aggregate(call, aggregate)
        self.of, self.aggregate = of, alive(aggregate)
        self.mark = zlib.crc32(aggregate.name.encode())
        self._checks = not checks_itself(self.aggregate)
        check_kept(call, aggregate, of, lambda: self.decode_state(encode(self.filled())))

    def filled(self) -> Any:
        """A state with something in it, to see while building whether it can be kept."""
        raise NotImplementedError

    def type_arguments(self) -> dict[str, Any]:
        return {"V": self.of, "R": self.aggregate.returned(self.of)}

    def encode_state(self, state: Any) -> bytes:
        kept = encode(state)
        if self._checks:
            self._decode(kept)
        return kept

    def decode_state(self, stored: bytes) -> Any:
        state = self._decode(stored)
        if state.format != FORMAT:
            raise ValueError(f"it is kept in format {state.format}, and this Millstream knows {FORMAT}")
        if state.mark != self.mark:
            raise ValueError("it was kept by another aggregate; give the computation a new name")
        return state

    @functools.cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(self.state_type())
        return decoder.decode

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_decode"}


class Windowing(Aggregating[V, R], Generic[V, R]):
    """What windows share: which panes a record falls into."""

    def __init__(self, of: type[V], windows: Windows, aggregate: Aggregate[V, Any, R]) -> None:
        check_windows(type(self).__name__, windows)
        super().__init__(of, aggregate)
        self.windows = windows
        self.panes: Windows = Tumbling(windows.every, windows.offset) if isinstance(windows, Hopping) else windows
        self.hops = windows.hops if isinstance(windows, Hopping) else SESSION if windows.merges else 1
        self.disjoint = isinstance(windows, Tumbling | Hopping | Days)  # a time lies in one pane only

    def merged(self, panes: list[Pane[Any]], window: Span) -> Any:
        """What is kept of a window, from the panes that are in it."""
        parts = [pane.so_far for pane in panes if pane.is_in(window)]
        if len(parts) == 1:
            return parts[0]
        so_far = self.aggregate.zero()
        for part in parts:
            so_far = self.aggregate.merge(so_far, part)
        return so_far


def retry_tag(window: Span) -> str:
    """The timer of a window that could not be told, so that its dead letter says which."""
    return f"tell {describe(window.start)}"
