"""`make soak`: kill -9 of the whole process tree at random moments, again and again; then nothing is lost and nothing doubled.

A checker reads the log beside it all the time, as any reader may, and checks every epoch as it appears.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream.core.graph import compile_topology
from millstream.log.folder import read_json
from millstream.log.status import status_of
from millstream.spark.owner import Owner
from tests.checker import Checker, Watching, watching
from tests.kills import check_replays, delivered, expected, kill_tree, start, timers, write_clicks
from tests.program import topology_of

FIRST = 120.0  # seconds that a run has to take over its folder
LAST = 1800.0  # seconds for the rest of the work, when nobody kills any more
A_SECOND = 600  # records: more than runs that are killed all the time get through
SECONDS_A_KILL = 30.0  # at the most
LONGEST = 25.0  # seconds that it may live after that


@dataclass(frozen=True)
class Outcome:
    """What a soak saw."""

    kills: int
    killed_under_way: int  # kills that hit after the run had owned its folder
    epochs: int  # all of them checked
    looks: int  # of the checker, while runs were under way
    replays: int  # epochs that were under way when a kill came, and were given the same again
    records: int
    lost: int
    doubled: int


def soak(base: Path, *, seconds: float, most_kills: int, records: int, seed: int, epochs: int = 0) -> Outcome:
    """Kill until the time is over, the kills are used up or the run has ended by itself; then let it drain, and compare.

    Kills come at any moment, or, if told, as soon as a run has published so many epochs.
    """
    write_clicks(base / "clicks", records=records, files=max(20, records // 1000), seed=seed)
    checker = Checker(base / "run", compile_topology(topology_of(base / "clicks", base / "out")))
    with watching(checker) as beside:
        kills, under_way = _kill_again_and_again(base, beside, seconds=seconds, most=most_kills, chance=random.Random(seed), epochs=epochs)
        last = start(base)
        _wait(last, lambda: beside.error is not None, LAST)
        _sound(base, last, beside)
    checker.end()
    replays = len(check_replays(base))
    want, have = expected(base / "clicks"), delivered(base / "out")
    lost = sum((want[name] - have[name]).total() for name in want)
    doubled = sum((have[name] - want[name]).total() for name in want)
    fired = {name: computation.tally.fired for name, computation in status_of(base / "run").computations.items()}
    assert fired == timers(want), "a timer fired twice or never"
    return Outcome(kills, under_way, checker.epochs, beside.looks, replays, records, lost, doubled)


def _kill_again_and_again(
    base: Path, beside: Watching, *, seconds: float, most: int, chance: random.Random, epochs: int
) -> tuple[int, int]:
    """How many kills, and how many of them of a run that owned the folder."""
    run, deadline = base / "run", time.monotonic() + seconds
    kills = under_way = 0
    while kills < most and time.monotonic() < deadline:
        process = start(base)
        owned = lambda pid=process.pid: _owner(run) == pid  # noqa: E731
        if chance.random() < 0.9:  # the others are killed wherever their start has come to
            _wait(process, owned, FIRST)
        began = time.monotonic()
        _wait(process, lambda: beside.error is not None or 0 < epochs <= _published(run), LAST if epochs else chance.uniform(0, LONGEST))
        if process.poll() is not None or beside.error is not None:
            _sound(base, process, beside)
            break
        under_way += owned()
        kills += 1
        kill_tree(process)
        print(f"kill {kills}, {time.monotonic() - began:.0f} s after it began:", _progress(run), flush=True)
    return kills, under_way


def _sound(base: Path, process: subprocess.Popen[bytes], beside: Watching) -> None:
    """The run has ended well, and the checker has nothing to say."""
    if process.poll() is None:
        kill_tree(process)
    if beside.error is not None:
        raise beside.error
    if process.returncode != 0:
        raise RuntimeError((base / "run.log").read_text()[-3000:])


def _wait(process: subprocess.Popen[bytes], condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None and not condition():
        time.sleep(0.05)


def _owner(run: Path) -> int | None:
    owner = read_json(run / "run" / "owner.json", Owner)
    return None if owner is None else owner.process


def _published(run: Path) -> int:
    return status_of(run).epoch if (run / "topology.json").exists() else -1


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
        records = told.records or int(told.seconds * A_SECOND)
        outcome = soak(Path(folder), seconds=told.seconds, most_kills=told.kills, records=records, seed=told.seed)
    print(
        f"{outcome.kills} kills ({outcome.killed_under_way} with the run under way), {outcome.epochs} epochs, each checked "
        f"as it appeared in {outcome.looks} looks, {outcome.replays} epochs run again with the same input, {outcome.records:,} records: "
        f"{outcome.lost} lost, {outcome.doubled} doubled; low watermarks never moved back, every timer fired once"
    )
    if outcome.lost or outcome.doubled:
        raise SystemExit(1)
    if outcome.kills >= 40 and not outcome.replays:
        raise SystemExit(f"{outcome.kills} kills, and none in the middle of an epoch")
    wanted = min(told.kills, int(told.seconds / SECONDS_A_KILL))
    if outcome.kills < wanted:
        raise SystemExit(
            f"only {outcome.kills} kills; {wanted} should fit into {told.seconds:.0f} s: give it more --records, or a calmer machine"
        )


if __name__ == "__main__":
    main()
