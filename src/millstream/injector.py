"""Where records come from, and what is promised about the times they carry."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.record import Errors
from millstream.stream import Stream
from millstream.timestamp import DAY, Duration, Timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class Format(enum.Enum):
    """How a file spells its records."""

    JSON_LINES = "jsonl"
    TEXT = "text"
    CSV = "csv"
    PARQUET = "parquet"


SUFFIXES = {
    ".jsonl": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
    ".json": Format.JSON_LINES,
    ".txt": Format.TEXT,
    ".log": Format.TEXT,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")  # by the name of each file


class Source(Generic[V_co]):
    """Where an injector finds its values. `files`, `dataframe` and `values` make one."""

    value_type: Any
    bounded: bool

    @property
    def has_columns(self) -> bool:
        """Whether key and time may be named as columns."""
        return False


@dataclass(frozen=True)
class FileSource(Source[V_co]):
    path: str
    value_type: Any
    format: Format
    bounded: bool
    separator: str = ","  # of the cells of CSV
    columns: Mapping[str, str] = field(default_factory=dict)  # by field of the value: what the files call it

    @property
    def has_columns(self) -> bool:
        return self.format is Format.PARQUET


@dataclass(frozen=True)
class DataFrameSource(Source[V_co]):
    frame: DataFrame | Callable[[SparkSession], DataFrame]
    value_type: Any
    bounded: bool = False  # what Spark says of the frame decides, once there is a session

    @property
    def has_columns(self) -> bool:
        return True


@dataclass(frozen=True)
class ValueSource(Source[V_co]):
    values: Iterable[V_co] | Callable[[int], Iterator[V_co]]
    value_type: Any
    bounded: bool = True  # when it ends; it need not


SOURCES = (FileSource, DataFrameSource, ValueSource)


def files(
    path: str | PathLike[str],
    value: type[V],
    *,
    format: Format | None = None,
    bounded: bool = False,
    separator: str = ",",
    columns: Mapping[str, str] | None = None,
) -> Source[V]:
    """Files that match `path`, one record a line or row: those that are there, and those that come, unless `bounded`.

    A file is read once, when it is first seen: write it elsewhere and move it in when it is whole. They are read in the order
    of their times, and those of one time in the order of their names. `separator` is that of CSV. `columns` says what the
    files call a field of the value, where it is not the same.

        ms.files("clicks/*.jsonl", Click)
        ms.files("orders/*.csv", Order, separator=";", columns={"customer": "Kunde"})
    """
    path = arguments.path("files", path)
    arguments.pattern("files", path)
    bare = PurePath(path)
    while bare.suffix in COMPRESSED:
        bare = bare.with_suffix("")
    found = SUFFIXES.get(bare.suffix) if format is None else arguments.choice("files", "format", format, Format)
    if found is None:
        raise TopologyError(
            f"what do the files {path!r} hold? End the path in one of {', '.join(SUFFIXES)}, or say format=ms.Format.JSON_LINES"
        )
    if separator != "," and found is not Format.CSV:
        raise TopologyError(f"files(separator={separator!r}): only CSV has one, and these are {found.name}; say format=ms.Format.CSV")
    if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n':
        raise TopologyError(f"files(separator={separator!r}): give one character, such as ';'")
    names = arguments.renaming("files", "columns", {} if columns is None else columns)
    if names and found not in (Format.CSV, Format.PARQUET):
        raise TopologyError(f"files(columns={columns!r}): {found.name} has no columns; rename the fields of the value instead")
    kind = arguments.value_type("files", value)
    fields = arguments.fields_of(kind)
    if fields is not None and (missing := [name for name in names if name not in fields]):
        raise TopologyError(
            f"files(columns={columns!r}): {getattr(kind, '__name__', kind)} has no field {missing[0]!r}; "
            f"it has {', '.join(fields) or 'none'}. "
            f"Write what the value calls it first, then what the files do"
        )
    if found is Format.TEXT and kind is not str:
        raise TopologyError(f"files: a line of text is a str, not {kind}; give str, and take it apart where it is read")
    return FileSource(path, kind, found, arguments.flag("files", "bounded", bounded), separator, names)


def dataframe(frame: DataFrame | Callable[[SparkSession], DataFrame], value: type[V]) -> Source[V]:
    """A Spark DataFrame, streaming or batch, or a function that makes one from the session of the run.

    ms.dataframe(lambda spark: spark.readStream.format("rate").load(), Tick)
    """
    if not callable(frame) and not hasattr(frame, "isStreaming"):
        raise TopologyError(f"dataframe({frame!r}): give a Spark DataFrame, or a function that makes one of a session")
    if not hasattr(frame, "isStreaming"):
        arguments.function("dataframe: what makes the frame", frame, "the session")
    return DataFrameSource(frame, arguments.value_type("dataframe", value))


def values(of: Iterable[V] | Callable[[int], Iterator[V]], value: type[V]) -> Source[V]:
    """Python values, taken one by one as they come; the stream ends when they do.

    After a restart, an iterable is gone through again and what was taken already is passed over;
    a function is called with the number of values taken so far, and goes on from there.

        ms.values([Query("spark", noon)], Query)
    """
    if not callable(of) and (isinstance(of, str | bytes) or not isinstance(of, Iterable)):
        raise TopologyError(
            f"values({of!r}): give an iterable of values, or a function of the number of values taken so far that makes one"
        )
    if callable(of):
        arguments.function("values: what makes the values", of, "the number of values taken so far")
    elif isinstance(of, set | frozenset):
        raise TopologyError(
            f"values: a {type(of).__name__} has no order that is the same after a restart; give a list, such as sorted(...)"
        )
    elif isinstance(of, Mapping):
        raise TopologyError(f"values: a {type(of).__name__} would give its keys; give a list, such as list(....values())")
    return ValueSource(of, arguments.value_type("values", value))


@dataclass(frozen=True)
class BoundedDisorder:
    """Records come at most `by` out of order within a partition of the source.

    A partition silent for `idle_after` on the wall clock is left out until it speaks again.
    """

    by: Duration
    idle_after: Duration | None = None

    def __post_init__(self) -> None:
        arguments.span("BoundedDisorder", "by", self.by, least=0)
        arguments.maybe_span("BoundedDisorder", "idle_after", self.idle_after)


@dataclass(frozen=True)
class Explicit(Generic[V]):
    """The source says itself, in each value (or in a column), up to when its partition is complete."""

    of: Callable[[V], Timestamp | datetime] | str
    idle_after: Duration | None = None

    def __post_init__(self) -> None:
        if not callable(self.of) and (not isinstance(self.of, str) or not self.of):
            raise TopologyError(f"Explicit({self.of!r}): give a function of the value, or the name of a column")
        if not isinstance(self.of, str):
            arguments.function("Explicit: what says up to when all has come", self.of, "the value")
        arguments.maybe_span("Explicit", "idle_after", self.idle_after)


@dataclass(frozen=True)
class Injection:
    """The arguments of `Topology.inject`."""

    name: str
    source: Source[Any]
    key: Callable[[Any], str] | str
    timestamp: Callable[[Any], Timestamp | datetime] | str
    low_watermark: BoundedDisorder | Explicit[Any]
    partition: Callable[[Any], str] | str | None
    errors: Errors
    ahead: Duration = DAY
    keep: bool = True


class InjectedStream(Stream[V]):
    """The stream of an injector."""

    def __init__(self, injection: Injection) -> None:
        self.injection, self.name, self.value_type = injection, injection.name, injection.source.value_type

    def __repr__(self) -> str:
        return f"<stream {self.name}>"
