"""What the planner asks for, and what it is told: it has no thread, socket, file or clock itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from millstream.core.ledger import Commit
from millstream.mill.messages import Fed as Fed
from millstream.mill.messages import ToLane
from millstream.timestamp import Duration, Timestamp


class Moment(NamedTuple):
    """The time of an event: the wall clock, and seconds of a clock that is never set back."""

    clock: Timestamp
    seconds: float


class Settings(msgspec.Struct, frozen=True):
    """What a planner may be told."""

    max_records: int = 250_000  # of an epoch
    max_bytes: int = 128 << 20
    linger: float = 0.0  # seconds between the beginnings of two epochs, at least
    checkpoint_every: float = 300.0
    first_checkpoint: float = math.inf  # seconds after the start, if that is earlier
    checkpoint_rows: int = 1_000_000  # changed since the last one
    checkpoint_bytes: int = 256 << 20
    announce: float = 5.0  # seconds before a checkpoint in which dirty pages are written back in idle moments
    lane_timeout: float = 600.0
    backlog_records: int = 1_000_000  # sources are not read beyond
    backlog_bytes: int = 512 << 20
    backlog_parts: int = 20_000
    read_bytes: int = 4 << 20  # that a lane reads of sources in an epoch, about
    empty_every: float = 0.010  # between two epochs that only move low watermarks; none in the driver of tests
    fold_every: int = 1_000  # commits, merged into one file with a snapshot after it
    positions_every: float = 1.0
    free_every: float = 1.0
    orphaned_after: float = 3_600.0  # seconds without a write, until what no commit names is declared free


# Actions.


@dataclass(frozen=True)
class Send:
    connection: int
    message: ToLane


@dataclass(frozen=True)
class Close:
    """Its lane fails its task, and Spark begins another attempt."""

    connection: int


@dataclass(frozen=True)
class Write:
    """Make this commit durable; then `on_committed` or `on_taken`."""

    commit: Commit


@dataclass(frozen=True)
class Remove:
    """A commit has declared these free."""

    segments: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Fold:
    """Merge the commits up to this one, with a snapshot of the ledger as it is now."""

    upto: int
    needed_from: int  # merged commits before this are not needed any more


@dataclass(frozen=True)
class Look:
    """Are there newer commits? Then a newer run owns the folder; otherwise this is what is wrong (rule 12)."""

    otherwise: str


@dataclass(frozen=True)
class End:
    """The run cannot go on."""

    kind: str
    message: str


@dataclass(frozen=True)
class Warn:
    message: str


@dataclass(frozen=True)
class Inform:
    message: str


Action = Send | Close | Write | Remove | Fold | Look | End | Warn | Inform

SECOND: Duration = Duration(1_000_000)
