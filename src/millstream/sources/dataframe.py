"""A DataFrame of Spark's as a source: a query of Spark's reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.source import ReadBy, Source, SourceContext, SourceReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True)
class DataFrameSource(Source[V_co]):
    """`dataframe` makes one."""

    read_by = ReadBy.SPARK
    has_columns = True
    frame: DataFrame | Callable[[SparkSession], DataFrame]
    value_type: Any
    bounded: bool = False  # what Spark says of the frame decides, once there is a session

    def describe(self) -> str:
        return "a DataFrame"

    def open(self, context: SourceContext) -> SourceReader:
        raise AssertionError("a query of Spark's reads it")

    def left_over(self, context: SourceContext) -> str | None:
        return "its DataFrame is not read again; inject what it may have more under another name"


def dataframe(frame: DataFrame | Callable[[SparkSession], DataFrame], value: type[V] | UnionType) -> Source[V]:
    """A Spark DataFrame, streaming or batch, or a function that makes one from the session of the run.

    ms.dataframe(lambda spark: spark.readStream.format("rate").load(), Tick)
    """
    if not callable(frame) and not hasattr(frame, "isStreaming"):
        raise TopologyError(f"dataframe({frame!r}): give a Spark DataFrame, or a function that makes one of a session")
    if not hasattr(frame, "isStreaming"):
        arguments.function("dataframe: what makes the frame", frame, "the session")
    return DataFrameSource(frame, arguments.value_type("dataframe", value))
