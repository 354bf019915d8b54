"""A program of a user's, complete in itself: clicks counted by user, by page and since the beginning, exactly once."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import millstream as ms

WINDOW = 10 * ms.SECOND


@dataclass(frozen=True)
class Click:
    user: str
    page: str
    at: datetime


@dataclass(frozen=True)
class Visits:
    page: str
    clicks: int


class PerUser(ms.Computation[dict[str, int]]):
    """A user's clicks on each page, window by window."""

    visits: ms.Output[Visits]

    def process_record(self, record: ms.Record[Click]) -> None:
        end = ms.floor(record.timestamp, WINDOW) + WINDOW
        slot = f"{int(end)} {record.value.page}"
        self.state[slot] = self.state.get(slot, 0) + 1
        self.set_timer(slot, at=end)

    def process_timer(self, timer: ms.Timer) -> None:
        clicks = self.state.pop(timer.tag)
        self.visits.produce(Visits(timer.tag.split()[1], clicks), timestamp=timer.at)


class PerPage(ms.Computation[dict[str, int]]):
    """A page's clicks of all users, window by window."""

    clicks: ms.Output[int]

    def process_record(self, record: ms.Record[Visits]) -> None:
        slot = f"{int(record.timestamp)}"
        self.state[slot] = self.state.get(slot, 0) + record.value.clicks
        self.set_timer(slot, at=record.timestamp + WINDOW, hold=record.timestamp)

    def process_timer(self, timer: ms.Timer) -> None:
        assert timer.hold is not None
        self.clicks.produce(self.state.pop(timer.tag), timestamp=timer.hold)


@dataclass
class Total:
    clicks: int = 0
    windows: int = 0


class Growing(ms.Computation[Total]):
    """A page's clicks since the beginning, told once a window, in order."""

    totals: ms.Output[Total]

    def process_record(self, record: ms.Record[int]) -> None:
        self.state.clicks += record.value
        self.state.windows += 1
        self.totals.produce(Total(self.state.clicks, self.state.windows), timestamp=record.timestamp)


def topology_of(clicks: Path, out: Path) -> ms.Topology:
    """Three computations, keyed by user and by page. Nothing in it depends on how records fall into epochs."""
    topology = ms.Topology("clicks")
    source = ms.files(f"{clicks}/*.jsonl", Click, bounded=True)
    stream = topology.inject(
        "clicks", source, key=lambda c: c.user, timestamp=lambda c: c.at, low_watermark=ms.BoundedDisorder(5 * ms.SECOND)
    )
    per_user, per_page, growing = PerUser(), PerPage(), Growing()
    topology.compute("per-user", per_user).reads(stream)
    topology.compute("per-page", per_page).reads(per_user.visits.by(lambda visits: visits.page))
    topology.compute("growing", growing).reads(per_page.clicks)
    topology.deliver("visits", per_user.visits, ms.delta(str(out / "visits")))
    topology.deliver("totals", growing.totals, ms.delta(str(out / "totals")))
    return topology


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    base: Path = parser.parse_args().base
    options = ms.Options(records_an_epoch=4_000, bytes_an_epoch=200_000)
    ms.run(topology_of(base / "clicks", base / "out"), at=base / "run", until=ms.DRAINED, options=options)


if __name__ == "__main__":
    main()
