"""`make soak`: kill -9 of the whole process tree at random moments, again and again; then nothing is lost and nothing doubled."""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream.log.folder import read_json
from millstream.log.status import Owner, status_of
from tests.kills import check_ledgers, delivered, expected, kill_tree, start, write_clicks


@dataclass(frozen=True)
class Outcome:
    """What a soak saw."""

    kills: int
    killed_under_way: int  # kills that hit after the run had owned its folder
    epochs: int
    records: int
    lost: int
    doubled: int


def soak(base: Path, *, seconds: float, most_kills: int, records: int, seed: int) -> Outcome:
    """Kill until the time is over, the kills are used up or the run has ended by itself; then let it drain, and compare."""
    chance = random.Random(seed)
    write_clicks(base / "clicks", records=records, files=max(20, records // 1000), seed=seed)
    deadline = time.monotonic() + seconds
    kills = under_way = 0
    while kills < most_kills and time.monotonic() < deadline:
        process = start(base)
        if chance.random() < 0.9:
            _wait(process, lambda pid=process.pid: _owner(base / "run") is not None and _owner(base / "run").process == pid, 120)  # type: ignore[misc, union-attr]
        patience = chance.uniform(0, 30)
        _wait(process, lambda: False, patience)
        if process.poll() is not None:
            if process.returncode != 0:
                raise RuntimeError((base / "run.log").read_text()[-3000:])
            break
        owner = _owner(base / "run")
        kill_tree(process)
        kills, under_way = kills + 1, under_way + (owner is not None and owner.process == process.pid)
        print(f"kill {kills}, {patience:.0f} s after it began:", _progress(base / "run"), flush=True)
    process = start(base)
    if process.wait() != 0:
        raise RuntimeError((base / "run.log").read_text()[-3000:])
    want, have = expected(base / "clicks"), delivered(base / "out")
    lost = sum(sum((want[name] - have[name]).values()) for name in want)
    doubled = sum(sum((have[name] - want[name]).values()) for name in want)
    fired = {name: c.tally.fired for name, c in status_of(base / "run").computations.items()}
    assert fired["per-user"] == sum(want["visits"].values()), "a timer fired twice or never"
    return Outcome(kills, under_way, check_ledgers(base / "run"), records, lost, doubled)


def _wait(process: subprocess.Popen[bytes], condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None and not condition():
        time.sleep(0.05)


def _owner(run: Path) -> Owner | None:
    return read_json(run / "run" / "owner.json", Owner)


def _progress(run: Path) -> str:
    if not (run / "topology.json").exists():
        return "before the first epoch"
    status = status_of(run)
    return f"at epoch {status.epoch}, {status.injected:,} records in"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--records", type=int, default=0, help="0: enough for the time")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    told = parser.parse_args()
    print(f"seed {told.seed}")
    with tempfile.TemporaryDirectory(prefix="millstream-soak-") as folder:
        records = told.records or int(told.seconds * 600)
        outcome = soak(Path(folder), seconds=told.seconds, most_kills=told.kills, records=records, seed=told.seed)
    print(
        f"{outcome.kills} kills ({outcome.killed_under_way} with the run under way), {outcome.epochs} epochs, {outcome.records:,} records: "
        f"{outcome.lost} lost, {outcome.doubled} doubled; low watermarks never moved back, every timer fired once"
    )
    if outcome.lost or outcome.doubled:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
