"""The DataFrames that injectors read: every source comes down to JSON text, with key and time beside it where they are columns."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, IntegralType, TimestampNTZType, TimestampType

from millstream.errors import TopologyError
from millstream.injector import Injection
from millstream.sources.dataframe import DataFrameSource
from millstream.sources.dealing import TEXT_ROLES

TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def frame_of(spark: SparkSession, injection: Injection) -> DataFrame:
    """What the query of an injector starts from: the column `value`, and `_key`, `_timestamp` and so on where they are columns."""
    source = injection.source
    assert isinstance(source, DataFrameSource)
    try:
        frame = source.frame if isinstance(source.frame, DataFrame) else source.frame(spark)
    except OSError as error:
        raise TopologyError(f"injector {injection.name!r}: its DataFrame cannot be made: {error}") from error
    if not isinstance(frame, DataFrame):
        raise TopologyError(
            f"injector {injection.name!r}: {frame!r} is not a DataFrame; give one, or a function of the session that returns one"
        )
    wanted = [F.to_json(F.struct("*"), {**TIMES, "ignoreNullFields": "false"}).alias("value")]
    for role, column in injection.columns.items():
        wanted.append(_column(frame, injection.name, column, text=role in TEXT_ROLES).alias(f"_{role.replace(' ', '_')}"))
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
