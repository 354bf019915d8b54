"""A source, read as a run reads it: for tests of sources."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from millstream.errors import Unreachable
from millstream.shipping.pickler import pickled
from millstream.source import Batch, Piece, PieceReader, Position, Source, SourceContext, SourceReader

Found = TypeVar("Found")

TIMEOUT = 60.0  # seconds for something that must happen; a bound, never an expectation
PAUSE = 0.05  # seconds until a source that cannot be reached is tried again
COMMITTED_AFTER = 1.0  # seconds of silence: a source may wait for commits before it gives more


@dataclass(frozen=True)
class ReadValue:
    """A value that a source gave, with its id."""

    partition: str
    origin: str
    major: int
    number: int
    text: bytes
    reason: str | None

    @property
    def id(self) -> tuple[str, int, int]:
        return self.origin, self.major, self.number


@dataclass(frozen=True)
class ReadUpTo:
    """How far a source is read after a batch: so many values, and the positions from which it is read on."""

    values: int
    positions: Mapping[str, Position]


class SourceReading:
    """Takes batches as they come. Pieces are read at once, as by a lane, with a copy of the source that has travelled.

    One that cannot be reached is closed, and opened anew from where it was. With `confirms`, all that was given counts as committed
    before the next poll; without, when nothing has come for a while. What breaks the contract in what was given fails at once.
    """

    def __init__(self, source: Source[Any], context: SourceContext, *, at_most: int = 100, confirms: bool = False) -> None:
        self._source, self._context, self._at_most, self._confirms = source, context, at_most, confirms
        self._finishing = False
        self._given_at = time.monotonic()
        self._confirmed: Mapping[str, Position] = dict(context.positions)
        self._piece_reader: PieceReader | None = None
        self.reader: SourceReader | None = None
        self._ids: set[tuple[str, int, int]] = set()
        self.values: list[ReadValue] = []
        self.positions: dict[str, Position] = dict(context.positions)
        self.places = [ReadUpTo(0, dict(context.positions))]  # from which it may be read again: none before what was confirmed
        self.pieces: list[Piece] = []
        self.unreachable: str | None = None  # why, if the last try did not reach it
        self.ended = False

    def poll(self, timeout: float = 0.1) -> bool:
        """One turn of the thread that reads a source; whether it gave anything."""
        try:
            reader = self.open()
            if self._finishing and not reader.finishing:
                reader.finish()
            if self._confirms or time.monotonic() - self._given_at > COMMITTED_AFTER:
                self.confirm()
            given = reader.poll(self._at_most, timeout)
        except Unreachable as error:
            self._close_reader()
            self.unreachable = str(error) or "it cannot be reached"
            time.sleep(PAUSE)
            return False
        self.unreachable = None
        self._check_amount(given)
        for each in given:
            if isinstance(each, Piece):
                self.pieces.append(each)
                for batch in self._read(each):
                    self._take(batch)
            else:
                self._take(each)
        if given:
            self._given_at = time.monotonic()
        self.ended = not given and reader.ended()
        return bool(given)

    def reach(self) -> SourceReader:
        """Open, as soon as that can be, and nothing given yet."""
        found = eventually(self.open)
        assert found is not None, "open must return a reader as soon as the system can be reached"
        return found

    def open(self) -> SourceReader:
        if self.reader is None:
            self.reader = self._source.open(replace(self._context, positions=dict(self.positions)))
        return self.reader

    def confirm(self) -> None:
        """All that was given is committed."""
        if self.positions != self._confirmed:
            self._confirmed = dict(self.positions)
            self.places = self.places[-1:]
            self.open().confirm(self._confirmed)

    def finish(self) -> None:
        self._finishing = True

    def until(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Polls until it holds; `otherwise` says what to do if it never does."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, f"{otherwise} ({self._seen()})"
            self.poll()

    def until_given(self, count: int) -> None:
        self.until(
            lambda: len(self.values) >= count, f"poll must give all {count} values that are there, and need not be opened anew for it"
        )

    def until_ended(self) -> None:
        how = "a bounded source ends by itself" if self._source.bounded else "it was told to finish"
        self.until(lambda: self.ended, f"after a poll that gave nothing, ended() must say that nothing more comes: {how}")

    def close(self) -> None:
        self._close_reader()
        if self._piece_reader is not None:
            self._piece_reader.close()
        self._piece_reader = None

    def _close_reader(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            with suppress(Unreachable):  # it is gone already
                reader.close()

    def _read(self, piece: Piece) -> list[Batch]:
        """Again, if a lane cannot reach it."""
        if self._piece_reader is None:
            self._piece_reader = travelled(self._source).piece_reader(replace(self._context, positions={}))
        reader = self._piece_reader
        found = eventually(lambda: checked(reader.read(piece, self._at_most), self._at_most))
        assert found is not None, "a piece must be read as soon as the system can be reached, by the reader that there is"
        return found

    def _check_amount(self, given: Sequence[Batch | Piece]) -> None:
        values = sum(len(each.values) for each in given if isinstance(each, Batch))
        assert values <= 2 * self._at_most, (
            f"poll({self._at_most}, …) gave {values} values; give about as many as it asks for, and the rest at the next poll"
        )
        for piece in given:
            if isinstance(piece, Piece):
                assert 0 < piece.size <= 2 * self._context.max_bytes, (
                    f"a piece has a size of {piece.size}; say how many bytes it has, about, and cut pieces of context.max_bytes, "
                    f"{self._context.max_bytes}"
                )

    def _take(self, batch: Batch) -> None:
        for value in values_of(batch):
            assert value.id not in self._ids, (
                f"two values have the id {value.id}: one was given twice, or origin, major and number are not its own"
            )
            self._ids.add(value.id)
            self.values.append(value)
        self._go_on(batch)

    def _go_on(self, batch: Batch) -> None:
        before = self.positions.get(batch.partition)
        now = batch.positions.get(batch.partition)
        if before is not None and now is not None:
            assert self._source.is_past(now, before), (
                f"partition {batch.partition!r} went back from {before} to {now}; positions only go on"
            )
        if batch.positions:
            self.positions.update(batch.positions)
            self.places.append(ReadUpTo(len(self.values), dict(self.positions)))

    def _seen(self) -> str:
        trouble = self.unreachable or (None if self.reader is None else self.reader.trouble)
        return f"{len(self.values)} values were given; positions are {self.positions}" + (f"; {trouble}" if trouble else "")


def eventually(attempt: Callable[[], Found]) -> Found | None:
    """Tries again while it cannot be reached; None if that never ends."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        try:
            return attempt()
        except Unreachable:
            time.sleep(PAUSE)
    return None


