"""The DataFrames that injectors read: every source comes down to JSON text, with key and time beside it where they are columns."""

from __future__ import annotations

import dataclasses
import glob as globbing
import os
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, IntegralType, StringType, StructField, StructType, TimestampNTZType, TimestampType

from millstream.errors import TopologyError
from millstream.injector import DataFrameSource, Explicit, FileSource, Format, Injection

# Spark passes over files that are a week older than the newest it has seen, and forgets those it has read a week after that:
# a copy that keeps its old time would be lost, and an old file that is touched would be read twice. None are too old here.
OLDEST = {"maxFileAge": "36500d"}

TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def frame_of(spark: SparkSession, injection: Injection, *, most: int) -> DataFrame:
    """What the query of an injector starts from: the column `value`, and `_key`, `_timestamp` and so on where they are columns.

    At most `most` bytes of files are read in one batch.
    """
    source = injection.source
    if isinstance(source, FileSource):
        return _with_columns(_files(spark, injection, source, most), injection)
    assert isinstance(source, DataFrameSource)
    try:
        frame = source.frame if isinstance(source.frame, DataFrame) else source.frame(spark)
    except OSError as error:
        raise TopologyError(f"injector {injection.name!r}: its DataFrame cannot be made: {error}") from error
    if not isinstance(frame, DataFrame):
        raise TopologyError(
            f"injector {injection.name!r}: {frame!r} is not a DataFrame; give one, or a function of the session that returns one"
        )
    return _with_columns(frame, injection)


def _files(spark: SparkSession, injection: Injection, source: FileSource[Any], most: int) -> DataFrame:
    parent, pattern = _split(source.path)
    if any(sign in parent for sign in "*?["):
        raise TopologyError(f"injector {injection.name!r}: only the last part of a path may be a pattern, not {source.path!r}")
    if not Path(parent).is_dir():
        raise TopologyError(f"injector {injection.name!r}: there is no folder {parent}; make it, or fix the path {source.path!r}")
    if source.format is Format.JSON_LINES:
        return _text(spark, parent, pattern, most, **OLDEST)
    reader = spark.readStream.options(pathGlobFilter=pattern, maxBytesPerTrigger=str(most), **OLDEST)
    there = sorted(globbing.glob(f"{parent}/{pattern}"))
    if source.format is Format.PARQUET:
        if not there:
            raise TopologyError(
                f"injector {injection.name!r}: no file matches {source.path!r} yet; put one there first, its columns are needed"
            )
        return reader.schema(spark.read.parquet(f"file://{there[0]}").schema).parquet(f"file://{parent}")
    names = spark.read.option("header", "true").csv(f"file://{there[0]}").columns if there else _fields(injection.name, source.value_type)
    schema = StructType([StructField(name, StringType()) for name in names])
    # All columns are read as text; the type of the value says what they are, and tells of what does not fit.
    return reader.schema(schema).option("header", "true").option("enforceSchema", "false").csv(f"file://{parent}")


def files_there(source: FileSource[Any]) -> set[str]:
    """The files that a source has now, as far as their names tell: a pattern that Hadoop may read otherwise tells nothing."""
    parent, pattern = _split(source.path)
    if any(sign in pattern for sign in "[]{}\\") or Path(parent, "_spark_metadata").exists():  # then Spark goes by what that says
        return set()
    there = (file for file in Path(parent).glob(pattern) if file.is_file() and not file.name.startswith((".", "_")))
    return {os.path.normpath(file) for file in there if not file.name.endswith("._COPYING_")}


def _text(spark: SparkSession, parent: str, pattern: str, most: int, **others: str) -> DataFrame:
    return spark.readStream.options(pathGlobFilter=pattern, maxBytesPerTrigger=str(most), **others).text(f"file://{parent}")


def _split(path: str) -> tuple[str, str]:
    """A folder, and the pattern of the files in it."""
    found = Path(path)
    if found.is_dir():
        return str(found.absolute()), "*"
    return str(found.parent.absolute()), found.name


def _fields(name: str, kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    raise TopologyError(f"injector {name!r}: the columns of a CSV file are the fields of a dataclass or a Struct, not of {kind}")


def _with_columns(frame: DataFrame, injection: Injection) -> DataFrame:
    source = injection.source
    if isinstance(source, FileSource) and source.format is Format.JSON_LINES:
        return frame
    ignore = "true" if isinstance(source, FileSource) and source.format is Format.CSV else "false"
    wanted = [F.to_json(F.struct("*"), {**TIMES, "ignoreNullFields": ignore}).alias("value")]
    policy = injection.low_watermark
    named = {
        "_key": injection.key,
        "_timestamp": injection.timestamp,
        "_partition": injection.partition,
        "_low_watermark": policy.of if isinstance(policy, Explicit) else None,
    }
    for name, column in named.items():
        if isinstance(column, str):
            wanted.append(_column(frame, injection.name, column, text=name in ("_key", "_partition")).alias(name))
    return frame.select(*wanted)


def _column(frame: DataFrame, injector: str, name: str, *, text: bool) -> Column:
    try:
        kind = frame.select(name).schema[0].dataType
    except AnalysisException:
        raise TopologyError(f"injector {injector!r}: there is no column {name!r}; there are {', '.join(frame.columns)}") from None
    if text:
        return F.col(name).cast("string")
    if isinstance(kind, TimestampType):
        return F.unix_micros(F.col(name))
    if isinstance(kind, TimestampNTZType | DateType):  # the session's time zone is UTC
        return F.unix_micros(F.col(name).cast("timestamp"))
    if not isinstance(kind, IntegralType):
        raise TopologyError(
            f"injector {injector!r}: the column {name!r} is {kind.simpleString()}; a time is a timestamp, or microseconds as a bigint"
        )
    return F.col(name).cast("long")
