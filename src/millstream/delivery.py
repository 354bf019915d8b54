"""Where records go to."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from millstream import arguments
from millstream.change import Change
from millstream.errors import TopologyError
from millstream.format import Format
from millstream.record import Record
from millstream.stream import Stream
from millstream.target import AnyTarget, DeliveryContext, RowTarget, Sink, Step, Target
from millstream.timestamp import SECOND, Duration, describe

V = TypeVar("V")


class Mode(enum.Enum):
    """What becomes of a record in a table whose rows can change."""

    APPEND = "append"  # a row for each record
    UPSERT = "upsert"  # a row for each key: the newest record replaces it, and one without a value deletes it


class WriterTarget(AnyTarget):
    """One that the writer process writes to, many records at a time: a folder of files of this format, or a Delta table."""

    path: str
    every: Duration
    format: Format | None = None
    key: str | None = None  # of a table of rows: what the column of the key is called

    def open(self, context: DeliveryContext) -> Sink:
        raise NotImplementedError(f"{self!r} is written by the writer process")


@dataclass(frozen=True)
class DeltaTarget(WriterTarget, Target):
    path: str
    every: Duration = SECOND


@dataclass(frozen=True)
class FileTarget(WriterTarget, Target):
    path: str
    format: Format
    every: Duration = SECOND


@dataclass(frozen=True)
class DeltaRowsTarget(WriterTarget, RowTarget):
    path: str
    key: str
    every: Duration = SECOND


class CallSink(Sink):
    """Calls a function with the number of each step and its records."""

    def __init__(self, call: Callable[[int, list[Record[Any]]], None]) -> None:
        self._call = call

    def write(self, step: Step, records: Sequence[Record[Any]]) -> None:
        self._call(step.number, list(records))


@dataclass(frozen=True)
class ConsoleTarget(Target):
    numbered = False  # a step has no number for who reads it, and after a kill it may be printed twice
    at_most: int

    def open(self, context: DeliveryContext) -> Sink:
        return CallSink(lambda _, records: self._print(context.delivery, records))

    def _print(self, delivery: str, records: list[Record[Any]]) -> None:
        """The newest records of a step, and how many there were before them."""
        newest = records[max(0, len(records) - self.at_most) :]
        lines = [f"{delivery}: … {len(records) - len(newest):,} more"] if len(newest) < len(records) else []
        lines += [f"{delivery}: {describe(record.timestamp)}  {record.key}  {record.value}" for record in newest]
        print("\n".join(lines), flush=True)  # at once: other deliveries print too


@dataclass(frozen=True)
class FunctionTarget(Target):
    call: Callable[[int, list[Record[Any]]], None]

    def open(self, context: DeliveryContext) -> Sink:
        return CallSink(self.call)


@dataclass(frozen=True)
class MemoryTarget(Target):
    """Keeps what is delivered in this process: for tests and notebooks."""

    numbered = False  # the records do not outlive this process, so nothing that a power loss takes is missed
    _steps: dict[int, list[Record[Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def records(self) -> list[Record[Any]]:
        """All that was delivered so far, in order."""
        with self._lock:
            return [record for step in sorted(self._steps) for record in self._steps[step]]

    def take(self, step: int, records: list[Record[Any]]) -> None:
        """A repeated step replaces itself: exactly once as long as this process lives."""
        with self._lock:
            self._steps[step] = records

    def open(self, context: DeliveryContext) -> Sink:
        return CallSink(self.take)


def delta(path: str | PathLike[str], *, every: Duration = SECOND) -> Target:
    """A Delta table with the columns key, value, timestamp and id. Exactly once: each commit says up to which epoch it goes.

    There is a commit for every `every` in which something came; each costs some milliseconds and a file.
    """
    return DeltaTarget(arguments.path("delta", path), arguments.span("delta", "every", every))


def delta_rows(path: str | PathLike[str], *, key: str = "key", every: Duration = SECOND) -> RowTarget:
    """A Delta table with one row for each key of a table, a stream of `ms.Change`: what is there is what the stream says is there.

    The columns are the key, called `key`, and the fields of the row; a row that has no fields is one column `value`. A change
    without an `after` removes the row. There is a commit for every `every` in which something changed. Exactly once: each
    commit says up to which epoch it goes. A commit writes the files anew that hold a changed row.

        topology.deliver("spent", spent.changes, ms.delta_rows("out/spent"))
    """
    if not isinstance(key, str) or not key or any(each in key for each in " ,;{}()\n\t="):
        raise TopologyError(f"delta_rows(key={key!r}): give the name of a column, without blanks and any of ,;{{}}()=")
    return DeltaRowsTarget(arguments.path("delta_rows", path), key, arguments.span("delta_rows", "every", every))


def to_files(path: str | PathLike[str], *, format: Format = Format.JSON_LINES, every: Duration = SECOND) -> Target:
    """A folder of JSON-lines or Parquet files, named by step. Exactly once: a repeated step writes the same names."""
    if arguments.choice("to_files", "format", format, Format) not in (Format.JSON_LINES, Format.PARQUET):
        raise TopologyError("files are delivered as Format.JSON_LINES or Format.PARQUET")
    return FileTarget(arguments.path("to_files", path), format, arguments.span("to_files", "every", every))


def console(*, at_most: int = 20) -> Target:
    """Prints the newest records of every step. After a kill, a step may be printed twice."""
    return ConsoleTarget(arguments.number("console", "at_most", at_most, least=1))


def function(call: Callable[[int, list[Record[V]]], None]) -> Target:
    """Calls `call(step, records)` in the driver. After a kill, a step may be repeated with the same number and records."""
    if not callable(call):
        raise TopologyError(f"function({call!r}): give a function that takes the number of a step and a list of records")
    arguments.function("function: what is called", call, "the number of a step", "its records")
    return FunctionTarget(call)


def memory() -> MemoryTarget:
    """Keeps the records in this process: `target.records`. A new process starts empty and sees what is delivered from then on."""
    return MemoryTarget()


@dataclass(frozen=True)
class Delivery:
    """A stream, and where it goes."""

    name: str
    stream: Stream[Any]
    target: AnyTarget

    @property
    def written(self) -> WriterTarget | None:
        """Its target, if the writer process writes to it; all others are called in the driver."""
        return self.target if isinstance(self.target, WriterTarget) else None

    def shares_rows(self, other: Delivery) -> bool:
        """Whether both write to one path, and one of them keeps rows there: each would take the other's for its own."""
        ours, theirs = self.written, other.written
        if ours is None or theirs is None or (ours.key is None and theirs.key is None):
            return False
        return Path(ours.path).absolute() == Path(theirs.path).absolute()


def row_type(kind: Any) -> Any:
    """The type of the rows of a table, by the type of its stream: `Any` where that does not say; None of any other stream."""
    return next(iter(get_args(kind)), Any) if (get_origin(kind) or kind) is Change else None
