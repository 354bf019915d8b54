"""Taking a topology to Spark's Python processes, and keeping it there from epoch to epoch."""

from __future__ import annotations

import base64
import functools
import io
import sys
import sysconfig
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

from pyspark import cloudpickle

from millstream.core.graph import Graph
from millstream.injector import FileSource, Format, Source


def pack(graph: Graph) -> str:
    """The graph as text for an option of a data source, without what has its place in the driver only."""
    injections = {name: replace(injection, source=_portable(injection.source)) for name, injection in graph.injections.items()}
    portable = replace(graph, injections=injections, deliveries={})
    return base64.b64encode(zlib.compress(pickled(portable), 1)).decode()


def pickled(what: Any) -> bytes:
    """For another process of this run: the user's own classes travel by value."""
    buffer = io.BytesIO()
    with _by_value(_own_modules()):
        _Pickler(buffer).dump(what)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def _own_modules() -> list[ModuleType]:
    """The user's own modules: what is not installed, and so may not be found by Spark's workers."""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    ours = (__package__ or "").partition(".")[0]
    return [
        module
        for name, module in sys.modules.items()
        if name not in ("__main__", "__mp_main__") and name.partition(".")[0] not in (ours, "pyspark", "py4j")
        if (file := getattr(module, "__file__", None)) is not None and not any(file.startswith(place) for place in installed)
    ]


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    """They travel with the topology, as `__main__` does."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


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


def _portable(source: Source[object]) -> Source[object]:
    """A frame or an iterator stays in the driver; the tasks need the value's type only."""
    if isinstance(source, FileSource):
        return source
    return FileSource("", source.value_type, Format.JSON_LINES, source.bounded)
