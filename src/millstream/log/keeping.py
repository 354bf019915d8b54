"""How long the log keeps a stream, and whether whole."""

from __future__ import annotations

import msgspec

from millstream.log.snapshot import LiveFile
from millstream.timestamp import SECOND, Duration, Timestamp

PARTS = 8  # of a span of time: by so much of it, at most, a file may hold records that were written before its newest


class Keeping(msgspec.Struct, frozen=True):
    """Of one stream."""

    retention: Duration | None  # None: for good
    compact_after: Duration | None = None  # None: never
    is_table: bool = False  # its values are changes of rows

    def is_over(self, file: LiveFile, now: Timestamp) -> bool:
        """Whether all in it was written longer ago than it is kept."""
        return self.retention is not None and file.modified < now - self.retention

    def is_old(self, file: LiveFile, now: Timestamp) -> bool:
        """Whether nothing in it is too young to be compacted, if the stream is."""
        return self.compact_after is not None and file.modified < now - self.compact_after

    def age_group(self, file: LiveFile, now: Timestamp) -> AgeGroup | None:
        """Only files of one group are merged: a file is as young as its newest record, and would never grow old if younger ones came
        to it. None for what will not grow older."""
        spans = [None if self.is_over(file, now) else self.retention, None if self.is_old(file, now) else self.compact_after]
        shortest = min((int(span) for span in spans if span is not None), default=None)
        if shortest is None:
            return None
        span = max(shortest // PARTS, int(SECOND))
        return AgeGroup(span, int(file.modified) // span)


class Needs(msgspec.Struct, frozen=True):
    """Who may still read the log epoch by epoch: by stream, the first epoch that somebody lacks, as it was known at a commit."""

    known: int
    needed_from: dict[str, int] = {}

    def settled(self, stream: str) -> int:
        """Up to here nobody needs a stream. Of what came after that commit, nobody can tell."""
        return min(self.known, self.needed_from.get(stream, self.known + 1) - 1)


class AgeGroup(msgspec.Struct, frozen=True):
    """Files that were written in one part of time: the so-manieth of this many microseconds each."""

    span: int
    number: int

    def is_over(self, now: Timestamp) -> bool:
        """Whether no file comes to it any more."""
        return int(now) // self.span > self.number
