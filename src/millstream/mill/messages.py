"""What planner and lanes say to each other."""

from __future__ import annotations

import msgspec

from millstream.core.epoch import Header, Summary
from millstream.core.ledger import Checkpoint, Identity
from millstream.core.parts import Frame, Part, Slice
from millstream.core.parts import Redo as Redo
from millstream.timestamp import Timestamp


class Given(msgspec.Struct, array_like=True, frozen=True):
    """A part that an epoch brings to a lane, and the inputs that get it."""

    inputs: tuple[int, ...]
    segment: str
    part: Part


class Range(msgspec.Struct, array_like=True, frozen=True):
    """A piece of a source for a lane to read. What is in it is the source's own affair."""

    injector: str
    lane: int  # that reads it best, modulo their number; another one may
    size: int  # bytes, about: what the limits of an epoch are told by
    content: bytes
    partition: str = ""


class Fed(msgspec.Struct):
    """What a source brings: a thread of the driver, a batch of a Spark query by its note, or a range that a lane has read."""

    injector: str
    frames: list[Frame]
    marks: dict[str, Timestamp]  # by partition of the source, up to when it is complete
    injected: int = 0
    dead: int = 0
    batch: int | None = None  # of a Spark query
    note: str | None = None  # to be let go once a commit has taken it
    finished: bool | None = None
    open_segments: list[str] = []  # that more will be written to
    positions: dict[str, int | str] = {}  # how far the source is read, in its own terms
    pieces: int = 0  # 1 if a lane has read it
    unreachable: str = ""  # why a lane could not read it now: nothing of it counts, and it is read later

    def add(self, some: Slice) -> None:
        """What a slice says of the source, beside what it holds."""
        self.injected, self.dead = self.injected + some.injected, self.dead + some.dead
        for partition, upto in some.marks.items():
            self.marks[partition] = max(upto, self.marks.get(partition, upto))
        self.positions.update(some.positions)


# What a lane says.


class Joining(msgspec.Struct, tag=True, frozen=True):
    """A lane is there, with the state that Spark gave it. The greatest attempt of a lane is the one that counts (rule 5)."""

    lane: int
    attempt: int
    state: Checkpoint
    process: str  # host and process id, for people


class Spent(msgspec.Struct, array_like=True, frozen=True):
    """Seconds that a lane took for its part of an epoch."""

    reading: float = 0.0  # parts and sources
    running: float = 0.0  # computations
    writing: float = 0.0  # its frames, synced


class Report(msgspec.Struct, tag=True):
    """A lane has run its part of an epoch, and its frames are synced."""

    epoch: int
    try_number: int  # the one that the plan named: the number of an aborted epoch is used again
    frames: list[Frame]
    summaries: list[Summary]
    read: list[Fed] = []  # for each range that it was given, in that order
    spent: Spent = Spent()


NO_TRY = 0  # tries count from 1


class Failed(msgspec.Struct, tag=True, frozen=True):
    """An epoch cannot be run: user code raised, or the lane itself met something. It fails its task afterwards."""

    epoch: int
    try_number: int  # `NO_TRY` if it was to be redone
    kind: str  # the name of the error's class
    message: str


class Busy(msgspec.Struct, tag=True, frozen=True):
    """Once a second while an epoch runs: the computation and key at hand."""

    computation: str  # empty while it reads a source; the other says which
    key: str


class Returned(msgspec.Struct, tag=True, frozen=True):
    """Everything is written back; the lane returns, and Spark commits its batch."""

    at: Identity
    pages: int


class PeekFor(msgspec.Struct, array_like=True, frozen=True):
    """What is kept for a key of a computation; without a key, for the one in a bucket that holds the low watermark back."""

    number: int  # of the question
    computation: str
    bucket: int
    key: str | None


class KeptKeyTimer(msgspec.Struct, frozen=True):
    tag: str
    at: Timestamp
    wall: bool
    hold: Timestamp | None


class KeptKey(msgspec.Struct):
    """What is kept for a key as of an epoch."""

    computation: str
    key: str
    epoch: int
    state: str = ""  # JSON text; empty for the initial one
    timers: list[KeptKeyTimer] = []
    waits: bool = False  # a record of the key waits for its time, and is what holds the low watermark back
    found: bool = False  # whether anything is kept
    problem: str = ""


class Peeked(msgspec.Struct, tag=True, frozen=True):
    """Somebody has asked what is kept."""

    number: int
    kept: KeptKey


class Noted(msgspec.Struct, tag=True, frozen=True):
    """A batch of an injector's query has left its note. Said by its sink, which waits for an answer: that is the back-pressure."""

    injector: str


# What the planner says. Each says up to where is committed, and what the lane must redo first (rule 7).


class Welcome(msgspec.Struct, tag=True, frozen=True):
    committed: int
    redo: list[Redo]


class Work(msgspec.Struct, tag=True):
    """Run this epoch."""

    try_number: int
    header: Header
    given: list[Given]
    due: dict[str, list[int]]
    committed: int
    redo: list[Redo]
    ranges: list[Range] = []


class WriteBack(msgspec.Struct, tag=True, frozen=True):
    """A checkpoint comes soon: write dirty pages back in idle moments."""


class TakeCheckpoint(msgspec.Struct, tag=True, frozen=True):
    """Write back everything as of this commit and return."""

    at: Identity
    committed: int
    redo: list[Redo]


class Peek(msgspec.Struct, tag=True, frozen=True):
    """Say what is kept, as of this commit."""

    asked: PeekFor
    committed: int
    redo: list[Redo]


class GoAway(msgspec.Struct, tag=True, frozen=True):
    """Return at once, with nothing written."""


FromLane = Joining | Report | Failed | Busy | Returned | Noted | Peeked
ToLane = Welcome | Work | WriteBack | TakeCheckpoint | Peek | GoAway

encode_message = msgspec.msgpack.Encoder().encode
decode_from_lane = msgspec.msgpack.Decoder(FromLane).decode
decode_to_lane = msgspec.msgpack.Decoder(ToLane).decode
