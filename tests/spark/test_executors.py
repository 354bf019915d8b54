"""Executors of a cluster that die at random moments, or are stopped until Spark gives them up and then go on, again and again."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import psutil
import pytest

from tests.kills import Input, answers, check, feeding, run_to_the_end
from tests.spark.cluster import cluster, executors, live_executors
from tests.spark.test_cluster import SHORT_TIMEOUTS, submitted
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

KILLED, STOPPED = 20, 5
LONGEST = 2.0  # seconds that an executor is left alone after an answer


def family(executor: psutil.Process) -> list[psutil.Process]:
    return [executor, *executor.children(recursive=True)]


def runs_lanes(executor: psutil.Process) -> bool:
    """Both lanes may be on one of two executors; to stop the other would show nothing."""
    try:
        return any("daemon" in " ".join(member.cmdline()) for member in executor.children(recursive=True))
    except psutil.NoSuchProcess:
        return False


def test_executors_that_die_again_and_again_cost_retries_and_nothing_else(tmp_path: Path) -> None:
    given, chance = Input(tmp_path, seed=14), random.Random(14)
    with cluster(tmp_path, workers=2) as url, feeding(given):
        with submitted(tmp_path, url) as process:
            answers(tmp_path, process)
            for _ in range(KILLED):
                time.sleep(chance.uniform(0, LONGEST))
                victims = family(chance.choice(live_executors(tmp_path)))
                for member in victims:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        member.kill()
                _, alive = psutil.wait_procs(victims, timeout=30)
                assert not alive
                for _ in range(3):  # more than was on its way already
                    answers(tmp_path, process, seconds=240)
                wait_until(lambda: len(live_executors(tmp_path)) == 2, 120)
        assert len(executors(tmp_path)) >= 2 + KILLED
    run_to_the_end(tmp_path)
    assert check(tmp_path) > 20


def test_executors_that_were_given_up_and_wake_change_nothing(tmp_path: Path) -> None:
    given, chance = Input(tmp_path, seed=15), random.Random(15)
    with cluster(tmp_path, workers=2) as url, feeding(given), submitted(tmp_path, url, **SHORT_TIMEOUTS) as process:
        answers(tmp_path, process)
        for _ in range(STOPPED):
            time.sleep(chance.uniform(0, LONGEST))
            before = len(executors(tmp_path))
            wait_until(lambda: any(map(runs_lanes, live_executors(tmp_path))), 120)
            victims = family(chance.choice([executor for executor in live_executors(tmp_path) if runs_lanes(executor)]))
            for member in victims:
                member.suspend()
            wait_until(lambda before=before: len(executors(tmp_path)) > before, 180)  # type: ignore[misc]  # Spark has given it up
            for member in victims:
                with contextlib.suppress(psutil.NoSuchProcess):  # Spark has killed its Java process
                    member.resume()
            psutil.wait_procs(victims, timeout=60)
            for _ in range(3):
                answers(tmp_path, process, seconds=240)
            wait_until(lambda: len(live_executors(tmp_path)) == 2, 120)
    run_to_the_end(tmp_path)
    assert check(tmp_path) > 20
