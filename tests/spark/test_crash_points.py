"""kill -9 at every named point of an epoch, of a checkpoint, of a delivery and of an injector's batch, all on one folder.

Each kill is of the process that the point is about. A lane and the writer come back by themselves; without its planner a run
ends and says so; with the driver all its processes go. The next run goes on.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.kills import Input, check, feeding, in_turn, kill_tree, output_of, run_to_the_end, start

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

TIMEOUT = 240  # seconds

# What of its step is on the disk when a process dies.
STANDS = {
    "after Spark's commit": {"committed": True},
    "before the commit": {"commit": False},
    "after the commit": {"commit": True},
    "before a reader is woken": {"commit": True},
    "between a step's begin and its call": {"called": False},
    "between a step's call and its end": {"called": True},
    "before a target's transaction": {"in the target": False},
    "after a target's transaction": {"in the target": True},
    "after the merged file": {"snapshot": False, "commits": True},
    "after the snapshot": {"snapshot": True, "commits": True},
    "before the removal of segments": {"segments": True},
    "between listed files and their ranges": {"listed": True},
    "between an injector's frames and its note": {"note": False, "committed": False},
    "between an injector's note and Spark's commit": {"note": True, "committed": False},
}

PLANNER = {
    "before the commit",
    "before the commit's folder is synced",
    "after the commit",
    "while a checkpoint is synced",
    "after the merged file",
    "after the snapshot",
    "in the removal of commits",
    "before the removal of segments",
    "in the removal of segments",
}

INJECTORS = {
    "in an injector's task",
    "between an injector's frames and its note",
    "between an injector's note and Spark's commit",
}

# One run each. It survives all but the last: not more than four of a lane, which may die five times a minute.
FEW = [
    ("after the append", "between the log's file and its entry", "in the write-back", "after the commit"),
    ("after the report", "between a table's file and its commit", "before Spark's commit", "between a step's begin and its call"),
]
ALL = [
    *FEW,
    ("after the sync", "after Spark's commit", "after the log's entry", "before the commit"),
    ("after a table's commit", "after a step of files has begun", "before the commit's folder is synced"),
    ("before a step of files has ended", "before a reader is woken"),
    ("before a target's transaction",),
    ("after a target's transaction",),
    ("after a range is read", "between a step's call and its end"),
    ("between listed files and their ranges",),
    ("while a checkpoint is synced",),
    ("after the merged file",),
    ("after the snapshot",),
    ("in the removal of commits",),
    ("before the removal of segments",),
    ("in the removal of segments",),
    ("in an injector's task",),
    ("between an injector's frames and its note",),
    ("between an injector's note and Spark's commit",),
]


def die(base: Path, *points: str) -> None:
    """A run that meets these faults one after the other, and dies of the last; nothing of it stays behind."""
    faults = in_turn(*points)
    process = start(base, faults)
    family: set[psutil.Process] = set()
    try:
        for _ in range(TIMEOUT):
            family.update(psutil.Process(process.pid).children(recursive=True))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
                break
    finally:
        if process.poll() is None:
            kill_tree(process)
    for fault in faults:
        assert fault.fired(base).exists(), f"{fault.point}: {output_of(base)}"
        found, stands = fault.found(base), STANDS.get(fault.point, {})
        assert {name: found[name] for name in stands} == stands, fault.point
    if points[-1] in INJECTORS:
        assert process.returncode == 1
        assert "injector 'frames' stopped: a Python process of Spark's died" in output_of(base)
    elif points[-1] in PLANNER:
        assert process.returncode == 1
        assert "the planner's process died (exit code -9" in output_of(base)
    else:
        assert process.returncode == -9, output_of(base)
    _, left = psutil.wait_procs(family, timeout=30)
    assert not left, "with the driver all its processes go"


def kill_at(base: Path, chains: list[tuple[str, ...]]) -> None:
    given = Input(base, seed=5)
    with feeding(given):
        for points in chains:
            die(base, *points)
    run_to_the_end(base)
    assert check(base) > 5 * len(chains)


def test_a_run_killed_at_some_points_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    kill_at(tmp_path, FEW)


@pytest.mark.soak
def test_a_run_killed_at_every_point_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    kill_at(tmp_path, ALL)
