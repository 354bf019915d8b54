"""The first example of the README, without `Window`: a computation of one's own."""

from dataclasses import dataclass
from datetime import datetime

import millstream as ms


@dataclass(frozen=True)
class Query:
    text: str
    at: datetime


class PerSecond(ms.Computation[dict[ms.Timestamp, int]]):
    """Counts the records of a key, second by second."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Query]) -> None:
        second = ms.floor(record.timestamp, ms.SECOND)
        self.state[second] = self.state.get(second, 0) + 1
        self.set_timer(f"{second}", at=second + ms.SECOND)

    def process_timer(self, timer: ms.Timer) -> None:
        count = self.state.pop(timer.at - ms.SECOND)
        self.counts.produce(count, timestamp=timer.at)


topology = ms.Topology("zeitgeist")
queries = topology.inject(
    "queries",
    ms.files("queries/*.jsonl", Query),
    key=lambda query: query.text,
    timestamp=lambda query: query.at,
    low_watermark=ms.BoundedDisorder(2 * ms.SECOND),
)
per_second = PerSecond()
topology.compute("per-second", per_second).reads(queries, late=ms.Late.DROP)
topology.deliver("counts", per_second.counts, ms.delta("counts"))

if __name__ == "__main__":
    ms.run(topology, at="mill/")
