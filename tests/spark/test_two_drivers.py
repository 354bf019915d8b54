"""Drivers that were stopped and wake up again, when another one has long taken over their folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import psutil
import pytest

from millstream.log.status import status_of
from tests.kills import Fault, check, kill_tree, start, write_clicks
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(2400)]


def stop_at(base: Path, point: str, *, epoch: int, log: str) -> subprocess.Popen[bytes]:
    """A run that is stopped at a point, every process of it."""
    fault = Fault(point, "stop all", epoch)
    process = start(base, fault, log=log)
    wait_until(lambda: process.poll() is not None or psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, 180)
    assert json.loads(fault.fired(base).read_text())["point"] == point, (base / log).read_text()[-3000:]
    (base / "run" / "lock").unlink()  # as on a file system whose locks do not hold: only the fence stands between them
    return process


def wake(process: subprocess.Popen[bytes]) -> None:
    for member in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        member.resume()


def test_older_drivers_that_wake_up_change_nothing_and_say_why_they_stop(tmp_path: Path) -> None:
    write_clicks(tmp_path / "clicks", records=30_000, files=30, seed=6)
    run = tmp_path / "run"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(stop_at(tmp_path, "before the publishing commit", epoch=1, log="first.log"))
        processes.append(stop_at(tmp_path, "after the manifest", epoch=3, log="second.log"))
        newest = start(tmp_path, log="run.log")
        processes.append(newest)
        wait_until(lambda: newest.poll() is not None or status_of(run).epoch >= 5, 180)
        assert newest.poll() is None, (tmp_path / "run.log").read_text()[-3000:]
        for older in processes[:2]:
            wake(older)
        for older, log in zip(processes, ("first.log", "second.log"), strict=False):
            assert older.wait(120) == 1
            assert f"a newer run owns {run}" in (tmp_path / log).read_text()
        assert newest.wait(240) == 0, (tmp_path / "run.log").read_text()[-3000:]
    finally:
        for process in processes:
            if process.poll() is None:
                kill_tree(process)
    assert check(tmp_path) > 5
