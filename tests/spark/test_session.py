"""The session that Millstream makes, and the Python of Spark's processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyspark
import pytest
from pyspark.sql import SparkSession

from millstream.spark.session import PYTHON

pytestmark = pytest.mark.spark


@pytest.mark.skipif("PYSPARK_PYTHON" in os.environ, reason="the Python of Spark's processes is chosen from outside")
def test_sparks_processes_are_this_python_with_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: (sys.executable, pyspark.__file__)).collect()
    assert found == [(sys.executable, pyspark.__file__)]


def test_the_environment_of_the_user_is_left_as_it_was(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec  # there is a session
    assert "MILLSTREAM_PYTHON" not in os.environ


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
    told = subprocess.run([str(PYTHON), "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == ":".join(kept)
