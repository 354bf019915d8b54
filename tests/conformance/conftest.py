"""Every scene is played three times: by the driver of tests, by planner and lanes in this process, and on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millstream as ms
from tests.conformance.in_process import InProcessStage
from tests.conformance.on_spark import SparkStage
from tests.conformance.stages import DriverStage, Stage

Play = Callable[[ms.Topology], Stage]


@pytest.fixture(params=["driver", "in process", pytest.param("spark", marks=pytest.mark.spark)])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Play]:
    stages: list[SparkStage] = []

    def on_spark(topology: ms.Topology) -> Stage:
        stages.append(SparkStage(topology, tmp_path / "mill", request.getfixturevalue("spark")))
        return stages[-1].begin()

    yield {"driver": DriverStage, "in process": InProcessStage, "spark": on_spark}[request.param]
    for stage in stages:
        stage.stop()
