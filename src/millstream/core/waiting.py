"""Records that wait for their time: those of a computation in the order of event time that its low watermark has not passed.

Each is a row of its own beside the rows of the keys, on pages of its own: the value as it came, due when the low watermark is
above its timestamp, and holding that timestamp meanwhile. So what is true of rows is true of them, with nothing more to do for
it: they are in the frame of their epoch, come back by redo, are written at checkpoints, let go for memory, and found through
the minima. They lie in the order of their times (`timeline.py`), so a record costs the same however many of its key wait with
it (`python -m bench waiting`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.core.epoch import BucketReport
from millstream.core.row import END, Row, least
from millstream.core.timeline import Timeline
from millstream.timestamp import MICROSECOND, Timestamp

MOST_AT_ONCE = 50_000  # records that an epoch takes from those of a bucket that wait; the rest is due in the next one


class Waited(NamedTuple):
    """A record that waits, or has waited. It is known by its id and by the input that it came in by."""

    timestamp: Timestamp
    origin: str
    major: int
    minor: int
    place: str  # the input, by `InputPlan.place`: code changes between starts
    value: bytes
    own: str | None = None  # the key that it was produced under, if its reader sees it and has it under another


class WaitingRecords:
    """The waiting records of one computation in a bucket."""

    def __init__(self, pages: Timeline) -> None:
        self._pages = pages

    def take(self, low_watermark: Timestamp) -> tuple[dict[str, list[Waited]], Timestamp]:
        """Those that wait no longer, by key; and the low watermark up to which they are taken, for of too many the rest is left."""
        if self._pages.due_at_most(low_watermark) > MOST_AT_ONCE:
            low_watermark = self._reach(low_watermark)
        taken: dict[str, list[Waited]] = {}
        for address, row in self._pages.take(low_watermark):
            assert row.state is not None
            _, place, major, minor, lengths, rest = address.split("/", 5)
            length, _, of_own = lengths.partition("+")
            origin, own, key = rest[: int(length)], None, rest[int(length) :]
            if of_own:
                own, key = key[: int(of_own)], key[int(of_own) :]
            taken.setdefault(key, []).append(Waited(Timestamp(row.hold), origin, int(major), int(minor), place, row.state, own))
        return taken, low_watermark

    def _reach(self, low_watermark: Timestamp) -> Timestamp:
        """How far an epoch goes that takes no more than it may; of one time it takes all, or they would not be in order."""
        due = self._pages.earliest(low_watermark, MOST_AT_ONCE + 1)
        if len(due) <= MOST_AT_ONCE:
            return low_watermark
        first, first_left = due[0][0], due[-1][0]
        return Timestamp(first_left - 1 if first < first_left else first_left)

    def add(self, key: str, records: Iterable[Waited]) -> None:
        for record in records:
            timestamp, origin, major, minor, place, value, own = record
            time = int(timestamp)
            names = f"{len(origin)}/{origin}" if own is None else f"{len(origin)}+{len(own)}/{origin}{own}"
            address = f"{time}/{place}/{major}/{minor}/{names}{key}"
            # Others of its very time may still come until the low watermark is above it.
            self._pages.put(address, self._pages.get(address), Row(value, None, 0, time + int(MICROSECOND), END, time))

    def report(self, of_keys: BucketReport) -> BucketReport:
        """What the bucket says of the computation, with those that wait."""
        mine = self._pages.report()
        return BucketReport(least([of_keys.minima, mine.minima]), of_keys.rows, of_keys.timers, mine.rows)
