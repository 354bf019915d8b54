"""A run that is killed again and again, and what must be true of it afterwards."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil
from deltalake import DeltaTable

import millstream as ms
from millstream.core.plan import Ledger
from millstream.log.table import newest_version, read_commit

START = datetime(2026, 1, 1, tzinfo=UTC)
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


def write_clicks(folder: Path, *, records: int, files: int, seed: int) -> None:
    """Disorder of a few seconds, and no late records."""
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    each = records // files
    for number in range(files):
        lines = []
        for n in range(each):
            at = START + timedelta(seconds=(number * each + n) * 600 / records + chance.uniform(0, 4))
            lines.append(json.dumps({"user": f"u{chance.randrange(200)}", "page": f"/{chance.randrange(20)}", "at": at.isoformat()}))
        (folder / f"{number:04d}.jsonl").write_text("\n".join(lines) + "\n")
        time.sleep(0.003)  # Spark reads files in the order of their times


def expected(clicks: Path) -> dict[str, Counter[str]]:
    """By hand: what the topology must deliver."""
    visits: Counter[tuple[str, str, int]] = Counter()
    for file in sorted(clicks.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            click = msgspec.json.decode(line, type=Click)
            end = ms.floor(ms.to_timestamp(click.at), WINDOW) + WINDOW
            visits[click.user, click.page, int(end)] += 1
    pages: Counter[tuple[str, int]] = Counter()
    for (_, page, end), count in visits.items():
        pages[page, end] += count
    totals: list[tuple[str, Total, int]] = []
    so_far: dict[str, Total] = {}
    for (page, end), count in sorted(pages.items(), key=lambda item: item[0][1]):
        old = so_far.get(page, Total())
        so_far[page] = Total(old.clicks + count, old.windows + 1)
        totals.append((page, so_far[page], end))
    return {
        "visits": Counter(_text(user, Visits(page, count), end) for (user, page, end), count in visits.items()),
        "totals": Counter(_text(page, total, end) for page, total, end in totals),
    }


def delivered(out: Path) -> dict[str, Counter[str]]:
    found = {}
    for name in ("visits", "totals"):
        rows = DeltaTable(str(out / name)).to_pyarrow_table().to_pylist()
        found[name] = Counter(_text(row["key"], row["value"], int(ms.to_timestamp(row["timestamp"]))) for row in rows)
        ids = [row["id"] for row in rows]
        assert len(set(ids)) == len(ids), f"{name}: an id was delivered twice"
    return found


def _text(key: str, value: object, at: int) -> str:
    return f"{key} {msgspec.json.encode(value).decode()} {at}"


def ledgers(run: Path) -> Iterator[Ledger]:
    """All that the mill published, in order."""
    table = run / "log" / "mill"
    for version in range(newest_version(table) + 1):
        commit = read_commit(table, "mill", version)
        if commit is not None and commit.note is not None:
            yield msgspec.json.decode(commit.note, type=Ledger)


def check_ledgers(run: Path) -> int:
    """Epochs follow each other without a gap, and no low watermark moves back; returns how many epochs there were."""
    last: Ledger | None = None
    epochs = 0
    for ledger in ledgers(run):
        if last is not None:
            assert ledger.plan.epoch == last.plan.epoch + 1, (ledger.plan.epoch, last.plan.epoch)
            assert ledger.plan.now >= last.plan.now
            for name, old in last.plan.low_watermarks.items():
                assert ledger.plan.low_watermarks[name].input >= old.input, (ledger.plan.epoch, name)
            for name, promise in last.plan.promises.items():
                assert ledger.plan.promises[name] >= promise
        last, epochs = ledger, epochs + 1
    return epochs


def start(base: Path) -> subprocess.Popen[bytes]:
    """The topology in a process of its own."""
    with (base / "run.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "tests.kills", str(base)], stdout=log, stderr=log)


def kill_tree(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL for the process and everything below it; returns how many died."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)
    process.wait()
    return len(family)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    base: Path = parser.parse_args().base
    options = ms.Options(records_an_epoch=4_000, bytes_an_epoch=200_000)
    ms.run(topology_of(base / "clicks", base / "out"), at=base / "run", until=ms.DRAINED, options=options)


if __name__ == "__main__":
    main()
