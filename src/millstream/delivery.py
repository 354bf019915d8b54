"""Where records go to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.injector import Format
from millstream.record import Record
from millstream.stream import Stream
from millstream.timestamp import SECOND, Duration

V = TypeVar("V")


class Target:
    """Where a delivery puts its records. `delta`, `to_files`, `console`, `function` and `memory` make one."""


@dataclass(frozen=True)
class DeltaTarget(Target):
    path: str
    every: Duration = SECOND


@dataclass(frozen=True)
class FileTarget(Target):
    path: str
    format: Format
    every: Duration = SECOND


@dataclass(frozen=True)
class ConsoleTarget(Target):
    at_most: int


@dataclass(frozen=True)
class FunctionTarget(Target):
    call: Callable[[int, list[Record[Any]]], None]


@dataclass(frozen=True)
class MemoryTarget(Target):
    """Keeps what is delivered in this process: for tests and notebooks."""

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
