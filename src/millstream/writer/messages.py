"""What driver and writer say to each other."""

from __future__ import annotations

import msgspec

from millstream.format import Format
from millstream.log.keeping import Keeping
from millstream.targets.lacking import Place


class LogSettings(msgspec.Struct, frozen=True):
    """The log: all streams but those that are not kept."""

    logged: int  # the commits say that it has everything up to here
    unkept: list[str] = []
    retention: int | None = None  # microseconds
    streams: dict[str, Keeping] = {}  # those for which something else was asked


class OutputSettings(msgspec.Struct, frozen=True):
    """A delivery that the writer makes."""

    name: str
    stream: str
    path: str
    delivered: int  # the commits say that it has everything up to here
    format: Format | None = None  # None: a Delta table
    every: int = 1_000_000  # microseconds between two commits, unless much comes
    key: str | None = None  # of a table of rows: what the column of the key is called


# What the driver says.


class BeginWriting(msgspec.Struct, tag=True, frozen=True):
    """The first message."""

    folder: str
    folder_id: str  # tells it from all others
    fence: int
    newest: int  # the newest commit
    log: LogSettings
    outputs: list[OutputSettings] = []
    types: bytes = b""  # the value type of each delivered stream, pickled by the driver
    every: int = 1_000_000  # microseconds
    needed_from: dict[str, int] = {}  # as of that commit


class NewCommit(msgspec.Struct, tag=True, frozen=True):
    """A commit is durable, its folder synced; these are the plain parts that it names."""

    number: int
    places: list[Place]


class NamedParts(msgspec.Struct, array_like=True, frozen=True):
    number: int
    places: list[Place]


class TailAnswer(msgspec.Struct, tag=True, frozen=True):
    """What there is for an output after what it asked for: in the log up to `history`, then these, all of it up to `upto`."""

    output: str
    history: int
    upto: int
    epochs: list[NamedParts] = []


class Needed(msgspec.Struct, tag=True, frozen=True):
    """The log leaves these streams whole from these epochs on, and all streams after this commit."""

    needed_from: dict[str, int]
    known: int


class Flush(msgspec.Struct, tag=True, frozen=True):
    """Write what waits up to this commit now: nothing more is to be expected soon."""

    upto: int


class StopWriting(msgspec.Struct, tag=True, frozen=True):
    """Write everything up to this commit, then end."""

    at: int


# What the writer says.


class Positions(msgspec.Struct, tag=True, frozen=True):
    """How far each output is, as it was found."""

    of: dict[str, int]


class Asked(msgspec.Struct, tag=True, frozen=True):
    """More is wanted for an output, after this epoch. There is room for it."""

    output: str
    after: int


class Written(msgspec.Struct, tag=True, frozen=True):
    """An output has everything up to here, synced."""

    output: str
    upto: int


class OutputFailed(msgspec.Struct, tag=True, frozen=True):
    output: str
    message: str


class RetentionPutOff(msgspec.Struct, tag=True, frozen=True):
    """Retention leaves old files of this stream in the log, for somebody needs them."""

    stream: str


ToWriter = BeginWriting | NewCommit | TailAnswer | Needed | Flush | StopWriting
FromWriter = Positions | Asked | Written | OutputFailed | RetentionPutOff

encode = msgspec.msgpack.Encoder().encode
decode_to_writer = msgspec.msgpack.Decoder(ToWriter).decode
decode_from_writer = msgspec.msgpack.Decoder(FromWriter).decode
