"""What the invariants are about: epochs as they were committed, what can be found between them, and the diaries of timers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from millstream.core.ledger import Ledger, SourceProgress

Id = tuple[str, int, int]  # origin, major, minor; of a production: stream, epoch, and bucket << 40 with the place within the bucket


class Logged(NamedTuple):
    """A record as it lies in the journal."""

    id: Id
    stream: str
    key: str
    value: bytes
    timestamp: int


class Given(NamedTuple):
    """A record on its way to one of its readers, under the key that this one sees."""

    computation: str
    record: Logged


@dataclass(frozen=True)
class Epoch:
    """One epoch after it was committed."""

    ledger: Ledger
    made: Sequence[Logged] = ()  # what it produced
    taken: Sequence[Given] = ()  # what it delivered
    waiting: Sequence[Given] = ()  # what was committed and no epoch has delivered
    arrived: Mapping[str, int] = field(default_factory=dict)  # the records of each stream that are committed


@dataclass(frozen=True)
class Visible:
    """All that anybody can find between two epochs."""

    ledger: Ledger  # counts, low watermarks, what the buckets last said
    sources: Mapping[str, SourceProgress]  # with what they have beyond the last commit
    rows: Mapping[tuple[str, str], Any]  # state and timers, by computation and key
    records: Mapping[str, Sequence[Any]]  # of each stream
    waiting: Sequence[Any]  # in the order in which it will be delivered


@dataclass(frozen=True)
class Row:
    """What is kept for a key: the timers that its state tells of, and those that are there, as times by tag."""

    computation: str
    key: str
    in_state: Mapping[str, int]
    timers: Mapping[str, int]


class Entry(NamedTuple):
    """A line of a computation's diary: what it did with a timer, and the clocks that it saw; or that a record came in order."""

    computation: str
    key: str
    does: Literal["set", "cancel", "fire", "record"]
    tag: str
    at: int
    wall: bool
    low_watermark: int
    now: int


Book = dict[tuple[str, str], dict[str, Entry]]  # the pending timers by computation and key, then by tag
Reached = dict[tuple[str, str], int]  # by computation and key, the time of the last record or low-watermark timer


def reach(reached: Reached, entry: Entry) -> None:
    """Take a line of a diary into what keys have come to in event time."""
    if entry.does == "record" or (entry.does == "fire" and not entry.wall):
        place = (entry.computation, entry.key)
        reached[place] = max(entry.at, reached.get(place, entry.at))


def write(book: Book, entry: Entry) -> None:
    """Take a line of a diary into the book of pending timers."""
    if entry.does == "record":
        return
    of = book.setdefault((entry.computation, entry.key), {})
    if entry.does == "set":
        of[entry.tag] = entry
    else:
        of.pop(entry.tag, None)
    if not of:
        del book[entry.computation, entry.key]
