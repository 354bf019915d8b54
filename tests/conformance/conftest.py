"""Every scene is played twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millstream as ms
from tests.conformance.stages import DriverStage, SparkStage, Stage

Play = Callable[[ms.Topology], Stage]


@pytest.fixture(params=["driver", pytest.param("spark", marks=pytest.mark.spark)])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Play]:
    stages: list[SparkStage] = []

    def on_driver(topology: ms.Topology) -> Stage:
        return DriverStage(topology)

    def on_spark(topology: ms.Topology) -> Stage:
        stages.append(SparkStage(topology, tmp_path / "mill", request.getfixturevalue("spark")))
        return stages[-1].begin()

    yield on_driver if request.param == "driver" else on_spark
    for stage in stages:
        stage.stop()
