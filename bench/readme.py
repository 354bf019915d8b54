"""The README's topology, its input and output where the benchmark wants them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import millstream as ms

EXAMPLE = Path(__file__).parent.parent / "examples" / "readme.py"


def topology_of(queries: Path, counts: Path, *, bounded: bool = True) -> ms.Topology:
    spec = importlib.util.spec_from_file_location("readme", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    import sys

    sys.modules["readme"] = readme
    topology = ms.Topology("bench")
    stream = topology.inject(
        "queries",
        ms.files(f"{queries}/*.jsonl", readme.Query, bounded=bounded),
        key=lambda query: query.text,
        timestamp=lambda query: query.at,
        low_watermark=ms.BoundedDisorder(2 * ms.SECOND),
    )
    per_second = readme.PerSecond()
    topology.compute("per-second", per_second).reads(stream, late=ms.Late.DROP)
    topology.deliver("counts", per_second.counts, ms.delta(str(counts)))
    return topology
