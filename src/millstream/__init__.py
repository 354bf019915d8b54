"""Millstream: MillWheel on Spark. Computations for one key at a time, exactly once, in event time."""

from millstream.computation import Computation, Takes, output
from millstream.delivery import Target, console, delta, function, memory, to_files
from millstream.errors import FolderBusy, LogError, MillstreamError, RecordError, RunFailed, TopologyError
from millstream.injector import BoundedDisorder, Explicit, Format, Source, dataframe, files, values
from millstream.record import Clock, DeadLetter, Errors, Late, Record, Timer
from millstream.stream import Output, Stream
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
