"""What Spark knows of Millstream: three Python data sources.

Spark wakes a process of its own to look one up, another to create it, others to plan, read, write and commit. So this
module imports next to nothing: each process imports the part it needs, when it needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, DataSourceStreamReader


class MillSource(DataSource):
    """Source and sink of the mill's query."""

    @classmethod
    def name(cls) -> str:
        return "millstream-mill"

    def schema(self) -> str:
        return "bucket INT, blob BINARY"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        from millstream.spark.mill import MillReader

        return MillReader(self.options["settings"])

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        from millstream.spark.mill import MillWriter

        return MillWriter(self.options["settings"])


class InjectorSink(DataSource):
    """The sink of an injector's query."""

    @classmethod
    def name(cls) -> str:
        return "millstream-injector"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        from millstream.spark.inject import InjectorWriter

        return InjectorWriter(self.options["settings"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        from millstream.spark.inject import WholeWriter

        return WholeWriter(self.options["settings"])


class LogSource(DataSource):
    """A stream of the log as a source, and the targets that tasks write as a sink."""

    @classmethod
    def name(cls) -> str:
        return "millstream-log"

    def schema(self) -> str:
        return "key STRING, value STRING, timestamp TIMESTAMP, id STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        from millstream.spark.deliver import LogReader

        return LogReader(self.options["settings"])

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        from millstream.spark.targets import writer_for

        return writer_for(self.options["settings"])


SOURCES = (MillSource, InjectorSink, LogSource)
