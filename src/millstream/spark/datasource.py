"""What Spark knows of Millstream: the sink of an injector's query.

Spark wakes a process of its own to look one up, another to create it, others to write and commit. So this module imports
next to nothing: each process imports the part it needs, when it needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter


class InjectorSink(DataSource):
    """The sink of an injector's query."""

    @classmethod
    def name(cls) -> str:
        return "millstream-injector"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        from millstream.spark.injectors import InjectorWriter

        return InjectorWriter(self.options["settings"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        from millstream.spark.injectors import WholeWriter

        return WholeWriter(self.options["settings"])


SOURCES = (InjectorSink,)
