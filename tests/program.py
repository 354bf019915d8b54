"""A program of a user's, complete in itself: clicks and views counted by user, by page and since the beginning, exactly once.

It reads files, lets Spark read others, and follows a file of lines as a source that pushes would; it delivers to every kind of target.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

import millstream as ms

WINDOW = 10 * ms.SECOND

# Where these are, if they are there.
KAFKA, POSTGRES = "MILLSTREAM_TEST_KAFKA", "MILLSTREAM_TEST_POSTGRES"
TOPIC = "seen"
NO_ROWS = "MILLSTREAM_TEST_NO_ROWS"  # for drivers that are stopped: one that holds the lock of an SQLite database keeps it


@dataclass(frozen=True)
class Click:
    user: str
    page: str
    at: datetime


@dataclass(frozen=True)
class Visits:
    page: str
    clicks: int


@dataclass(frozen=True)
class Seen:
    page: str
    number: int  # of the user's views so far


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


class Numbered(ms.Computation[int]):
    """The views of a user, numbered as they come: an answer at once."""

    seen: ms.Output[Seen] = ms.output(keep=False)

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1
        self.seen.produce(Seen(record.value.page, self.state), timestamp=record.timestamp)


class Counted(ms.Computation[int]):
    """How many clicks of a user Spark has read."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)


def follow(lines: Path, *, ends: bool) -> Callable[[int], Iterator[Click]]:
    """The lines of a file from a position on, and what is added to it. A source that can be asked again."""

    def values(position: int) -> Iterator[Click]:
        with lines.open("rb") as file:
            number = 0
            while True:
                line = file.readline()
                if line.endswith(b"\n"):
                    if number >= position:
                        yield msgspec.json.decode(line, type=Click)
                    number += 1
                elif ends:
                    return
                else:
                    file.seek(-len(line), os.SEEK_CUR)
                    time.sleep(0.005)

    return values


def frames_of(folder: Path) -> Callable[[Any], Any]:
    folder.mkdir(parents=True, exist_ok=True)
    return lambda spark: spark.readStream.schema("user string, page string, at timestamp").json(f"file://{folder}")


def tell(folder: Path) -> Callable[[int, list[ms.Record[Seen]]], None]:
    """A target without a transaction: a file a step. One that is repeated is the same, or it says so."""
    folder.mkdir(parents=True, exist_ok=True)

    def call(step: int, records: list[ms.Record[Seen]]) -> None:
        content = b"".join(msgspec.json.encode([r.key, r.value, r.timestamp]) + b"\n" for r in records)
        file = folder / f"{step:09d}"
        if file.exists() and file.read_bytes() != content:
            file.with_suffix(".other").write_bytes(content)
        aside = file.with_suffix(".tmp")
        aside.write_bytes(content)
        aside.rename(file)

    return call


def sqlite_target(path: Path) -> ms.Target:
    """The target of the examples: it lies beside this file where a user has copied both, else where it is in the project."""
    here = Path(__file__).parent
    sys.path.insert(0, str(here if (here / "sqlite_target.py").exists() else here.parent / "examples"))
    from sqlite_target import SQLite  # type: ignore[import-not-found, unused-ignore]

    return SQLite(str(path))  # type: ignore[no-any-return, unused-ignore]


def topology_of(base: Path, *, ends: bool = True) -> ms.Topology:
    """Five computations, keyed by user and by page. Nothing in it depends on how records fall into epochs."""
    topology, out = ms.Topology("clicks"), base / "out"
    usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(5 * ms.SECOND)}
    clicks = topology.inject("clicks", ms.files(f"{base}/clicks/*.jsonl", Click, bounded=ends), **usual)  # type: ignore[arg-type]
    views = topology.inject("views", ms.values(follow(base / "views.jsonl", ends=ends), Click), **usual)  # type: ignore[arg-type]
    frames = topology.inject("frames", ms.dataframe(frames_of(base / "frames"), Click), **usual)  # type: ignore[arg-type]
    per_user, per_page, growing, numbered, counted = PerUser(), PerPage(), Growing(), Numbered(), Counted()
    topology.compute("counted", counted).reads(frames)
    topology.compute("per-user", per_user).reads(clicks, views)
    topology.compute("per-page", per_page).reads(per_user.visits.by(lambda visits: visits.page))
    topology.compute("growing", growing).reads(per_page.clicks)
    topology.compute("numbered", numbered).reads(views)
    often = 200 * ms.MILLISECOND
    topology.deliver("visits", per_user.visits, ms.delta(str(out / "visits"), every=often))
    topology.deliver("totals", growing.totals, ms.to_files(str(out / "totals"), every=often))
    topology.deliver("counts", counted.counts, ms.delta(str(out / "counts"), every=often))
    topology.deliver("seen", numbered.seen, ms.function(tell(out / "seen")))
    if KAFKA in os.environ:
        topology.deliver("topic", numbered.seen, ms.to_kafka(TOPIC, servers=os.environ[KAFKA], create_partitions=3))
    if POSTGRES in os.environ:
        topology.deliver("table", numbered.seen, ms.to_postgres("seen", dsn=os.environ[POSTGRES]))
    if NO_ROWS not in os.environ:
        topology.deliver("rows", numbered.seen, sqlite_target(out / "rows.db"))
    return topology


SMALL = ms.Options(lanes=2, max_records_per_epoch=500, checkpoint_every=2 * ms.SECOND)
LARGE = ms.Options(lanes=2, max_records_per_epoch=20_000, checkpoint_every=2 * ms.SECOND)


def often() -> None:
    """What a run does once in thousands of epochs, it does once in dozens here."""
    from millstream.mill.actions import Settings
    from millstream.spark import milling

    usual = milling._settings

    def settings(options: ms.Options) -> Settings:
        return msgspec.structs.replace(usual(options), fold_every=40, positions_every=0.2, free_every=0.2, announce=0.5)

    milling._settings = settings


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("--last", action="store_true", help="to the end of what there is, and then it has ended")
    parser.add_argument("--roomy", action="store_true", help="much may wait before sources are read no further")
    arguments = parser.parse_args()
    often()
    topology, at = topology_of(arguments.base, ends=arguments.last), arguments.base / "run"
    if arguments.last:
        with ms.start(topology, at=at, options=LARGE) as run:
            while not all(run.status().injectors[name].finished for name in ("clicks", "views")) and not run.wait(0.1):
                pass
            run.drain()
    else:
        ms.run(topology, at=at, options=LARGE if arguments.roomy else SMALL)


if __name__ == "__main__":
    main()
