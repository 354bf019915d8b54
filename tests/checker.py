"""Follows the commits of a run while they are made, as any reader may, and checks every epoch as it appears."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from millstream.core.graph import Graph
from millstream.core.ledger import Commit, Ledger, decode_ledger, encode_ledger
from millstream.core.parts import Part
from millstream.journal.commits import Commits
from millstream.journal.disk import Disk
from millstream.journal.follower import Follower
from millstream.journal.segments import SegmentReader
from tests.observed import Entry, Epoch, Given, Logged
from tests.watch import Watch

EVERY = 0.2  # seconds between two looks
READ_EVERY = 15  # looks between two readings of everything


class Checker:
    """Goes through a journal from its first commit on; every look takes in what is new. It must be kept whole meanwhile.

    `diary` finds, among the records of an epoch, what its computations tell of their timers.
    """

    def __init__(self, disk: Disk, graph: Graph, *, diary: Callable[[Iterable[Logged]], Sequence[Entry]] = lambda made: ()) -> None:
        self._graph, self._diary = graph, diary
        self._commits, self._reader = Commits(disk), SegmentReader(disk, sleep=time.sleep)
        self._ledger = Ledger()
        self._follower = Follower(self._commits, self._ledger)
        self._watch = Watch(graph, lanes_come_and_go=True)
        self._readers: dict[tuple[str, str], list[str]] = {}  # by stream and, where it has parts of its own, reader
        for read in graph.inputs:
            self._readers.setdefault((read.stream.name, read.reader if read.rekeyed else ""), []).append(read.computation)
        self._waiting: dict[tuple[str, int], list[Given]] = {}  # by segment and offset
        self._arrived: Counter[str] = Counter()
        self.epochs = 0

    def look(self) -> None:
        news = self._follower.poll()
        assert news.ledger is None, "commits were let go before they were checked"
        for commit in news.commits:
            self._see(commit)

    def read_again(self) -> None:
        """All streams from their beginning: what the epochs brought one by one is there, whatever was merged since."""
        found: dict[str, list[Logged]] = {}
        for commit in self._commits.span(1, self._ledger.number):
            for stream, records in self._records(commit).items():
                found.setdefault(stream, []).extend(records)
        for stream, records in found.items():
            self._watch.read(stream, records)

    def end(self) -> None:
        """The run has drained."""
        self.look()
        self.read_again()
        self._watch.end()

    def _see(self, commit: Commit) -> None:
        self._ledger.apply(commit)
        records = self._records(commit)
        for stream, some in records.items():
            self._arrived[stream] += len(some)
        for frame in commit.frames:
            for part in frame.parts:
                if self._ledger.awaited(part, commit.number):
                    readers = self._readers[part.stream, part.reader]
                    self._waiting[frame.segment, part.offset] = [
                        Given(name, r) for r in self._part(frame.segment, part) for name in readers
                    ]
        taken = [given for segment, offsets in commit.took.items() for offset in offsets for given in self._waiting.pop((segment, offset))]
        waiting = [given for some in self._waiting.values() for given in some]
        made = [record for stream, some in records.items() if stream not in self._graph.injections for record in some]
        ledger = decode_ledger(encode_ledger(self._ledger))
        self._watch.see(Epoch(ledger, made, taken, waiting, dict(self._arrived)), self._diary(made))
        self.epochs += 1

    def _records(self, commit: Commit) -> dict[str, list[Logged]]:
        """The records of a commit by stream, in the order of their ids: each once, however many read it."""
        found: dict[str, list[Logged]] = {}
        for frame in commit.frames:
            for part in frame.parts:
                if not part.reader:
                    found.setdefault(part.stream, []).extend(self._part(frame.segment, part))
        return {stream: sorted(records) for stream, records in found.items()}

    def _part(self, segment: str, part: Part) -> list[Logged]:
        columns = self._reader.part(segment, part)
        rows = zip(columns.minors, columns.keys, columns.values, columns.timestamps, strict=True)
        return [Logged((part.origin, part.major, minor), part.stream, *row) for minor, *row in rows]


class Watching:
    """A checker in a thread of its own."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="checker")
        self.error: BaseException | None = None
        self.looks = 0

    def _work(self) -> None:
        try:
            while not self._over.wait(EVERY):
                self._checker.look()
                self.looks += 1
                if self.looks % READ_EVERY == 0:
                    self._checker.read_again()
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def watching(checker: Checker) -> Iterator[Watching]:
    """Looks beside whatever is done inside. What it found wrong is raised at the end, or by who asks for `error`."""
    beside = Watching(checker)
    beside.start()
    try:
        yield beside
    finally:
        beside.stop()
    if beside.error is not None:
        raise beside.error
