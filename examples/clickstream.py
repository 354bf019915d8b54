"""Visits to a site: as they are, while they last; and put right when clicks come hours late, as they do from phones."""

from dataclasses import dataclass
from datetime import datetime

import millstream as ms
from millstream import aggregate
from millstream.window import Every, Session, WindowTable


@dataclass(frozen=True)
class Click:
    user: str
    page: str
    at: datetime


@dataclass(frozen=True)
class Visit:
    clicks: int
    entry: Click
    exit: Click


topology = ms.Topology("clickstream")
clicks = topology.inject(
    "clicks",
    ms.files("clicks/*.jsonl", Click),
    key=lambda click: click.user,
    timestamp=lambda click: click.at,
    low_watermark=ms.BoundedDisorder(ms.MINUTE),
)
visits = WindowTable(
    Click,
    Session(gap=30 * ms.MINUTE),
    aggregate.combine(Visit, aggregate.count(), aggregate.first(Click), aggregate.last(Click)),
    correct=ms.DAY,
    early=Every(10 * ms.SECOND),
)
topology.compute("visits", visits).reads(clicks)
topology.deliver("visits", visits.changes, ms.delta("visits"))
topology.deliver("too late", visits.late, ms.delta("too late"))

if __name__ == "__main__":
    ms.run(topology, at="mill/")
