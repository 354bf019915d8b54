"""On a cluster of two workers: an executor dies, or is given up for dead and then writes after all; and slots that are not there."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests import program as program_of_a_user
from tests.examples import FOLDER
from tests.kills import Fault, Input, answers, check, environment, feeding, kill_tree, output_of, run_to_the_end
from tests.spark.cluster import cluster, executors, submit
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(2400)]

# Spark gives an executor up after so long.
SHORT_TIMEOUTS = {"spark_network_timeout": "20s", "spark_network_timeoutInterval": "5s", "spark_executor_heartbeatInterval": "5s"}


def executor_of(task: int) -> psutil.Process:
    above = psutil.Process(task).parents()
    return next(process for process in above if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()))


@contextmanager
def submitted(base: Path, url: str, *faults: Fault, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program, as a user submits it; its lanes meet the faults."""
    program = base / "program" / "clicks.py"  # the only place where the workers could not find it
    program.parent.mkdir(exist_ok=True)
    shutil.copy(program_of_a_user.__file__, program)
    shutil.copy(FOLDER / "sqlite_target.py", program.parent)
    properties = {f"spark.executorEnv.{name}": value for name, value in environment(base, faults).items()}
    properties |= {name.replace("_", "."): value for name, value in settings.items()}
    process = submit(url, program, str(base), log=base / "run.log", settings=properties)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_tree(process)


def befall(base: Path, process: subprocess.Popen[bytes], fault: Fault) -> int:
    """Until a fault has befallen a lane; its process."""
    wait_until(lambda: process.poll() is not None or (fault.fired(base).exists() and fault.fired(base).read_text() != ""), 180)
    assert process.poll() is None, output_of(base)
    found = fault.found(base)["process"]
    assert isinstance(found, int)
    return found


def test_an_executor_that_dies_in_an_epoch_costs_its_lanes_a_retry(tmp_path: Path) -> None:
    given, fault = Input(tmp_path, seed=8), Fault("after the append", "hang", skip=10)
    with cluster(tmp_path, workers=2) as url, feeding(given):
        with submitted(tmp_path, url, fault) as process:
            lane = befall(tmp_path, process, fault)  # in the middle of an epoch, and there it stays
            executor = executor_of(lane)
            family = [executor, *executor.children(recursive=True)]
            for member in family:
                member.kill()
            psutil.wait_procs(family, timeout=30)
            for _ in range(3):
                answers(tmp_path, process)
        assert len(executors(tmp_path)) > 2
    run_to_the_end(tmp_path)
    assert check(tmp_path) > 20


def test_an_executor_that_was_given_up_and_wakes_changes_nothing(tmp_path: Path) -> None:
    """It hangs in the middle of an epoch until Spark has begun its lanes elsewhere; then it appends, syncs and reports."""
    given, fault = Input(tmp_path, seed=9), Fault("before the append", "hang", skip=10)
    with cluster(tmp_path, workers=2) as url, feeding(given), submitted(tmp_path, url, fault, **SHORT_TIMEOUTS) as process:
        lane = psutil.Process(befall(tmp_path, process, fault))
        executor = executor_of(lane.pid)
        family = [executor, *executor.children(recursive=True)]
        for member in family:
            member.suspend()
        for _ in range(5):  # more than was on its way already
            answers(tmp_path, process)
        assert lane.is_running(), "its lane goes on elsewhere while it hangs here"
        (fault.fired(tmp_path).parent / "woken").touch()
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # Spark has killed its Java process
                member.resume()
        psutil.wait_procs([lane], timeout=60)
        assert not lane.is_running()
        assert (fault.fired(tmp_path).parent / "went on").exists()
        answers(tmp_path, process)
    run_to_the_end(tmp_path)
    assert check(tmp_path) > 20


def test_too_few_slots_are_said_with_the_number_that_it_takes(tmp_path: Path) -> None:
    Input(tmp_path, seed=10)
    warning = re.compile(r"lane 1 has not connected for \d+ s; if it waits for a slot: 2 lanes and the inputs take 4 cores in all")
    said: Callable[[], bool] = lambda: warning.search(output_of(tmp_path)) is not None  # noqa: E731
    with submitted(tmp_path, "local[1]") as process:
        wait_until(lambda: process.poll() is not None or said(), 120)
        assert said()
