"""The machine of one delivery in the driver: what it does when something is committed, read, delivered or fails.

    state      event            becomes                 because
    WAITING    on_commit        READING                 there is a record; else the position moves on without a call
    WAITING    on_commit        ASKING                  a commit is missing in between, or more wait than are remembered
    ASKING     on_tail          WAITING or READING
    READING    on_read          READING                 a step that was open may lie in the log and in the journal, by turns
    READING    on_read          CALLING                 all of the step is read
    READING    on_read          WAITING                 the log had nothing of this stream
    READING    on_missing       ASKING                  the journal let go of what it was to read: the log has it by now
    CALLING    on_done          WAITING or READING      the target has it
    any        on_failed        ENDED                   the run stops; a start repeats the step
    any        on_overtaken     ENDED                   a newer run delivers

A step covers whole epochs and at most `MAX_RECORDS`, or one epoch whatever its size. Pure: no file, no thread, no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from millstream.core.parts import Columns
from millstream.target import Step
from millstream.targets.lacking import Epoch, InLog, Lacking, Place, Tail

MAX_RECORDS = 1_000_000  # of a step
MAX_PLACES = 50_000  # of parts that are remembered while a target is slow; what comes after is asked for again
QUIET_EPOCHS = 256  # without a record, until that is recorded and said: what waits for this delivery is then let go


@dataclass(frozen=True)
class Content:
    """Records that were read; those of one content have the same origin and major in their ids."""

    origin: str
    major: int
    columns: Columns


@dataclass(frozen=True)
class Stretch:
    """What was read of the log: all of the stream in the epochs up to and with `upto`."""

    upto: int
    contents: Sequence[Content] = ()


@dataclass(frozen=True)
class ReadTail:
    """Find out what there is after this epoch; `on_tail` takes it."""

    after: int


@dataclass(frozen=True)
class ReadHistory:
    """Read epochs (after, upto] of the log; `on_read` takes them.

    With `at_most`, whole epochs until there are so many records, at least one that has any; without, all.
    """

    after: int
    upto: int
    at_most: int | None = None


@dataclass(frozen=True)
class ReadParts:
    """Read these parts of the journal; `on_read` takes them."""

    places: Sequence[Place]


@dataclass(frozen=True)
class CallTarget:
    """Hand these over as the records of epochs (a, b]; of a step that was open already, under its number."""

    a: int
    b: int
    open: Step | None
    contents: Sequence[Content]


@dataclass(frozen=True)
class Skip:
    """Record that there was nothing up to here, then say so."""

    upto: int


@dataclass(frozen=True)
class Say:
    """The target has everything up to here: the planner puts it into its next commit."""

    position: int


Action = ReadTail | ReadHistory | ReadParts | CallTarget | Skip | Say


class State(enum.Enum):
    WAITING = "waiting"
    ASKING = "asking"
    READING = "reading"
    CALLING = "calling"
    ENDED = "ended"


class DeliveryMachine:
    """Events in, actions out. `position` and `open` are what the steps of the delivery say, `newest` the newest commit."""

    def __init__(
        self, *, position: int, open: Step | None, newest: int, max_records: int = MAX_RECORDS, max_places: int = MAX_PLACES
    ) -> None:
        self.state = State.WAITING
        self.position = position  # the target has everything up to here, or there was nothing
        self._open = open
        self._said = position
        self._newest = newest
        self._lacking = Lacking(position if open is None else open.after)
        self._max_records, self._max_places = max_records, max_places
        self._reads: list[ReadHistory | ReadParts] = []
        self._contents: list[Content] = []
        self._step = (position, position)
        self.error: BaseException | None = None

    def on_start(self) -> list[Action]:
        """The last word of the run before may have been lost: how far this is, is said once more."""
        return [Say(self.position), *self._next()] if self.position else self._next()

    def on_commit(self, number: int, places: Sequence[Place]) -> list[Action]:
        """A commit is durable, and these are the plain parts of this stream that it names."""
        self._newest = max(self._newest, number)
        if number == self._lacking.known + 1 and self._lacking.places < self._max_places:
            self._lacking.add(Epoch(number, places))
        return self._next()

    def on_tail(self, tail: Tail) -> list[Action]:
        assert self.state is State.ASKING
        self.state = State.WAITING
        self._lacking.add_tail(tail)
        return self._next()

    def on_read(self, contents: Sequence[Content], *, upto: int | None = None) -> list[Action]:
        """What the first of the reads found; of a bounded one of the log, up to which epoch that is."""
        assert self.state is State.READING
        self._reads.pop(0)
        self._contents += contents
        if upto is not None:
            self._step = (self._step[0], upto)
        if self._reads:
            return [self._reads[0]]
        contents, self._contents = self._contents, []
        if self._open is None and not any(len(content.columns) for content in contents):
            self.state = State.WAITING
            self._move(self._step[1])
            return [*self._quiet(0), *self._next()]  # once in a while only: it is behind until it says so
        self.state = State.CALLING
        return [CallTarget(*self._step, self._open, contents)]

    def on_done(self) -> list[Action]:
        """The target has the step, and that is recorded."""
        assert self.state is State.CALLING
        self.state, self._open = State.WAITING, None
        self._move(self._step[1])
        self._said = self.position
        return [Say(self.position), *self._next()]

    def on_missing(self) -> list[Action]:
        """It was slower than the log, and a part is gone from the journal: what there is after its position is asked for anew."""
        self._reads, self._contents = [], []
        self._lacking.ask_anew(self.position if self._open is None else self._open.after)
        return self._ask()

    def on_failed(self, error: BaseException) -> list[Action]:
        self.state, self.error = State.ENDED, error
        return []

    def on_overtaken(self) -> list[Action]:
        """A newer run has made a commit: it repeats what is open."""
        self.state = State.ENDED
        return []

    def on_stop(self) -> list[Action]:
        """No more will come: what is known is recorded."""
        return self._quiet(0)

    def has(self, epoch: int) -> bool:
        """Whether everything up to this epoch is delivered."""
        return self.position >= epoch and self._open is None

    def _move(self, position: int) -> None:
        self.position = position
        self._lacking.forget(position)

    def _next(self) -> list[Action]:
        """What to do now, if nothing is under way."""
        if self.state is not State.WAITING:
            return []
        if self._open is not None:
            return self._repeat(self._open) if self._lacking.known >= self._open.upto else self._ask()
        if (in_log := self._lacking.in_log) is not None:
            return self._read((self.position, in_log.upto), [ReadHistory(self.position, in_log.upto, self._max_records)])
        if self._lacking:
            return self._take()
        self.position = max(self.position, self._lacking.known)
        return self._ask() if self._lacking.known < self._newest else self._quiet(QUIET_EPOCHS)

    def _ask(self) -> list[Action]:
        self.state = State.ASKING
        return [ReadTail(self._lacking.known)]

    def _repeat(self, step: Step) -> list[Action]:
        """Exactly the epochs of the open step, wherever they lie by now."""
        reads: list[ReadHistory | ReadParts] = []
        for in_log, pieces in groupby(self._lacking.until(step.upto), key=lambda piece: isinstance(piece, InLog)):
            if in_log:
                reads += [ReadHistory(piece.after, piece.upto) for piece in pieces if isinstance(piece, InLog)]
            else:
                reads.append(ReadParts([place for piece in pieces if isinstance(piece, Epoch) for place in piece.places]))
        self._lacking.forget(step.upto)
        return self._read((step.after, step.upto), reads or [ReadParts([])])

    def _take(self) -> list[Action]:
        """What has come, up to the bound of a step; an epoch without a record moves the end only."""
        epochs, upto = self._lacking.next_epochs(self._max_records)
        self._lacking.forget(upto)
        return self._read((self.position, upto), [ReadParts([place for epoch in epochs for place in epoch.places])])

    def _read(self, step: tuple[int, int], reads: list[ReadHistory | ReadParts]) -> list[Action]:
        self.state, self._step, self._reads = State.READING, step, reads
        return [reads[0]]

    def _quiet(self, bound: int) -> list[Action]:
        """Say that there was nothing, once that is worth a write."""
        if self.state is not State.WAITING or self._open is not None or self.position - self._said <= bound:
            return []
        self._said = self.position
        return [Skip(self.position)]
