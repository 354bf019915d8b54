"""One Spark session for all tests that need one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.spark.datasource import SOURCES
from millstream.spark.session import session_for
from tests.services.fixtures import postgres  # noqa: F401
from tests.services.kafka import kafka  # noqa: F401

TIMEOUT = 240.0  # seconds; a bound, never an expectation


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session, _ = session_for(None, spark_log=tmp_path_factory.mktemp("spark") / "spark.log", sources=SOURCES)
    yield session
    session.stop()


@pytest.fixture
def at(tmp_path: Path) -> Path:
    return tmp_path / "mill"


@pytest.fixture
def drained(spark: SparkSession, at: Path) -> Callable[..., ms.Run]:
    """Run a topology of bounded inputs to its end."""

    def run(topology: ms.Topology, *, folder: Path = at, **options: Any) -> ms.Run:
        options = {"lanes": 1, "buckets": 4, **options}
        found = ms.start(topology, at=folder, spark=spark, until=ms.DRAINED, options=ms.Options(**options))
        try:
            assert found.wait(TIMEOUT), found.status()
        except ms.RunFailed as error:
            print(error.details[-6000:])
            raise
        finally:
            if found.active:
                found.stop()
        return found

    return run


@pytest.fixture
def started(spark: SparkSession, at: Path) -> Iterator[Callable[..., ms.Run]]:
    """Start a topology; whatever happens, it is stopped after the test."""
    runs: list[ms.Run] = []

    def start(topology: ms.Topology, *, folder: Path = at, **options: Any) -> ms.Run:
        options = {"lanes": 1, "buckets": 4, **options}
        runs.append(ms.start(topology, at=folder, spark=spark, options=ms.Options(**options)))
        return runs[-1]

    yield start
    for run in runs:
        if run.active:
            run.stop()
