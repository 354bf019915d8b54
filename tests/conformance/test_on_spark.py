"""What several runs in one session share, and what they must not."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.conformance.on_spark import SparkStage
from tests.conformance.scenes import Event, alone, said

pytestmark = pytest.mark.spark


def parent_of_lane(stage: SparkStage) -> int:
    """The process that Spark forks a lane's worker from."""
    return psutil.Process(int(stage.seats().lanes[0].process.split()[-1])).ppid()


def test_a_run_takes_over_the_workers_of_one_that_ended_and_not_those_of_one_that_lives(spark: SparkSession, tmp_path: Path) -> None:
    """Spark keeps such a process until its session ends: a run must not leave one behind."""
    topologies = [alone() for _ in range(3)]
    stages = [SparkStage(topology, tmp_path / f"{n}", spark) for n, (topology, _, _) in enumerate(topologies)]
    try:
        first, second = (parent_of_lane(stage.begin()) for stage in stages[:2])
        assert first != second
        stages[0].stop()
        assert parent_of_lane(stages[2].begin()) == first
        for stage, (_, events, it) in zip(stages[1:], topologies[1:], strict=True):
            stage.send(events, Event("a", 1, "x"))
            assert said(stage, it.said) == [("a", "x 1")]
    finally:
        for stage in stages:
            stage.stop()
