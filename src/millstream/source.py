"""What a system must do to be read: the door through which every source stands, ours and those of others."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from millstream.timestamp import Timestamp

V_co = TypeVar("V_co", covariant=True)

BYTES_PER_PIECE = 2 << 20  # large enough that to begin one costs little, small enough that all lanes have some of an epoch

Position = int | str  # of a partition of a source, in the source's own terms: whatever it needs to read on from there


class Batch(msgspec.Struct):
    """Values that a source gives, one after the other, and how far it is read with them.

    A record's id is the name of its injector, `origin`, `major` and its number: choose them so that a value that is read again
    has the id that it had.
    """

    values: Sequence[bytes]  # as JSON text
    numbers: Sequence[int]  # of each value, ascending: its place in its partition
    positions: Mapping[str, Position]  # by partition, how far the source is read with these; other names may stand for what else it
    # must know to read on, and what is not said stays as it was
    partition: str = ""  # whose values these are: the low watermark of the injector is the least over the partitions
    origin: str = ""
    major: int = 0
    columns: Sequence[dict[str, Any]] | None = None  # beside each value: key and time may be named as columns
    reasons: Mapping[int, str] = {}  # by place in `values`: why the source refuses it
    complete: Timestamp | None = None  # up to when the partition is complete, where the source knows that by itself

    @classmethod
    def of(cls, values: Iterable[Any], first: int, *, partition: str = "") -> Batch:
        """Of Python values that are numbered from `first` on, where the position is the number of the next one."""
        texts = [msgspec.json.encode(value) for value in values]
        return cls(texts, range(first, first + len(texts)), {partition: first + len(texts)}, partition)


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Some of a source, for a lane to read. What stands in it is the source's own affair; it is read once, in the order of its
    partition, and again if that came to nothing."""

    content: bytes
    size: int  # bytes, about: what the limits of an epoch are told by
    partition: str = ""
    lane: int = 0  # that reads it best, modulo their number; another one may


@dataclass(frozen=True)
class SourceContext:
    """What a source is told of the injector that it is opened for."""

    injector: str
    value_type: Any
    positions: Mapping[str, Position]  # how far it is read; empty at the beginning. What `confirm` was not told, no commit may have
    columns: frozenset[str] = frozenset()  # that the injector asks for
    times: frozenset[str] = frozenset()  # which of them are times: microseconds since 1970
    folder: Path | None = None  # in the folder of the run, for what the source must remember besides; it may not be there yet
    max_bytes: int = BYTES_PER_PIECE  # that a piece should have, about
    finished: bool = False  # it had ended before


class SourceReader(ABC):
    """An open source, in the driver. One thread calls all of it, but for `lag` and `trouble`.

    Whatever it raises ends the run, but for `ms.Unreachable`: then it is closed, and opened anew from where it was.
    """

    finishing = False
    left_running: str | None = None  # after `close`: a thread of its own that has not ended, for a warning

    @abstractmethod
    def poll(self, at_most: int, timeout: float) -> Sequence[Batch | Piece]:
        """What is new: about so many values at most, or pieces for lanes to read. Waits for it, up to `timeout` seconds.

        What was given is not given again: it is `confirm`ed once a commit has it, or the source is opened anew from a position
        before it. Pieces come again if a lane cannot read them; a batch is taken when all pieces before it are read.
        """

    def confirm(self, positions: Mapping[str, Position]) -> None:
        """Commits have read it up to here: what lies before is needed no more. Called now and then."""
        return

    def finish(self) -> None:
        """No more is wanted than there is now."""
        self.finishing = True

    def ended(self) -> bool:
        """Asked after a poll that gave nothing: will nothing come any more? After `finish`, nothing of what there was then."""
        return self.finishing

    def is_complete(self) -> bool:
        """Of a bounded source that has ended: whether that is its own end, and not only that of `finish`."""
        return True

    def lag(self) -> Mapping[str, int]:
        """By partition, how many records are known to be there that were not given yet, where any are; bytes, if only these are known.

        Such a partition is not silent; and as long as nothing of it was read, it holds the low watermark where it is.
        """
        return {}

    @property
    def trouble(self) -> str | None:
        """What the status of the run should say of it."""
        return None

    def close(self) -> None:
        """The run has ended, or the source is opened anew."""
        return


class PieceReader(ABC):
    """Reads the pieces of a source in a lane, which is another process, perhaps on another machine. Made once in each.

    After `ms.Unreachable` it is asked again, and connects anew by itself.
    """

    @abstractmethod
    def read(self, piece: Piece, at_most: int) -> Iterator[Batch]:
        """All of it, in batches of so many values at most; the last ones say how far the source is read then.

        `ms.Unreachable` if it may be read later. What the source no longer has is refused with `ms.LogError`, never passed over.
        """

    def close(self) -> None:
        return


class ReadBy(enum.Enum):
    """Who reads a source."""

    DRIVER = "driver"  # a thread of it, which may give pieces to the lanes
    SPARK = "spark"  # a query of Spark's


class Source(ABC, Generic[V_co]):
    """Where an injector finds its values: derive from it for a system of your own.

    `millstream.testing.SourceContract` holds what a source must keep to, as tests.
    """

    value_type: Any
    bounded: bool = False  # it ends by itself
    has_columns: bool = False  # key and time may be named as columns, beside the values
    lenient: bool = False  # its values are text that the type of the value makes sense of, such as numbers in CSV
    gives_pieces: ClassVar[bool] = False  # for lanes to read: then the source itself travels to them, and must be picklable
    read_by: ClassVar[ReadBy] = ReadBy.DRIVER

    def describe(self) -> str:
        """Which one it is, for people. Without secrets: it is written down."""
        return type(self).__name__

    def identity(self) -> str:
        """What its positions depend on: where this is another one than before, they mean nothing, and the source is refused."""
        return self.describe()

    def check(self, context: SourceContext) -> None:
        """Refuse what could not be read, with `ms.TopologyError`. Called before anything runs; changes nothing."""
        return

    @abstractmethod
    def open(self, context: SourceContext) -> SourceReader:
        """Connect, in the driver, to read on from the positions in the context. `ms.Unreachable` where it may be tried again."""

    def piece_reader(self, context: SourceContext) -> PieceReader:
        """In a lane, of a source that gives pieces. The positions of the context say nothing there."""
        raise NotImplementedError(f"{type(self).__name__} gives pieces and has no piece_reader")

    def left_over(self, context: SourceContext) -> str | None:
        """Of a source that had ended: what it has now that will not be read, for a warning."""
        return None

    def position(self, of: object) -> Mapping[str, Position] | None:
        """A place in the source as those who write to it know it, as positions after it; None if it is not one of this source."""
        return None

    def is_past(self, now: Position, wanted: Position) -> bool:
        """Whether a partition that is read up to `now` has all up to `wanted`."""
        return now >= wanted  # type: ignore[operator]

    def reached(self, positions: Mapping[str, Position], wanted: Mapping[str, Position]) -> bool:
        """Whether a source that is read up to these positions has all up to those."""
        return all(name in positions and self.is_past(positions[name], upto) for name, upto in wanted.items())

    def would_read(self, path: Path) -> bool:
        """Whether it would take a file that is written there for one of its own."""
        return False
