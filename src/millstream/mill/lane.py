"""A lane: all computations of its buckets, epoch after epoch, on rows that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from millstream.core.arrivals import Packet, gather
from millstream.core.graph import Graph
from millstream.core.lanes import Lanes
from millstream.core.ledger import Checkpoint, Identity
from millstream.core.mill import Mill
from millstream.core.parts import Dealt, Frame, Slice
from millstream.core.route import Dealer
from millstream.errors import MillstreamError, Unreachable
from millstream.journal.segments import SegmentReader, SegmentWriter
from millstream.mill.held import Held, decode_changes
from millstream.mill.messages import (
    NO_TRY,
    Failed,
    Fed,
    GoAway,
    Joining,
    Peek,
    Peeked,
    Range,
    Redo,
    Report,
    Returned,
    Spent,
    TakeCheckpoint,
    ToLane,
    Welcome,
    Work,
    WriteBack,
)
from millstream.mill.peeking import KeyLooker
from millstream.timestamp import Timestamp

PAGES_AT_ONCE = 16  # written back in an idle moment: about a millisecond

_encode = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(Checkpoint).decode


ReadRange = Callable[[Range, Timestamp], Iterable[Slice]]  # and the clock of the epoch


def no_ranges(of: Range, now: Timestamp) -> Iterable[Slice]:
    """Of a lane that has no source to read."""
    raise AssertionError(f"nobody here reads ranges of injector {of.injector!r}")


class Lane:
    """Hears what the planner says, and answers. No thread, no socket: whoever has them calls it.

    When an epoch fails, or the planner is lost, what it holds is thrown away and comes back by redo; there is no undo.
    """

    def __init__(
        self,
        graph: Graph,
        number: int,
        lanes: Lanes,
        held: Held,
        writer: SegmentWriter,
        reader: SegmentReader,
        read: ReadRange = no_ranges,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`seconds` is a clock for what is told of how long things take; nothing depends on it."""
        self.number, self.held = number, held
        self._writer, self._reader, self._read, self._seconds = writer, reader, read, seconds
        self.mill = Mill(graph, lanes.bucket)
        self._dealer = Dealer(graph, lanes)
        self._injectors = frozenset(graph.injections)
        self._looker = KeyLooker(graph)
        self.state = Checkpoint()
        self.own: Identity | None = None  # of what it holds: kept over a checkpoint only if Spark gives back the very same
        self.finished = False  # it returns now
        self.writing_back = False
        self._running = False
        self._reading = ""  # the injector of the range at hand

    def join(self, attempt: int, process: str) -> Joining:
        """With the state that the store has. What is held from before is kept only if it is of that very checkpoint (rule 11)."""
        stored = self.held.identity()
        self.state = Checkpoint() if stored is None else _decode_state(stored)
        if self.own != self.state.at:
            self.held.forget()
        self.own, self.finished, self.writing_back = None, False, False
        return Joining(self.number, attempt, self.state, process)

    def hear(self, message: ToLane) -> Report | Failed | Returned | Peeked | None:
        """What it answers, if anything."""
        match message:
            case Welcome():
                return self._try_to_redo(message.redo)
            case Work():
                self._running = True
                try:
                    return self._run(message)
                finally:
                    self._running, self._reading = False, ""
            case WriteBack():
                self.writing_back = True
            case Peek(asked, committed, redo):
                return self._try_to_redo(redo) or Peeked(asked.number, self._looker.look(self.held, asked, committed))
            case TakeCheckpoint():
                return self._try_to_redo(message.redo) or self._checkpoint(message.at)
            case GoAway():
                self.finished = True
        return None

    @property
    def at_hand(self) -> tuple[str, str] | None:
        """The computation and key that run now; None between epochs."""
        if not self._running:
            return None
        return ("", f"reading injector {self._reading!r}") if self._reading else self.mill.at_hand

    def rest(self) -> bool:
        """An idle moment: some dirty pages are written back, once a checkpoint was announced. Whether there are more."""
        return self.writing_back and self.held.write_back(PAGES_AT_ONCE) == PAGES_AT_ONCE

    def _redo(self, redo: list[Redo]) -> None:
        """Changed rows of committed epochs, physically: no user code runs."""
        if redo:
            frames = ((each.epoch, Frame(each.segment, self.number, [], each.rows)) for each in redo)
            self.held.redo(decode_changes(rows) for _, rows in self._reader.rows_of(frames))

    def _try_to_redo(self, redo: list[Redo]) -> Failed | None:
        """Outside an epoch: what cannot be read ends the run, for another attempt would not read it either."""
        try:
            self._redo(redo)
        except MillstreamError as error:
            self.held.forget()
            return Failed(redo[-1].epoch, NO_TRY, type(error).__name__, str(error))
        return None

    def _run(self, message: Work) -> Report | Failed:
        epoch, began = message.header.epoch, self._seconds()
        try:
            self._redo(message.redo)
            frames: list[Frame] = []
            read = [self._take_in(each, message.header.now) for each in message.ranges]
            self._reading = ""
            packets = [
                Packet(given.inputs, given.part.stream, given.part.origin, given.part.major, self._reader.part(given.segment, given.part))
                for given in message.given
            ]
            arrivals, has_read = gather(packets, self._injectors), self._seconds()
            outcome = self.mill.run(message.header, arrivals, message.due, self.held)
            has_run = self._seconds()
            dealt: list[Dealt] = []
            for stream, columns in outcome.productions.items():
                if columns.keys:
                    dealt += self._dealer.deal(stream, stream, epoch, columns, lane=self.number)
            rows = outcome.changes.encode() if outcome.changes.rows else None
            if dealt or rows is not None:
                frames.append(self._writer.write(dealt, rows=rows, row_count=outcome.changes.rows, lane=self.number))
            self._writer.sync()
        except MemoryError:
            self.held.forget()
            return Failed(
                epoch, message.try_number, MemoryError.__name__, f"epoch {epoch} does not fit into the memory of lane {self.number}"
            )
        except MillstreamError as error:
            self.held.forget()
            return Failed(epoch, message.try_number, type(error).__name__, str(error))
        spent = Spent(has_read - began, has_run - has_read, self._seconds() - has_run)
        return Report(epoch, message.try_number, frames, outcome.summaries, read, spent)

    def _take_in(self, of: Range, now: Timestamp) -> Fed:
        """Read a range, a slice at a time: what it holds waits in the journal for the next epoch, however much it is."""
        fed, self._reading = Fed(of.injector, [], {}, pieces=1), of.injector
        try:
            for some in self._read(of, now):
                if some.dealt:
                    fed.frames.append(self._writer.write(some.dealt, lane=self.number))
                fed.add(some)
        except Unreachable as error:  # no commit names what was written of it; where, is for the planner to know
            return Fed(of.injector, fed.frames, {}, unreachable=str(error))
        return fed

    def _checkpoint(self, at: Identity) -> Returned:
        pages = self.held.checkpoint(_encode(Checkpoint(at, self.state.at)))
        self._writer.roll()
        self.own, self.finished = at, True
        return Returned(at, pages)
