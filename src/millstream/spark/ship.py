"""Taking a topology to Spark's Python processes, and keeping it there from epoch to epoch."""

from __future__ import annotations

import base64
import functools
import pickle
import zlib

from millstream.core.graph import Graph
from millstream.shipping.graphs import pickled_graph


def pack(graph: Graph) -> str:
    """The graph as text for an option of a data source."""
    return base64.b64encode(zlib.compress(pickled_graph(graph), 1)).decode()


@functools.lru_cache(maxsize=8)
def unpack(packed: str) -> Graph:
    """The graph, made once in each process."""
    # It was pickled by the driver of this very run: nothing from outside comes this way.
    graph: Graph = pickle.loads(zlib.decompress(base64.b64decode(packed)))  # noqa: S301
    return graph
