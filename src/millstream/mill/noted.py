"""Notes that Spark queries leave of their batches: found, and fed to the planner."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from millstream.core.ledger import Ledger
from millstream.core.parts import NO_LANE, Dealt, Frame
from millstream.core.route import Dealer
from millstream.journal.disk import Disk
from millstream.journal.errors import Missing
from millstream.journal.leftovers import is_taken
from millstream.journal.names import NOTED, ByThread, prefix_of
from millstream.journal.notes import Note, Notes
from millstream.journal.segments import SegmentReader, SegmentWriter
from millstream.mill.actions import Fed


class NoteTaker:
    """Feeds notes in the order of their batches. Several threads may ask; whoever finds a note twice does no harm."""

    def __init__(self, disk: Disk, ledger: Ledger, dealer: Dealer, feed: Callable[[Fed], None]) -> None:
        """`ledger` is that of the run, as it goes on."""
        self._disk, self._ledger, self._dealer, self._feed = disk, ledger, dealer, feed
        self._taking = threading.Lock()
        self._fed: dict[str, int] = {}  # the newest batch of each injector that was fed
        self.notes = Notes(disk)

    def take(self, injector: str) -> None:
        """Feed what a query has left and no commit has taken."""
        with self._taking:
            known = self._ledger.sources.get(injector)
            taken = max(-1 if known is None else known.batch, self._fed.get(injector, -1))
            while (note := self.notes.next(injector, taken)) is not None:
                taken = note.batch
                try:
                    frames = self._frames_of(note)
                except Missing:
                    if is_taken(note.name, self._ledger):  # it was committed meanwhile, and what it was dealt from may go
                        return
                    raise
                finished = True if note.finished else None
                self._feed(Fed(injector, frames, note.marks, note.injected, note.dead, batch=note.batch, note=note.name, finished=finished))
                self._fed[injector] = taken

    def _frames_of(self, note: Note) -> list[Frame]:
        fence = self._ledger.fence
        return frames_of(
            note,
            fence=fence,
            dealer=self._dealer,
            reader=SegmentReader(self._disk, sleep=time.sleep),
            writer=SegmentWriter(self._disk, prefix_of(ByThread(NOTED, fence)), lambda: uuid.uuid4().hex),
        )


def frames_of(note: Note, *, fence: int, dealer: Dealer, reader: SegmentReader, writer: SegmentWriter) -> list[Frame]:
    """The frames of a note as the readers of this run need them.

    No commit has named these records, so whoever reads the stream now is to get them: those of another fence were dealt by
    other code, and are dealt again, from their plain parts and under the same ids. A reader that was not there then would
    find no part of its own, or one for no lane, and wait for it for ever.
    """
    if note.fence == fence:
        return note.frames
    dealt: list[Dealt] = []
    for frame in note.frames:
        for part in frame.parts:
            if not part.reader:
                dealt += dealer.deal(part.stream, part.origin, part.major, reader.part(frame.segment, part), lane=NO_LANE)
    frames = [writer.append(dealt, lane=NO_LANE)] if dealt else []
    writer.close()
    return frames
