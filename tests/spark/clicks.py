"""Small pieces that the tests on Spark share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
T = ms.to_timestamp(NOON)


@dataclass(frozen=True)
class Click:
    user: str
    page: str
    at: datetime


def click(user: str, seconds: float, page: str = "/") -> Click:
    return Click(user, page, NOON + timedelta(seconds=seconds))


class Count(ms.Computation[int]):
    """Numbers the records of a key."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)


def write_lines(path: Path, values: Iterable[object]) -> None:
    """A file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(value, default=_plain)}\n" for value in values)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.rename(path)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return dict(vars(value))


def framed(folder: Path) -> ms.Source[Click]:
    """The same files, read by a query of Spark's."""
    return ms.dataframe(lambda spark: spark.readStream.schema("user string, page string, at timestamp").json(f"file://{folder}"), Click)


def inject(topology: ms.Topology, values: Iterable[Click], name: str = "clicks", **options: object) -> ms.Stream[Click]:
    defaults: dict[str, object] = {
        "key": lambda c: c.user,
        "timestamp": lambda c: c.at,
        "low_watermark": ms.BoundedDisorder(ms.SECOND),
    }
    return topology.inject(name, ms.values(list(values), Click), **{**defaults, **options})  # type: ignore[arg-type]


def counted_by_page(*, idle_after: ms.Duration) -> ms.Topology:
    """Clicks whose pages are the partitions of their source, counted by user."""
    topology = ms.Topology("pages")
    clicks = topology.inject(
        "clicks",
        ms.values([], Click),
        key=lambda c: c.user,
        timestamp=lambda c: c.at,
        partition=lambda c: c.page,
        low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=idle_after),
    )
    topology.compute("count", Count()).reads(clicks)
    return topology
