"""Taking a topology to Spark's Python processes, and keeping it there from epoch to epoch."""

from __future__ import annotations

import base64
import functools
import io
import zlib
from dataclasses import replace
from typing import Any

from pyspark import cloudpickle

from millstream.core.graph import Graph
from millstream.core.mill import Mill
from millstream.injector import FileSource, Format, Source


def pack(graph: Graph) -> str:
    """The graph as text for an option of a data source, without what has its place in the driver only."""
    injections = {name: replace(injection, source=_portable(injection.source)) for name, injection in graph.injections.items()}
    portable = replace(graph, injections=injections, deliveries={})
    buffer = io.BytesIO()
    _Pickler(buffer).dump(portable)  # type: ignore[no-untyped-call]
    return base64.b64encode(zlib.compress(buffer.getvalue(), 1)).decode()


class _Pickler(cloudpickle.Pickler):
    """Leaves out what msgspec remembers in the classes that it has seen: it does not travel, and is found anew."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and "__msgspec_cache__" in vars(obj):
            delattr(obj, "__msgspec_cache__")
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=8)
def unpack(packed: str) -> Graph:
    """The graph, made once in each process."""
    # It was pickled by the driver of this very run: nothing from outside comes this way.
    graph: Graph = cloudpickle.loads(zlib.decompress(base64.b64decode(packed)))
    return graph


@functools.lru_cache(maxsize=8)
def mill_of(packed: str) -> Mill:
    """The mill with its decoders, made once in each process."""
    return Mill(unpack(packed))


def _portable(source: Source[object]) -> Source[object]:
    """A frame or an iterator stays in the driver; the tasks need the value's type only."""
    if isinstance(source, FileSource):
        return source
    return FileSource("", source.value_type, Format.JSON_LINES, source.bounded)
