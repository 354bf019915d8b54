"""A folder restored from an older copy, while its targets have gone on: refused, with the ways out; and each of these is one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import millstream as ms
from tests.spark.clicks import Click, Count, click, write_lines

pytestmark = pytest.mark.spark

DELIVERIES = ("files", "table")


class Place:
    """Clicks in files, counted, and delivered to a table and to files."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base, self.spark, self.at = base, spark, base / "mill"

    def topology(self, *deliveries: str) -> ms.Topology:
        topology, count = ms.Topology("restored"), Count()
        usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
        clicks = topology.inject("clicks", ms.files(self.base / "clicks" / "*.jsonl", Click), **usual)  # type: ignore[arg-type]
        topology.compute("count", count).reads(clicks)
        targets = {"files": ms.to_files(self.base / "files"), "table": ms.delta(self.base / "table")}
        for name in deliveries:
            topology.deliver(name, count.counts, targets[name])
        return topology

    def run(self, *deliveries: str, anew: tuple[str, ...] = ()) -> None:
        options = ms.Options(lanes=1, buckets=4)
        run = ms.start(self.topology(*(deliveries or DELIVERIES)), at=self.at, spark=self.spark, options=options, deliver_anew=anew)
        run.drain()

    def table(self) -> list[tuple[str, int]]:
        return sorted((row["id"], row["value"]) for row in DeltaTable(str(self.base / "table")).to_pyarrow_table().to_pylist())

    def files(self) -> list[tuple[str, int]]:
        lines = [line for file in (self.base / "files").glob("*.jsonl") for line in file.read_text().splitlines()]
        return sorted((found["id"], found["value"]) for found in map(json.loads, lines))


@pytest.fixture
def restored(tmp_path: Path, spark: SparkSession) -> Place:
    """Three records, a copy, three more; then the copy is back."""
    place = Place(tmp_path, spark)
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", n) for n in (1, 2, 3)])
    place.run()
    shutil.copytree(place.at, tmp_path / "copy")
    write_lines(tmp_path / "clicks" / "2.jsonl", [click("anna", n) for n in (4, 5)])
    place.run()
    write_lines(tmp_path / "clicks" / "3.jsonl", [click("anna", 6)])
    place.run()
    shutil.rmtree(place.at)
    (tmp_path / "copy").rename(place.at)
    return place


def test_targets_that_are_ahead_are_refused_and_deliver_anew_is_a_way_out(restored: Place) -> None:
    before, epochs = (restored.table(), restored.files()), ms.status_of(restored.at).epoch
    for name, message in {
        "table": r"table has epochs up to \d+, but commits end with \d+: this folder is from an older copy; "
        r"restore folder and target from one copy, or .* --deliver-anew 'table'",
        "files": r"files has files of step 2 of delivery 'files', and this folder has begun 1 steps: it is from an older copy, .*"
        r"restore folder and target from one copy, or .* --deliver-anew 'files'",
    }.items():
        with pytest.raises(ms.LogError, match=message):
            restored.run(name)
    assert (restored.table(), restored.files()) == before, "nothing was delivered"
    assert epochs == ms.status_of(restored.at).epoch, "nothing has run"

    restored.run(anew=DELIVERIES)
    for found, old in zip((restored.table(), restored.files()), before, strict=True):
        new = list(found)
        for record in old:
            new.remove(record)
        assert sorted(value for _, value in new) == [1, 2, 3, 4, 5, 6], "all of it once more"
        assert {record for record in old if record[1] <= 3} <= set(new), "what the copy had has the ids it had"
    restored.run()
    assert len(restored.table()) == len(restored.files()) == 12, "and then it goes on where it was"
    status = ms.status_of(restored.at)
    assert (status.deliveries, status.log) == ({"files": 0, "table": 0}, 0)


def test_targets_that_were_deleted_are_said_and_deliver_anew_makes_them_again(tmp_path: Path, spark: SparkSession) -> None:
    place = Place(tmp_path, spark)
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", n) for n in (1, 2, 3)])
    place.run()
    before, epochs = (place.table(), place.files()), ms.status_of(place.at).epoch
    write_lines(tmp_path / "clicks" / "2.jsonl", [click("anna", 4)])
    for name in DELIVERIES:
        shutil.rmtree(tmp_path / name)
        with pytest.raises(ms.LogError, match=f"{name} (has nothing|is missing).* --deliver-anew '{name}'"):
            place.run(name)
    assert epochs == ms.status_of(place.at).epoch, "nothing has run"
    place.run(anew=DELIVERIES)
    for found, old in zip((place.table(), place.files()), before, strict=True):
        assert [value for _, value in found] == [1, 2, 3, 4]
        assert set(old) < set(found), "records have the ids they had"


def test_a_target_is_delivered_to_by_one_folder_under_one_name(tmp_path: Path, spark: SparkSession) -> None:
    place = Place(tmp_path, spark)
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", n) for n in (1, 2, 3)])
    place.run()
    before, first, place.at = (place.table(), place.files()), place.at, tmp_path / "another"
    for name in DELIVERIES:
        with pytest.raises(ms.LogError, match=f"delivery '{name}': .* another folder, {first}, delivers under this name"):
            place.run(name)
    assert (place.table(), place.files()) == before
    place.run(anew=DELIVERIES)
    assert [value for _, value in place.table()] == [value for _, value in place.files()] == [1, 1, 2, 2, 3, 3], "as was asked for"


def test_a_name_that_is_not_there_is_refused_before_anything_is_forgotten(restored: Place) -> None:
    before = sorted(path for path in restored.at.rglob("*") if path.is_file())
    with pytest.raises(ms.TopologyError, match="deliver_anew: there is no delivery called 'tabel'; there is 'files', 'table'"):
        restored.run(anew=("tabel",))
    assert sorted(path for path in restored.at.rglob("*") if path.is_file()) == before
