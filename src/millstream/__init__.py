"""Millstream: MillWheel on Spark. Computations for one key at a time, exactly once, in event time."""

from typing import TYPE_CHECKING, Any

from millstream.change import Change, Table, key
from millstream.clocks import Arrival, OnOurClock
from millstream.computation import Computation, Takes, output
from millstream.delivery import MemoryTarget, Mode, console, delta, delta_rows, function, memory, to_files
from millstream.errors import Failure, Fenced, FolderBusy, LogError, MillstreamError, RecordError, RunFailed, TopologyError, Unreachable
from millstream.expiry import Expiry
from millstream.format import Format
from millstream.injector import BoundedDisorder, Explicit, InjectedStream, Timeless
from millstream.record import Clock, DeadLetter, Errors, Late, Order, Record, Since, Timer
from millstream.secret import Secret, secret
from millstream.source import Batch, Piece, PieceReader, Position, Source, SourceContext, SourceReader
from millstream.stream import Output, Stream
from millstream.target import DeliveryContext, RowTarget, Sink, Step, Target
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
    from millstream.sources.dataframe import dataframe
    from millstream.sources.file_source import files
    from millstream.sources.kafka import kafka
    from millstream.sources.kafka_message import Message
    from millstream.sources.postgres_changes import postgres_changes
    from millstream.sources.value_source import values
    from millstream.spark.options import DRAINED, Options
    from millstream.spark.run import Run, start
    from millstream.targets.kafka import to_kafka
    from millstream.targets.postgres import to_postgres
    from millstream.targets.webhook import webhook

__version__ = "0.1.0"

# Spark takes a second to import; what only builds or tests a topology does without it. Clients of other systems may be missing.
_LATE = {
    "DRAINED": "millstream.spark.options",
    "Options": "millstream.spark.options",
    "dataframe": "millstream.sources.dataframe",
    "kafka": "millstream.sources.kafka",
    "Message": "millstream.sources.kafka_message",
    "postgres_changes": "millstream.sources.postgres_changes",
    "files": "millstream.sources.file_source",
    "read": "millstream.log.reading",
    "values": "millstream.sources.value_source",
    "Run": "millstream.spark.run",
    "start": "millstream.spark.run",
    "Status": "millstream.log.status",
    "status_of": "millstream.log.status",
    "run": "millstream.command.progress",
    "to_kafka": "millstream.targets.kafka",
    "webhook": "millstream.targets.webhook",
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
    "Arrival",
    "Batch",
    "BoundedDisorder",
    "Change",
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
    "InjectedStream",
    "Late",
    "LogError",
    "MemoryTarget",
    "Message",
    "MillstreamError",
    "Mode",
    "OnOurClock",
    "Options",
    "Order",
    "Output",
    "Piece",
    "PieceReader",
    "Position",
    "Record",
    "RecordError",
    "RowTarget",
    "Run",
    "RunFailed",
    "Secret",
    "Since",
    "Sink",
    "Source",
    "SourceContext",
    "SourceReader",
    "Status",
    "Step",
    "Stream",
    "Table",
    "Takes",
    "Target",
    "Timeless",
    "Timer",
    "Timestamp",
    "Topology",
    "TopologyError",
    "Unreachable",
    "console",
    "dataframe",
    "delta",
    "delta_rows",
    "files",
    "floor",
    "function",
    "kafka",
    "key",
    "memory",
    "output",
    "postgres_changes",
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
    "webhook",
]
