"""What an output still lacks, as far as it is known where that lies: in the log or in the journal. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.core.parts import Part

Place = tuple[str, Part]  # the segment, and where in it


@dataclass(frozen=True)
class Epoch:
    """The plain parts that a commit has for an output."""

    number: int
    places: Sequence[Place]

    @property
    def records(self) -> int:
        return sum(part.records for _, part in self.places)


@dataclass(frozen=True)
class InLog:
    """Epochs (after, upto] are to be read from the log."""

    after: int
    upto: int


@dataclass(frozen=True)
class Tail:
    """What there is for an output after some epoch: up to `history` in the log, then these epochs of the journal, up to `upto`.

    Epochs without a record may be left out.
    """

    history: int
    upto: int
    epochs: Sequence[Epoch] = ()


class Lacking:
    """In the order of epochs. A stream that was not kept for a while lies in the journal, then in the log, then in the journal."""

    def __init__(self, known: int) -> None:
        self.known = known  # up to here it is known where everything lies
        self.places = self.records = 0  # in the journal
        self._pieces: deque[Epoch | InLog] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def in_log(self) -> InLog | None:
        """What comes next, if that is in the log."""
        return self._pieces[0] if self._pieces and isinstance(self._pieces[0], InLog) else None

    def add(self, epoch: Epoch) -> None:
        """The next epoch that there is."""
        if epoch.places:
            self._pieces.append(epoch)
            self.places += len(epoch.places)
            self.records += epoch.records
        self.known = epoch.number

    def add_tail(self, tail: Tail) -> None:
        """An answer to what there is; it may begin before what is known by now."""
        if tail.history > self.known:
            self._pieces.append(InLog(self.known, tail.history))
            self.known = tail.history
        for epoch in tail.epochs:
            if epoch.number > self.known:
                self.add(epoch)
        self.known = max(self.known, tail.upto)

    def forget(self, upto: int) -> None:
        """What the output has by now."""
        while self._pieces:
            first = self._pieces[0]
            if isinstance(first, InLog):
                if first.upto > upto:
                    self._pieces[0] = InLog(max(first.after, upto), first.upto)
                    return
            elif first.number > upto:
                return
            else:
                self.places -= len(first.places)
                self.records -= first.records
            self._pieces.popleft()

    def ask_anew(self, after: int) -> None:
        """Nothing is known but up to here."""
        self._pieces.clear()
        self.places = self.records = 0
        self.known = after

    def until(self, upto: int) -> list[Epoch | InLog]:
        """Everything up to this epoch, wherever it lies."""
        found: list[Epoch | InLog] = []
        for piece in self._pieces:
            if isinstance(piece, InLog) and piece.after < upto:
                found.append(InLog(piece.after, min(piece.upto, upto)))
            elif isinstance(piece, Epoch) and piece.number <= upto:
                found.append(piece)
        return found

    def next_epochs(self, at_most: int) -> tuple[list[Epoch], int]:
        """Whole epochs of the journal with no more records than this, but at least one; and up to which epoch that is all."""
        found: list[Epoch] = []
        records = 0
        for piece in self._pieces:
            if isinstance(piece, InLog):
                return found, piece.after
            records += piece.records
            if found and records > at_most:
                return found, piece.number - 1
            found.append(piece)
        return found, self.known
