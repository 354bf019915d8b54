"""The README's topology, by hand, its input and output where the benchmark wants them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millstream as ms

EXAMPLE = Path(__file__).parent.parent / "examples" / "by_hand.py"


def topology_of(queries: Path, counts: Path, *, bounded: bool = True) -> ms.Topology:
    return topology_over(_files(queries, bounded=bounded), counts)


def topology_over(source: Callable[[Any], ms.Source[Any]], counts: Path) -> ms.Topology:
    """With a source that is made of the type of its values."""
    readme = _readme()
    topology = ms.Topology("bench")
    per_second = readme.PerSecond()
    topology.compute("per-second", per_second).reads(_inject(topology, source(readme.Query)), late=ms.Late.DROP)
    topology.deliver("counts", per_second.counts, ms.delta(str(counts)))
    return topology


class Running(ms.Computation[int]):
    """How many records a key has had, told with every record."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Any]) -> None:
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)


def running_topology(queries: Path, counts: Path) -> ms.Topology:
    topology = ms.Topology("bench")
    running = Running()
    topology.compute("running", running).reads(_inject(topology, _files(queries, bounded=True)(_readme().Query)))
    topology.deliver("counts", running.counts, ms.delta(str(counts)))
    return topology


def _readme() -> Any:
    spec = importlib.util.spec_from_file_location("by_hand", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    sys.modules["by_hand"] = readme
    return readme


def _files(queries: Path, *, bounded: bool) -> Callable[[Any], ms.Source[Any]]:
    return lambda kind: ms.files(f"{queries}/*.jsonl", kind, bounded=bounded)


def _inject(topology: ms.Topology, source: ms.Source[Any]) -> ms.Stream[Any]:
    return topology.inject(
        "queries",
        source,
        key=lambda query: query.text,
        timestamp=lambda query: query.at,
        low_watermark=ms.BoundedDisorder(2 * ms.SECOND),
    )
