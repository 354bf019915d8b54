"""A run that is killed again and again, and what must be true of it afterwards."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil
from deltalake import DeltaTable

import millstream as ms
from millstream.log.status import status_of
from tests.program import NO_ROWS, WINDOW, Click, Seen, Total, Visits
from tests.waiting import wait_until

SABOTAGE = Path(__file__).parent / "sabotage"
START = datetime(2026, 1, 1, tzinfo=UTC)
PACE = 0.02  # seconds between two helpings of views
VIEWS = 10  # in each
HELPINGS_PER_FILE = 25  # of clicks
CLICKS = 200


class Input:
    """What the program reads: files of clicks, those that Spark reads, and a file of views that grows. Event time goes on with
    every record."""

    def __init__(self, base: Path, seed: int) -> None:
        self._base, self._chance = base, random.Random(seed)
        for folder in ("clicks", "frames"):
            (base / folder).mkdir(parents=True)
        (base / "views.jsonl").touch()
        self.files = self.views = 0

    def add_clicks(self, count: int = CLICKS) -> None:
        """A file that appears whole, with a disorder of a few seconds and no late records."""
        first = self.files * CLICKS
        lines = [self._line((first + n) * 0.1 + self._chance.uniform(0, 4)) for n in range(count)]
        self._appear("clicks", lines)
        self._appear("frames", lines[: count // 4])
        self.files += 1

    def _appear(self, folder: str, lines: list[str]) -> None:
        aside = self._base / folder / f".{self.files}.tmp"
        aside.write_text("".join(lines))
        aside.rename(self._base / folder / f"{self.files:06d}.jsonl")

    def add_views(self, count: int = VIEWS) -> None:
        """In the order of time, so that there is one way only to number them."""
        lines = [self._line((self.views + n) * 0.02) for n in range(count)]
        with (self._base / "views.jsonl").open("a") as file:
            file.write("".join(lines))
        self.views += count

    def _line(self, seconds: float) -> str:
        chance, at = self._chance, START + timedelta(seconds=seconds)
        return json.dumps({"user": f"u{chance.randrange(50)}", "page": f"/{chance.randrange(12)}", "at": at.isoformat()}) + "\n"


@contextlib.contextmanager
def feeding(given: Input) -> Iterator[None]:
    """Something comes all the time."""
    over = threading.Event()

    def feed() -> None:
        for helping in itertools.count():
            given.add_views()
            if helping % HELPINGS_PER_FILE == 0:
                given.add_clicks()
            if over.wait(PACE):
                return

    thread = threading.Thread(target=feed, name="feeds", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# What must come out.


@dataclass
class Results:
    """What was delivered, or has to be. Of `totals` and `seen` the order counts, key by key."""

    visits: Counter[str]
    totals: dict[str, list[str]]
    seen: dict[str, list[str]]

    @property
    def records(self) -> int:
        return self.visits.total() + sum(map(len, self.totals.values())) + sum(map(len, self.seen.values()))


def expected(base: Path) -> Results:
    """By hand: a fold over the input in plain Python."""
    lines = [line for file in sorted((base / "clicks").glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    views = [msgspec.json.decode(line, type=Click) for line in (base / "views.jsonl").read_bytes().splitlines()]
    visits: Counter[tuple[str, str, int]] = Counter()
    for click in [*(msgspec.json.decode(line, type=Click) for line in lines), *views]:
        visits[click.user, click.page, int(ms.floor(ms.to_timestamp(click.at), WINDOW) + WINDOW)] += 1
    pages: Counter[tuple[str, int]] = Counter()
    for (_, page, end), count in visits.items():
        pages[page, end] += count
    totals: dict[str, list[str]] = defaultdict(list)
    so_far: dict[str, Total] = {}
    for (page, end), count in sorted(pages.items(), key=lambda item: item[0][1]):
        old = so_far.get(page, Total())
        so_far[page] = Total(old.clicks + count, old.windows + 1)
        totals[page].append(_text(so_far[page], end))
    seen: dict[str, list[str]] = defaultdict(list)
    for view in views:
        seen[view.user].append(_text(Seen(view.page, len(seen[view.user]) + 1), int(ms.to_timestamp(view.at))))
    answered = Counter(f"{user} {_text(Visits(page, count), end)}" for (user, page, end), count in visits.items())
    return Results(answered, totals, seen)


def delivered(base: Path) -> Results:
    out = base / "out"
    rows = DeltaTable(str(out / "visits")).to_pyarrow_table().to_pylist()
    _unique("visits", [row["id"] for row in rows])
    visits = Counter(f"{row['key']} {_text(row['value'], int(ms.to_timestamp(row['timestamp'])))}" for row in rows)
    totals: dict[str, list[str]] = defaultdict(list)
    lines = [json.loads(line) for file in sorted((out / "totals").glob("*.jsonl")) for line in file.read_text().splitlines()]
    _unique("totals", [line["id"] for line in lines])
    for line in lines:
        totals[line["key"]].append(_text(line["value"], int(ms.to_timestamp(datetime.fromisoformat(line["timestamp"])))))
    seen: dict[str, list[str]] = defaultdict(list)
    steps = sorted(file for file in (out / "seen").iterdir() if not file.suffix)
    assert [int(file.name) for file in steps] == list(range(len(steps))), "steps have no gap"
    assert not list((out / "seen").glob("*.other")), "a step that was repeated is the same"
    for file in steps:
        for key, value, timestamp in map(json.loads, file.read_text().splitlines()):
            seen[key].append(_text(value, timestamp))
    return Results(visits, totals, seen)


def rows_of(base: Path) -> dict[str, list[str]]:
    """The same records, as they stand in a database, by key."""
    found: dict[str, list[str]] = defaultdict(list)
    with contextlib.closing(sqlite3.connect(base / "out" / "rows.db")) as database:
        rows = database.execute("select id, key, value, timestamp from records order by rowid").fetchall()
    _unique("rows", [id_ for id_, *_ in rows])
    for _, key, value, timestamp in rows:
        found[key].append(_text(json.loads(value), timestamp))
    return found


def _unique(name: str, ids: Sequence[str]) -> None:
    assert len(set(ids)) == len(ids), f"{name}: an id was delivered twice"


def _text(value: object, at: int) -> str:
    return f"{msgspec.json.encode(value).decode()} {at}"


def check(base: Path) -> int:
    """A run that has come to its end: all that must be is delivered once and in order, and the log has it too; returns its epochs."""
    want, have = expected(base), delivered(base)
    assert have.seen == want.seen
    if NO_ROWS not in os.environ:
        assert rows_of(base) == want.seen, "a target with transactions of its own"
    assert have.visits == want.visits
    assert have.totals == want.totals
    frames = _check_frames(base)
    status = status_of(base / "run")
    clicks = sum(len(file.read_bytes().splitlines()) for file in (base / "clicks").glob("*.jsonl"))
    views = sum(map(len, want.seen.values()))
    assert {name: injector.injected for name, injector in status.injectors.items()} == {
        "clicks": clicks,
        "views": views,
        "frames": frames,
    }
    tallies = {name: computation.tally for name, computation in status.computations.items()}
    assert all(tally.received == tally.applied for tally in tallies.values()), tallies
    pages = sum(map(len, want.totals.values()))
    assert {name: tally.fired for name, tally in tallies.items()} == {
        "per-user": want.visits.total(),  # a timer for each of its windows
        "per-page": pages,
        "growing": 0,
        "numbered": 0,
        "counted": 0,
    }
    log = DeltaTable(str(base / "run" / "log")).to_pyarrow_table(columns=["stream", "origin", "major", "minor"]).to_pylist()
    assert len({tuple(row.values()) for row in log}) == len(log), "the log has a record twice"
    found = Counter(row["stream"] for row in log)
    assert found == {
        "clicks": clicks,
        "views": views,
        "per-user.visits": want.visits.total(),
        "per-page.clicks": pages,
        "growing.totals": pages,
        "frames": frames,
        "counted.counts": frames,
    }
    return status.epoch


def _check_frames(base: Path) -> int:
    """What Spark has read is counted without a gap; returns how much that is."""
    lines = [line for file in (base / "frames").glob("*.jsonl") for line in file.read_bytes().splitlines()]
    want = Counter(msgspec.json.decode(line, type=Click).user for line in lines)
    rows = DeltaTable(str(base / "out" / "counts")).to_pyarrow_table().to_pylist()
    _unique("counts", [row["id"] for row in rows])
    assert Counter((row["key"], row["value"]) for row in rows) == Counter(
        (user, n + 1) for user, count in want.items() for n in range(count)
    )
    return len(lines)


# Runs and what befalls them.


def sabotaged() -> dict[str, str]:
    """The environment of a process that `tests/sabotage` looks over the shoulder of."""
    return {"PYTHONPATH": f"{SABOTAGE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@dataclass(frozen=True)
class Fault:
    """Something that befalls a run at a point; see `tests/sabotage`. `after` is the fault that must have come first."""

    point: str
    deed: str = "kill"
    after: str | None = None
    skip: int = 0  # times that a process passes the point unharmed

    def fired(self, base: Path) -> Path:
        return base / "fired" / f"{self.point}.json"

    def found(self, base: Path) -> dict[str, object]:
        """What the one who did it saw at that moment."""
        found: dict[str, object] = json.loads(self.fired(base).read_text())
        return found


def in_turn(*points: str) -> list[Fault]:
    """Faults that come one after the other."""
    return [Fault(point, after=before) for before, point in itertools.pairwise([None, *points]) if point is not None]


def environment(base: Path, faults: Sequence[Fault]) -> dict[str, str]:
    (base / "fired").mkdir(exist_ok=True)
    plan = {
        "folder": str(base / "run"),
        "fired": str(base / "fired"),
        "root": str(base / "root"),
        "faults": [{"point": fault.point, "deed": fault.deed, "after": fault.after, "skip": fault.skip} for fault in faults],
    }
    return {"MILLSTREAM_FAULTS": json.dumps(plan), **sabotaged()}


def start(
    base: Path, faults: Sequence[Fault] = (), *, last: bool = False, roomy: bool = False, log: str = "run.log"
) -> subprocess.Popen[bytes]:
    """The program in a process of its own; the last one comes to the end of the input, and ends."""
    words = [sys.executable, "-m", "tests.program", str(base), *(["--last"] if last else []), *(["--roomy"] if roomy else [])]
    with (base / log).open("ab") as into:
        process = subprocess.Popen(words, stdout=into, stderr=into, env={**os.environ, **environment(base, faults)})
    (base / "root").write_text(str(process.pid))
    return process


def run_to_the_end(base: Path, *, seconds: float = 180.0) -> None:
    """The last run, with nobody to harm it."""
    process = start(base, last=True)
    try:
        assert process.wait(seconds) == 0, output_of(base)
    finally:
        if process.poll() is None:
            kill_tree(process)


def output_of(base: Path, log: str = "run.log") -> str:
    """What a run said last."""
    return (base / log).read_text()[-4000:]


def answers(base: Path, process: subprocess.Popen[bytes], *, seconds: float = 120.0) -> None:
    """Until the run has delivered a further step of views: they are the first answer of all, and have no gap."""
    folder = base / "out" / "seen"
    newest = max((int(file.stem) for file in folder.iterdir()), default=-1) if folder.exists() else -1
    following = folder / f"{newest + 1:09d}"
    wait_until(lambda: process.poll() is not None or following.exists(), seconds)
    assert process.poll() is None, output_of(base)


def processes(process: subprocess.Popen[bytes] | psutil.Process, kind: str) -> list[psutil.Process]:
    """Those of a run that are of a kind: `lane` (as a process of Spark's runs one), `planner`, `writer`, `java`."""
    found = []
    for member in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if _kind(member) == kind:
                found.append(member)
    return found


def _kind(member: psutil.Process) -> str:
    words = " ".join(member.cmdline())
    for kind, module in {"planner": "millstream.mill", "writer": "millstream.writer"}.items():
        if f"-m {module} " in words:
            return kind
    if member.name() == "java":
        return "java"
    parent = member.parent()
    forked = parent is not None and parent.name() != "java" and "daemon" in words  # by Spark's daemon
    return "lane" if forked and "MILLSTREAM_LANE" in member.environ() else ""


def kill_tree(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL for the process and everything below it; returns how many died."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)
    process.wait()
    return len(family)
