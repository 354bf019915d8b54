"""Drivers that were stopped and wake up again, when another one has long taken over their folder."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.kills import Fault, Input, answers, check, feeding, kill_tree, output_of, run_to_the_end, start
from tests.program import NO_ROWS
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(2400)]


def stop_at(base: Path, point: str, *, log: str) -> subprocess.Popen[bytes]:
    """A run that is stopped at a point, every process of it."""
    fault = Fault(point, "stop all", skip=20)
    process = start(base, [fault], log=log)
    wait_until(lambda: process.poll() is not None or psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, 180)
    assert fault.found(base)["point"] == point, output_of(base, log)
    (base / "run" / "lock").unlink()  # as on a file system whose locks do not hold: only the fence stands between them
    return process


def wake(process: subprocess.Popen[bytes]) -> None:
    for member in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # those that woke first may have found out, and ended the others
            member.resume()


def test_older_drivers_that_wake_up_change_nothing_and_say_why_they_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was about to commit, one had begun a step and not yet looked whether it may."""
    monkeypatch.setenv(NO_ROWS, "1")
    given = Input(tmp_path, seed=6)
    logs = {"before the commit": "first.log", "between a step's begin and its call": "second.log"}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with feeding(given):
            for point, log in logs.items():
                processes.append(stop_at(tmp_path, point, log=log))
            newest = start(tmp_path)
            processes.append(newest)
            for _ in range(5):
                answers(tmp_path, newest)
            for older in processes[:2]:
                wake(older)
            for older, log in zip(processes, logs.values(), strict=False):
                assert older.wait(120) == 1, output_of(tmp_path, log)
                assert f"a newer run owns {tmp_path / 'run'}" in (tmp_path / log).read_text()
            answers(tmp_path, newest)
            kill_tree(newest)
    finally:
        for process in processes:
            if process.poll() is None:
                kill_tree(process)
    run_to_the_end(tmp_path)
    assert check(tmp_path) > 20
