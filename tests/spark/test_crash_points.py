"""The driver, its Java process and all its workers die at every named point of an epoch, one after the other, on one folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from millstream.log.status import status_of
from tests.kills import Fault, check, check_replays, kill_tree, start, write_clicks

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

PATIENCE = 180.0

# What of its epoch is on the disk when a run dies: each step of the protocol adds one thing.
STANDS = {
    "after an injector's commit": ("offsets", "committed"),
    "after the offset log": ("offsets",),
    "mid-task": ("offsets",),
    "after the state commit": ("offsets", "state"),
    "after the manifest": ("offsets", "state", "manifest"),
    "after Spark's commit log": ("offsets", "state", "manifest", "commits"),
    "before the publishing commit": ("offsets", "state", "manifest", "commits"),
    "after the publishing commit": ("offsets", "state", "manifest", "commits", "published"),
    "after a delivery's commit": ("offsets", "committed"),
}


def ended(base: Path, process: subprocess.Popen[bytes]) -> int:
    """What it returned; nothing of it is left, however it ended."""
    try:
        return process.wait(PATIENCE)
    finally:
        if process.poll() is None:
            kill_tree(process)


def die(base: Path, point: str) -> dict[str, object]:
    """Run until the fault befalls it; what the fault found."""
    run = base / "run"
    epoch = max(1, status_of(run).epoch + 1) if (run / "topology.json").exists() else 1
    fault = Fault(point, epoch=0 if "injector" in point or "delivery" in point else epoch)
    assert ended(base, start(base, fault)) == -9, (base / "run.log").read_text()[-3000:]
    found: dict[str, object] = json.loads(fault.fired(base).read_text())
    return found


@pytest.mark.soak
def test_a_run_killed_at_every_point_of_an_epoch_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    files = 5 + 3 * len(STANDS)
    write_clicks(tmp_path / "clicks", records=1_000 * files, files=files, seed=5)
    epochs: dict[str, object] = {}
    for point, stands in STANDS.items():
        found = die(tmp_path, point)
        epochs[point] = found["epoch"]
        assert tuple(name for name in found if found[name] is True) == stands, point
    assert ended(tmp_path, start(tmp_path)) == 0, (tmp_path / "run.log").read_text()[-3000:]
    assert check(tmp_path) > len(STANDS)
    assert check_replays(tmp_path) >= {epochs[point] for point in ("mid-task", "after the state commit", "after the manifest")}
