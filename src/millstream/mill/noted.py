"""Notes that an earlier run left: its code dealt their records, and other readers may be there now."""

from __future__ import annotations

from millstream.core.parts import NO_LANE, Dealt, Frame
from millstream.core.route import Dealer
from millstream.journal.notes import Note
from millstream.journal.segments import SegmentReader, SegmentWriter


def frames_of(note: Note, *, fence: int, dealer: Dealer, reader: SegmentReader, writer: SegmentWriter) -> list[Frame]:
    """The frames of a note as the readers of this run need them.

    No commit has named these records, so whoever reads the stream now is to get them: those of another fence are dealt again,
    from their plain parts and under the same ids. A reader that was not there then would find no part of its own, or one for
    no lane, and wait for it for ever.
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
