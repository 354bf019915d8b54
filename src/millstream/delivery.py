"""Where records go to."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.injector import Format
from millstream.record import Record
from millstream.stream import Stream
from millstream.target import DeliveryContext, Sink, Step, Target
from millstream.timestamp import SECOND, Duration, describe

V = TypeVar("V")


class Mode(enum.Enum):
    """What becomes of a record in a table whose rows can change."""

    APPEND = "append"  # a row for each record
    UPSERT = "upsert"  # a row for each key: the newest record replaces it, and one without a value deletes it


class WriterTarget(Target):
    """One that the writer process writes to, many records at a time."""

    path: str
    every: Duration

    def open(self, context: DeliveryContext) -> Sink:
        raise NotImplementedError(f"{self!r} is written by the writer process")


@dataclass(frozen=True)
class DeltaTarget(WriterTarget):
    path: str
    every: Duration = SECOND


@dataclass(frozen=True)
class FileTarget(WriterTarget):
    path: str
    format: Format
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
    target: Target
