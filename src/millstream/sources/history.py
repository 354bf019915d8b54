"""The history of a stream for a computation that is new to it: read from the log, and fed as what an injector brings is.

It is dealt under the keys of that reader alone, in parts of its own; how far it is read stands in the commit that names them. What
is new of the stream waits until all of it is taken, so nobody sees the present before the past.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import accumulate

from millstream.core.graph import InputPlan
from millstream.core.ledger import Commit
from millstream.core.parts import NO_LANE, Slice
from millstream.core.route import Dealer, Router
from millstream.journal.disk import Disk
from millstream.log.reading_history import history
from millstream.log.snapshot import LiveFile, LogSnapshot, newest_version
from millstream.mill.messages import Fed
from millstream.sources.thread import Door, FrameWriter
from millstream.timestamp import START_OF_TIME, Timestamp, to_timestamp

RECORDS_PER_FRAME = 10_000
PARTS_AHEAD = 8  # that may be fed and not taken: the backlog may be full of what waits for the history
LOOK_AGAIN = 0.2  # seconds

ALL = ""  # the one partition of a history


class HistoryReader:
    """Epochs (after, upto] of the stream that an input reads, as the log has them."""

    def __init__(self, read: InputPlan, dealer: Dealer, disk: Disk, *, after: int, upto: int) -> None:
        """The root of `disk` is the log's table."""
        self._read, self._dealer, self._router, self._disk = read, dealer, Router(read), disk
        self._after, self._upto = after, upto

    def slices(self) -> Iterator[Slice]:
        """Whole epochs, so many records at a time or one epoch if that has more, each with what is complete after it."""
        stream = self._read.stream.name
        complete = _Complete(LogSnapshot(self._disk).of_stream(stream) if newest_version(self._disk) >= 0 else [])
        gathered = Slice([], {})
        for epoch, pieces in history(self._disk, stream, self._after, self._upto):
            for piece in pieces:
                gathered.dealt += self._dealer.deal_to(self._router, self._read.history, piece.origin, piece.major, piece.columns)
                gathered.injected += len(piece.columns)
            if gathered.injected >= RECORDS_PER_FRAME:
                gathered.positions, gathered.marks = {ALL: epoch}, {ALL: complete.after(epoch)}
                yield gathered
                gathered = Slice([], {})
        if gathered.dealt:
            gathered.positions = {ALL: self._upto}
            yield gathered


class _Complete:
    """Up to when a history is complete: no file that is left has an older record. Later merging changes no record."""

    def __init__(self, files: list[LiveFile]) -> None:
        by_last = sorted(files, key=lambda file: file.last)
        self._last = [file.last for file in by_last]
        self._oldest = list(accumulate((_oldest(file) for file in reversed(by_last)), min))[::-1]

    def after(self, epoch: int) -> Timestamp:
        """When all up to this epoch is read."""
        place = bisect_right(self._last, epoch)
        return self._oldest[place] if place < len(self._oldest) else START_OF_TIME


def _oldest(file: LiveFile) -> Timestamp:
    try:
        return to_timestamp(datetime.fromisoformat(file.oldest))
    except ValueError:  # beyond what dates can say, or written by another tool
        return START_OF_TIME


class HistoryThread(threading.Thread):
    """Feeds a history to the planner. `error` is why it stopped, for the run to raise."""

    def __init__(self, read: InputPlan, reader: HistoryReader, writer: FrameWriter, door: Door, *, is_logged: Callable[[], bool]) -> None:
        """`is_logged` says whether the log has all of it: after a crash it may be behind."""
        super().__init__(name=f"millstream reads {read.history}", daemon=True)
        self._read, self._reader, self._writer, self._door, self._is_logged = read, reader, writer, door, is_logged
        self._news = threading.Condition()
        self._stopped, self._untaken = False, 0
        self._segments: set[str] = set()
        self._records = 0
        self.error: BaseException | None = None

    # Called by other threads.

    @property
    def trouble(self) -> str | None:
        """What the status should say of it."""
        if not self.is_alive():
            return None
        computation, stream = self._read.computation, self._read.stream.name
        return f"computation {computation!r} reads the history of {stream!r}, {self._records:,} records so far; what is new of it waits"

    def on_commit(self, commit: Commit) -> None:
        with self._news:
            self._untaken -= sum(len(offsets) for segment, offsets in commit.took.items() if segment in self._segments)
            self._news.notify()

    def stop(self) -> None:
        """Nothing more; the next run goes on where the commits say. Does not wait."""
        with self._news:
            self._stopped = True
            self._news.notify()

    # Its own.

    def run(self) -> None:
        try:
            self._feed()
        except BaseException as error:  # the run watches for it: a thread has nobody to raise to
            self.error = error
        finally:
            self._writer.close()

    def _feed(self) -> None:
        name = self._read.history
        self._door.unread(name, [])  # what it promises stands in its marks
        if not self._wait(self._is_logged):
            return
        for some in self._reader.slices():
            if not self._wait(lambda: self._untaken <= PARTS_AHEAD):
                return
            frame = self._writer.append(some.dealt, lane=NO_LANE)
            with self._news:
                self._segments.add(frame.segment)
                self._untaken += len(frame.parts)
            fed = Fed(name, [frame], {}, open_segments=[frame.segment])
            fed.add(some)
            self._records += some.injected
            self._door.feed(fed)
        self._door.feed(Fed(name, [], {}, finished=True))

    def _wait(self, until: Callable[[], bool]) -> bool:
        """False if the run stops first."""
        with self._news:
            while not self._stopped and not until():
                self._news.wait(LOOK_AGAIN)
            return not self._stopped