def travelled(source: Source[Any]) -> Source[Any]:
    """As a lane has it."""
    copy: Source[Any] = pickle.loads(pickled(source))  # noqa: S301  (what was just sent)
    return copy


def values_of(batch: Batch) -> list[ReadValue]:
    """One by one; refuses what no batch may be."""
    numbers = list(batch.numbers)
    assert len(batch.values) == len(numbers), f"{len(batch.values)} values have {len(numbers)} numbers; give each value one"
    assert numbers == sorted(set(numbers)), f"the numbers of a batch must ascend, for they are ids; they are {numbers[:20]}"
    assert all(isinstance(value, bytes) for value in batch.values), "give values as the bytes of their JSON text"
    assert all(0 <= place < len(numbers) for place in batch.reasons), "give `reasons` by the place of a value in its batch"
    return [
        ReadValue(batch.partition, batch.origin, batch.major, number, text, batch.reasons.get(place))
        for place, (number, text) in enumerate(zip(numbers, batch.values, strict=True))
    ]


def checked(batches: Iterable[Batch], at_most: int) -> list[Batch]:
    """Those that a piece is read in."""
    found = list(batches)
    most = max((len(batch.values) for batch in found), default=0)
    assert most <= at_most, f"a piece was read in a batch of {most} values; give at most as many as `at_most` says, {at_most}"
    return found


def by_partition(values: Sequence[ReadValue]) -> dict[str, list[ReadValue]]:
    found: dict[str, list[ReadValue]] = {}
    for value in values:
        found.setdefault(value.partition, []).append(value)
    return found
