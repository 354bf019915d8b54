"""A run that is killed again and again, and what must be true of it afterwards."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil
from deltalake import DeltaTable

import millstream as ms
from millstream.core.epoch import Header
from millstream.core.graph import compile_topology
from millstream.core.plan import Ledger
from millstream.log.status import status_of
from millstream.log.table import newest_version, read_commit
from tests.checker import Checker
from tests.invariants import Attempt, contiguous_ledger, equal_input_on_replay, low_watermarks_monotone
from tests.program import WINDOW, Click, Total, Visits, topology_of

SABOTAGE = Path(__file__).parent / "sabotage"
START = datetime(2026, 1, 1, tzinfo=UTC)


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
    found = list(ledgers(run))
    for before, after in itertools.pairwise(found):
        contiguous_ledger(before, after)
        low_watermarks_monotone(before, after)
    return len(found)


def check(base: Path) -> int:
    """A drained run: delivered is what must be, every timer fired once, and the log keeps the invariants; returns its epochs."""
    want = expected(base / "clicks")
    assert delivered(base / "out") == want
    fired = {name: computation.tally.fired for name, computation in status_of(base / "run").computations.items()}
    assert fired == timers(want)
    checker = Checker(base / "run", compile_topology(topology_of(base / "clicks", base / "out")))
    checker.end()
    return checker.epochs


def check_replays(base: Path) -> set[int]:
    """Whatever was tried again was given the same; returns the epochs that were."""
    first: dict[tuple[int, int], Attempt] = {}
    again: set[int] = set()
    for line in (base / "witness").read_bytes().splitlines():
        bucket, header, *given = msgspec.json.decode(line, type=tuple[int, Header, int, int])
        attempt = Attempt(header, given)
        if (known := first.setdefault((header.epoch, bucket), attempt)) is not attempt:
            equal_input_on_replay(known, attempt)
            again.add(header.epoch)
    return again


def timers(want: dict[str, Counter[str]]) -> dict[str, int]:
    """How many timers each computation fires: one for each of its windows."""
    return {"per-user": want["visits"].total(), "per-page": want["totals"].total(), "growing": 0}


def sabotaged() -> dict[str, str]:
    """The environment of a process that `tests/sabotage` looks over the shoulder of."""
    return {"PYTHONPATH": f"{SABOTAGE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@dataclass(frozen=True)
class Fault:
    """Something that befalls a run; see `tests/sabotage`."""

    point: str
    deed: str = "kill all"
    epoch: int = 0  # the first in which it may happen

    def fired(self, base: Path) -> Path:
        return base / "fired" / f"{self.point}.json"

    def environment(self, base: Path) -> dict[str, str]:
        self.fired(base).parent.mkdir(exist_ok=True)
        told = {**asdict(self), "fired": str(self.fired(base)), "folder": str(base / "run"), "root": str(base / "root")}
        return {"MILLSTREAM_FAULT": json.dumps(told), **sabotaged()}


def start(base: Path, fault: Fault | None = None, *, log: str = "run.log") -> subprocess.Popen[bytes]:
    """The topology in a process of its own."""
    environment = {**os.environ, **(fault.environment(base) if fault else sabotaged()), "MILLSTREAM_WITNESS": str(base / "witness")}
    with (base / log).open("ab") as words:
        process = subprocess.Popen([sys.executable, "-m", "tests.program", str(base)], stdout=words, stderr=words, env=environment)
    (base / "root").write_text(str(process.pid))
    return process


def kill_tree(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL for the process and everything below it; returns how many died."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)
    process.wait()
    return len(family)
