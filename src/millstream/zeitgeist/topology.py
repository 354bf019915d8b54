"""How Zeitgeist is wired."""

from __future__ import annotations

from dataclasses import dataclass

import millstream as ms
from millstream.zeitgeist.computations import Detector, Model, PerSecond
from millstream.zeitgeist.events import Query

DISORDER = 2 * ms.SECOND  # what comes later than this is late, and no longer counted


@dataclass(frozen=True)
class Zeitgeist:
    """The topology, and its parts for those who want to read their streams."""

    topology: ms.Topology
    queries: ms.Stream[Query]
    per_second: PerSecond
    model: Model
    detector: Detector


def zeitgeist(queries_folder: str, out_folder: str) -> Zeitgeist:
    """Reads the JSON lines of one folder; leaves the Delta tables `comparisons` and `findings` in the other."""
    topology = ms.Topology("zeitgeist")
    queries = topology.inject(
        "queries",
        ms.files(f"{queries_folder}/*.jsonl", Query, bounded=True),
        key=lambda query: query.text,
        timestamp=lambda query: query.at,
        low_watermark=ms.BoundedDisorder(DISORDER),
    )
    per_second, model, detector = PerSecond(), Model(), Detector()
    topology.compute("per-second", per_second).reads(queries, late=ms.Late.DROP)
    topology.compute("model", model).reads(per_second.counts)
    topology.compute("detector", detector).reads(per_second.counts, model.forecasts)
    topology.deliver("comparisons", detector.comparisons, ms.delta(f"{out_folder}/comparisons"))
    topology.deliver("findings", detector.findings, ms.delta(f"{out_folder}/findings"))
    return Zeitgeist(topology, queries, per_second, model, detector)
