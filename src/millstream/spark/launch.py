"""Starting a query of a run, and starting it again where Spark was too impatient with one of its Python processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.core.graph import Graph
from millstream.log.folder import Folder, Pinned
from millstream.spark.failure import came_too_late, explained
from millstream.spark.options import Options
from millstream.spark.session import query_settings

MAX_RESTARTS = 10  # times that one query is started again


class Died(Exception):
    """A part of a run came to its end and should not have; `query` is the one whose checkpoint tells more, if there is one."""

    def __init__(self, where: str, error: BaseException, query: str | None = None) -> None:
        super().__init__(where, error, query)
        self.where, self.error, self.query = where, error, query


@dataclass
class Launcher:
    """What the queries of a run have in common. They are called `lane N` and `inject NAME`, as their checkpoints are."""

    spark: SparkSession
    folder: Folder
    graph: Graph
    packed: str  # the graph, as it travels to Spark's Python processes
    pinned: Pinned
    options: Options
    _starts: dict[str, Callable[[], StreamingQuery]] = field(default_factory=dict)
    _again: Counter[str] = field(default_factory=Counter)

    def called(self, query: str) -> str:
        """Its name in Spark. Several runs may share a session, and Spark wants its queries called differently."""
        return f"{self.graph.name} {self.pinned.id[:6]} {query}"

    def launch(self, query: str, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Start a query, inside `settings`."""
        self._starts[query] = start
        return self._launch(query)

    def again(self, query: str, dead: StreamingQuery, error: BaseException) -> StreamingQuery:
        """Start one again that a Python process kept waiting for too long; it goes on where its checkpoint is, as after any other end."""
        if not came_too_late(error) or self._again[query] >= MAX_RESTARTS:
            raise Died(where(query), error, query) from error
        self._again[query] += 1
        dead.stop()  # it may be dying still, and have its name until it is gone
        return self.relaunch(query)

    def relaunch(self, query: str) -> StreamingQuery:
        """Start one again that is gone."""
        with self.settings():
            return self._launch(query)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """What is made inside, a query or a DataFrame, has what a run needs: Spark fixes the time zone already when it makes one."""
        make_active(self.spark)
        with query_settings(self.spark, partitions=1):
            yield

    def _launch(self, query: str) -> StreamingQuery:
        _drop_unfinished(self.folder.checkpoint(query))
        try:
            return self._starts[query]()
        except (Py4JError, PySparkException) as error:
            raise Died(where(query), error, query) from error


def where(query: str) -> str:
    """A query as a message names it."""
    kind, _, name = query.partition(" ")
    return query if kind == "lane" else f"injector {name!r}"


def _drop_unfinished(checkpoint: Path) -> None:
    """What Spark was writing when it died, or when the disk was full. If there is nothing else, Spark takes it for a part of
    another query and refuses to begin."""
    for place in ("offsets", "commits"):
        for file in (checkpoint / place).glob(".*.tmp*"):  # with the checksums beside them
            file.unlink(missing_ok=True)


def make_active(spark: SparkSession) -> None:
    """Spark looks our sources and sinks up in the session that is active in the thread; making a DataFrame makes it so."""
    spark.createDataFrame([], "nothing INT")


def cause_of(died: Died, folder: Folder) -> str:
    try:
        return folder.located(explained(died.where, died.error, None if died.query is None else folder.checkpoint(died.query)))
    except Exception as error:  # whoever looks for the file to blame may stumble over it; the run must end all the same
        return f"{died.where} stopped: {died.error}; what is to blame could not be looked for: {error}"
