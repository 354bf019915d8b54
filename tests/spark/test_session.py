"""The session that Millstream makes, and the Python of Spark's processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import cast

import pyspark
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.spark.session import PYTHON, channel_host, lanes_for, query_settings

pytestmark = pytest.mark.spark


@pytest.mark.skipif("PYSPARK_PYTHON" in os.environ, reason="the Python of Spark's processes is chosen from outside")
def test_sparks_processes_are_this_python_with_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: (sys.executable, pyspark.__file__)).collect()
    assert found == [(sys.executable, pyspark.__file__)]


def test_the_environment_of_the_user_is_left_as_it_was(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec  # there is a session
    assert "MILLSTREAM_PYTHON" not in os.environ


@pytest.mark.parametrize(("slots", "lanes"), [(2, 1), (3, 1), (4, 2), (10, 8)])
def test_a_session_has_a_lane_for_each_slot_but_two(slots: int, lanes: int) -> None:
    assert lanes_for(session(f"local[{slots}]", slots)) == lanes


def test_a_session_with_a_single_slot_is_refused_with_the_number_that_it_takes() -> None:
    with pytest.raises(ms.LogError, match=r"the session has 1 slot, and a lane and the inputs take 3 at least; give it local\[3\]"):
        lanes_for(session("local[1]", 1))


@pytest.mark.parametrize(
    ("master", "host"), [("local[4]", None), ("local", None), ("local-cluster[2,1,1024]", "10.0.0.7"), ("spark://a:7077", "10.0.0.7")]
)
def test_lanes_of_this_machine_have_a_unix_socket_and_others_the_drivers_address(master: str, host: str | None) -> None:
    assert channel_host(session(master, 4)) == host


def session(master: str, slots: int) -> SparkSession:
    """What is asked of one."""
    context = SimpleNamespace(
        master=master,
        defaultParallelism=slots,
        getConf=lambda: {"spark.driver.host": "10.0.0.7"},  # as a driver on a cluster has it
    )
    return cast("SparkSession", SimpleNamespace(sparkContext=context))


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip:/with space:/glob/*", ["/with space", "/glob/*"]),
        ("/mine/pyspark.zip", ["/mine/pyspark.zip"]),
        ("", []),
    ],
)
def test_sparks_zip_is_taken_off_the_path_and_nothing_else(path: str, kept: list[str]) -> None:
    code = "import json, os; print(json.dumps(os.environ['PYTHONPATH']))"
    environment = {**os.environ, "PYTHONPATH": path, "MILLSTREAM_PYTHON": sys.executable}
    printed = subprocess.run([str(PYTHON), "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == ":".join(kept)


def test_a_session_has_its_own_settings_again_when_two_runs_start_in_it_at_once(spark: SparkSession) -> None:
    name, inside, leave = "spark.sql.session.timeZone", threading.Event(), threading.Event()
    own = spark.conf.get(name)
    spark.conf.set(name, "Asia/Tokyo")
    entered: list[str | None] = []

    def first() -> None:
        with query_settings(spark, partitions=1):
            inside.set()
            assert leave.wait(30)

    def second() -> None:
        assert inside.wait(30)
        with query_settings(spark, partitions=1):
            entered.append(spark.conf.get(name))

    try:
        threads = [threading.Thread(target=each) for each in (first, second)]
        for thread in threads:
            thread.start()
        assert inside.wait(30)
        threads[1].join(0.5)
        assert threads[1].is_alive(), "it waits until the first has put things back"
        leave.set()
        for thread in threads:
            thread.join(30)
        assert entered == ["UTC"]
        assert spark.conf.get(name) == "Asia/Tokyo"
    finally:
        leave.set()
        spark.conf.set(name, own)
