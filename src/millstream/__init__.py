"""Millstream: MillWheel on Spark. Computations for one key at a time, exactly once, in event time."""

from typing import TYPE_CHECKING, Any

from millstream.computation import Computation, Takes, output
from millstream.delivery import MemoryTarget, Mode, console, delta, function, memory, to_files
from millstream.errors import Failure, Fenced, FolderBusy, LogError, MillstreamError, RecordError, RunFailed, TopologyError, Unreachable
from millstream.expiry import Expiry
from millstream.injector import BoundedDisorder, Explicit, Format, Source, dataframe, files, values
from millstream.record import Clock, DeadLetter, Errors, Late, Record, Timer
from millstream.secret import Secret, secret
from millstream.stream import Output, Stream
from millstream.target import DeliveryContext, Sink, Step, Target
from millstream.timestamp import (
    DAY,
    END_OF_TIME,
    HOUR,
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    SECOND,
    START_OF_TIME,
    Duration,
    Timestamp,
    floor,
    to_datetime,
    to_duration,
    to_timestamp,
)
from millstream.topology import Divert, Topology

if TYPE_CHECKING:
    from millstream.command.progress import run
    from millstream.log.reading import read
    from millstream.log.status import Status, status_of
    from millstream.spark.options import DRAINED, Options
    from millstream.spark.run import Run, start
    from millstream.targets.kafka import to_kafka
    from millstream.targets.postgres import to_postgres

__version__ = "0.1.0"

# Spark takes a second to import; what only builds or tests a topology does without it. Clients of other systems may be missing.
_LATE = {
    "DRAINED": "millstream.spark.options",
    "Options": "millstream.spark.options",
    "read": "millstream.log.reading",
    "Run": "millstream.spark.run",
    "start": "millstream.spark.run",
    "Status": "millstream.log.status",
    "status_of": "millstream.log.status",
    "run": "millstream.command.progress",
    "to_kafka": "millstream.targets.kafka",
    "to_postgres": "millstream.targets.postgres",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'millstream' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


__all__ = [
    "DAY",
    "DRAINED",
    "END_OF_TIME",
    "HOUR",
    "MICROSECOND",
    "MILLISECOND",
    "MINUTE",
    "SECOND",
    "START_OF_TIME",
    "BoundedDisorder",
    "Clock",
    "Computation",
    "DeadLetter",
    "DeliveryContext",
    "Divert",
    "Duration",
    "Errors",
    "Expiry",
    "Explicit",
    "Failure",
    "Fenced",
    "FolderBusy",
    "Format",
    "Late",
    "LogError",
    "MemoryTarget",
    "MillstreamError",
    "Mode",
    "Options",
    "Output",
    "Record",
    "RecordError",
    "Run",
    "RunFailed",
    "Secret",
    "Sink",
    "Source",
    "Status",
    "Step",
    "Stream",
    "Takes",
    "Target",
    "Timer",
    "Timestamp",
    "Topology",
    "TopologyError",
    "Unreachable",
    "console",
    "dataframe",
    "delta",
    "files",
    "floor",
    "function",
    "memory",
    "output",
    "read",
    "run",
    "secret",
    "start",
    "status_of",
    "to_datetime",
    "to_duration",
    "to_files",
    "to_kafka",
    "to_postgres",
    "to_timestamp",
    "values",
]
