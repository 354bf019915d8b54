"""A folder that was moved, or copied after a stop, goes on at its new path."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from tests.spark.clicks import click, write_lines
from tests.spark.test_restore import DELIVERIES, Place

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Place:
    """Three records are delivered, and one waits."""
    place = Place(tmp_path, spark)
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", n) for n in (1, 2, 3)])
    place.run()
    write_lines(tmp_path / "clicks" / "2.jsonl", [click("anna", 4)])
    return place


def values(place: Place) -> list[list[int]]:
    return [sorted(value for _, value in found) for found in (place.table(), place.files())]


def named_in_checkpoints(at: Path, path: Path) -> list[Path]:
    files = [file for file in (at / "checkpoints").glob("lane */**/*") if file.is_file()]
    return [file for file in files if f"{path}/".encode() in file.read_bytes()]


def test_a_folder_that_was_moved_goes_on(place: Place, tmp_path: Path) -> None:
    old, place.at = place.at, tmp_path / "an ärgerlicher place" / "state" / "mill"
    assert named_in_checkpoints(old, old)
    place.at.parent.mkdir(parents=True)
    old.rename(place.at)
    place.run()
    assert values(place) == [[1, 2, 3, 4]] * 2
    assert not named_in_checkpoints(place.at, old)
    write_lines(tmp_path / "clicks" / "3.jsonl", [click("anna", 5)])
    place.run()
    assert values(place) == [[1, 2, 3, 4, 5]] * 2
    place.at.rename(old)
    place.at = old
    write_lines(tmp_path / "clicks" / "4.jsonl", [click("anna", 6)])
    place.run()
    assert values(place) == [[1, 2, 3, 4, 5, 6]] * 2
    assert ms.status_of(old).injected == 6


def test_a_copy_goes_on_where_the_folder_itself_does_not(place: Place, tmp_path: Path) -> None:
    first, copy = place.at, tmp_path / "copy"
    shutil.copytree(first, copy)
    place.at = copy
    for name in DELIVERIES:
        with pytest.raises(ms.LogError, match=f"delivery '{name}': {copy} is a copy of {first}, which delivers to .*{name}"):
            place.run(name)
    first.rename(tmp_path / "kept")
    place.run()
    assert values(place) == [[1, 2, 3, 4]] * 2
    (tmp_path / "kept").rename(first)
    place.at = first
    with pytest.raises(ms.LogError, match=f"{first} is a copy of {copy}, which delivers to "):
        place.run()
