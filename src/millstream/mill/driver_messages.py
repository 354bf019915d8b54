"""What the driver and the planner's process say to each other, over one socket: so whoever hears an answer has heard of all before."""

from __future__ import annotations

import enum

import msgspec

from millstream.core.ledger import Commit
from millstream.core.outline import Outline
from millstream.mill.actions import Settings
from millstream.mill.messages import Fed, KeptKey, PeekFor, Range
from millstream.mill.spending import EpochSpan, Spending
from millstream.timestamp import Timestamp

# What the driver says.


class Begin(msgspec.Struct, tag=True):
    """The first commit of this fence is made; plan from there."""

    journal: str
    checkpoints: str  # of Spark's, with a folder `lane N` for each
    fence: int
    outline: Outline
    settings: Settings
    secret: bytes
    host: str | None  # to listen at for lanes; None for a Unix socket
    port: int
    clock: Timestamp | None = None  # in place of the wall clock: it stands still, and `SetClock` moves it


class Feed(msgspec.Struct, tag=True):
    """A source brings something."""

    fed: Fed


class Offer(msgspec.Struct, tag=True):
    """A source has something for lanes to read."""

    ranges: list[Range]


class Unread(msgspec.Struct, tag=True):
    """Which partitions of a source have something that was not given yet; None if it cannot be reached now."""

    injector: str
    partitions: list[str] | None


class Logged(msgspec.Struct, tag=True, frozen=True):
    """The log has all up to this epoch, synced."""

    upto: int


class Delivered(msgspec.Struct, tag=True, frozen=True):
    delivery: str
    upto: int


class NotesTaken(msgspec.Struct, tag=True, frozen=True):
    """What a sink has left was fed before this; it may be answered when there is room."""

    number: int


class Question(enum.Enum):
    NOTHING = "nothing"  # an answer says that all before it was heard
    IDLE = "idle"  # and nothing is put off
    DRAINED = "drained"
    STOPPED = "stopped"
    TROUBLES = "troubles"
    SEATS = "seats"


class Ask(msgspec.Struct, tag=True, frozen=True):
    number: int
    question: Question


class AskLane(msgspec.Struct, tag=True, frozen=True):
    """Answered when the lane that keeps it is there and in no epoch."""

    question: PeekFor


class StopRun(msgspec.Struct, tag=True, frozen=True):
    """Commit the open epoch, checkpoint every lane."""


class CloseRun(msgspec.Struct, tag=True, frozen=True):
    """The last commit; then lanes are sent away."""


class SetClock(msgspec.Struct, tag=True, frozen=True):
    """It is this late now, for a planner that was given a clock: epochs, timers and idle partitions go by it from then on.

    A driver that decides itself what time it is runs a topology through real lanes at a time of its choice.
    """

    now: Timestamp


# What the planner says.


class Ready(msgspec.Struct, tag=True, frozen=True):
    address: str  # where lanes find it


class Committed(msgspec.Struct, tag=True):
    """A commit is durable."""

    commit: Commit


class Room(msgspec.Struct, tag=True, frozen=True):
    """Whether sources may be read."""

    is_there: bool


class NotesLeft(msgspec.Struct, tag=True, frozen=True):
    """A sink has left a note, and waits."""

    number: int
    injector: str


class Answer(msgspec.Struct, tag=True, frozen=True):
    number: int
    value: bool | list[str] | Seats | None = None
    kept: KeptKey | None = None


class SeatSeen(msgspec.Struct, frozen=True):
    """A lane: where it runs, the epoch of the state that it came with, and how many rows have changed since."""

    process: str  # host and process id; empty while it is away
    epoch: int
    changed: int


class Seats(msgspec.Struct, frozen=True):
    """The lanes, and what is under way."""

    lanes: list[SeatSeen]
    opened: int | None  # the epoch that runs
    rests: int | None  # the newest commit, if nothing is under way or put off and all lanes are there
    turns: int  # how often the planner has looked
    ran: float = 0.0  # seconds that epochs took in the lanes
    wrote: float = 0.0  # and their commits on the disk
    spending: Spending | None = None
    spans: list[EpochSpan] = []  # the epochs since this was last asked


class Warned(msgspec.Struct, tag=True, frozen=True):
    """For the log of the driver, at a level of `logging`."""

    message: str
    level: int


class HasEnded(msgspec.Struct, tag=True, frozen=True):
    """It cannot go on: what it met, as a kind that the planner names, or as an error of Python's, pickled."""

    kind: str
    message: str
    error: bytes = b""


ToPlanner = Begin | Feed | Offer | Unread | Logged | Delivered | NotesTaken | Ask | AskLane | StopRun | CloseRun | SetClock
FromPlanner = Ready | Committed | Room | NotesLeft | Answer | Warned | HasEnded

encode = msgspec.msgpack.Encoder().encode
decode_to_planner = msgspec.msgpack.Decoder(ToPlanner).decode
decode_from_planner = msgspec.msgpack.Decoder(FromPlanner).decode
