"""A log for tests of compaction: records with keys and values of one's own, and what is left of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import NamedTuple

from millstream.core.parts import Columns
from millstream.journal.disk import Disk
from millstream.log.compaction import Compaction
from millstream.log.history import History, read_file
from millstream.log.keeping import Keeping, Needs
from millstream.log.rows import Rows
from millstream.log.snapshot import LogSnapshot
from millstream.timestamp import SECOND, Timestamp
from tests.log.made import Clock

STREAM = "s"
AFTER = 100 * SECOND


class Kept(NamedTuple):
    """A record, in the order of the log."""

    epoch: int
    timestamp: int
    minor: int
    key: str
    value: str

    @property
    def is_deletion(self) -> bool:
        return self.value == "null"


class Log:
    """One stream, an entry an epoch unless it is said otherwise."""

    def __init__(self, disk: Disk, clock: Clock | None = None, *, run: str = "a") -> None:
        self.clock = clock or Clock()
        numbers = itertools.count()
        self.history = History(disk, now=self.clock, unique=lambda: f"{run}{next(numbers):08d}")
        self.history.create()
        self.at = self.history.position()

    def write(self, *pairs: tuple[str, str], files: int = 1, timestamps: Iterable[int] | None = None) -> list[Kept]:
        """One epoch of (key, value), in so many files; timestamps count up unless they are given."""
        epoch = self.at.upto + 1
        times = list(timestamps or range(len(pairs)))
        made = [Kept(epoch, times[n], n, key, value) for n, (key, value) in enumerate(pairs)]
        staged = []
        for part in (made[n::files] for n in range(files)):
            rows = Rows()
            columns = [[r.key for r in part], [r.value.encode() for r in part], [Timestamp(r.timestamp) for r in part]]
            rows.add(epoch, STREAM, epoch, Columns(*columns, [r.minor for r in part]))  # type: ignore[arg-type]
            if len(rows):
                staged.append(self.history.stage(STREAM, rows))
        at = self.history.commit(staged, after=self.at, to=epoch)
        assert at is not None
        self.at = at
        return made

    def left(self) -> list[Kept]:
        return left(self.history.disk)


def left(disk: Disk) -> list[Kept]:
    """What any reader finds, each record once."""
    found = []
    for file in LogSnapshot(disk).of_stream(STREAM):
        rows = read_file(disk, file.path).to_pydict()
        times = [int(moment.timestamp() * 1_000_000) for moment in rows["timestamp"]]
        found += [Kept(*each) for each in zip(rows["epoch"], times, rows["minor"], rows["key"], rows["value"], strict=True)]
        assert (file.first, file.last, file.rows) == (min(rows["epoch"]), max(rows["epoch"]), len(times))
    assert len(set(found)) == len(found)
    return sorted(found)


def newest(records: Iterable[Kept]) -> list[Kept]:
    """The model: of each key the newest, unless it is a deletion."""
    by_key = {record.key: record for record in sorted(records)}
    return sorted(record for record in by_key.values() if not record.is_deletion)


def compact(log: Log, compaction: Compaction | None = None, needs: Needs | None = None) -> None:
    """All there is to do now."""
    compaction = compaction or Compaction(log.history, {STREAM: Keeping(None, AFTER)})
    snapshot = LogSnapshot(log.history.disk)
    while True:
        compaction.run(snapshot, log.clock.now, needs or Needs(snapshot.upto))
        if not compaction.is_busy:
            break
    log.at = log.history.position()


__all__ = ["AFTER", "STREAM", "Kept", "Log", "compact", "left", "newest"]


def changes(log: Log, *, epochs: int = 30, keys: int = 5, rng: random.Random | None = None) -> list[Kept]:
    """Epochs of some records each; of a key now and then a deletion."""
    rng = rng or random.Random(1)
    written = []
    for _ in range(epochs):
        pairs = [(f"k{rng.randrange(keys)}", "null" if rng.random() < 0.2 else str(rng.randrange(99))) for _ in range(rng.randint(1, 6))]
        written += log.write(*pairs, files=rng.randint(1, 3), timestamps=[rng.randrange(9) for _ in pairs])
    return written
