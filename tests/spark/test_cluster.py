"""On a cluster of two workers: an executor dies, and a task of it that was thought dead writes after all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import psutil
import pytest

from millstream.log.status import status_of
from millstream.log.table import newest_version, read_commit
from tests import program as program_of_a_user
from tests.kills import Fault, check, kill_tree, write_clicks
from tests.spark.cluster import cluster, executors, submit
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(2400)]


def kill_executor_of(task: int) -> int:
    """SIGKILL for the executor that runs a task and for its Python daemon; the task's own process stays as it is."""
    above = psutil.Process(task).parents()
    executor = next(process for process in above if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()))
    doomed = [executor, *(process for process in above if process.name().startswith("python") and executor in process.parents())]
    for process in doomed:
        process.kill()
    psutil.wait_procs(doomed, timeout=10)
    return executor.pid


def published(run: Path) -> set[str]:
    """The files that commits of the mill name."""
    table = run / "log" / "mill"
    commits = [read_commit(table, "mill", version) for version in range(newest_version(table) + 1)]
    return {file.path for commit in commits if commit for file in commit.files}


def test_an_executor_dies_and_its_task_writes_after_its_replacement(tmp_path: Path) -> None:
    write_clicks(tmp_path / "clicks", records=20_000, files=20, seed=8)
    program = tmp_path / "program" / "clicks.py"  # the only place where the workers could not find it
    program.parent.mkdir()
    shutil.copy(program_of_a_user.__file__, program)
    fault = Fault("before a task stages", "hang", epoch=2)
    settings = {f"spark.executorEnv.{name}": value for name, value in fault.environment(tmp_path).items()}
    run, fired = tmp_path / "run", fault.fired(tmp_path)
    with cluster(tmp_path, workers=2) as url:
        process = submit(url, program, str(tmp_path), log=tmp_path / "run.log", settings=settings)
        try:
            wait_until(lambda: process.poll() is not None or (fired.exists() and fired.read_text() != ""), 180)
            found = json.loads(fired.read_text())
            zombie, epoch = int(found["process"]), int(found["epoch"])
            kill_executor_of(zombie)
            wait_until(lambda: process.poll() is not None or status_of(run).epoch >= epoch, 180)
            assert status_of(run).epoch >= epoch, (tmp_path / "run.log").read_text()[-3000:]  # the replacement has done it
            assert psutil.pid_exists(zombie)
            fired.with_suffix(".woken").touch()
            wrote = fired.with_suffix(".wrote")
            wait_until(wrote.exists, 60)
            assert process.wait(240) == 0, (tmp_path / "run.log").read_text()[-3000:]
        finally:
            fired.with_suffix(".woken").touch()
            if process.poll() is None:
                kill_tree(process)
    assert len(executors(tmp_path)) > 2
    late = set(wrote.read_text().splitlines())
    assert late
    assert not late & published(run)
    assert check(tmp_path) > 5
