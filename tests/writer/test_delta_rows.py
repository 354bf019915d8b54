"""A Delta table with one row a key, as the writer keeps it: what stands there is what the changes say, over crashes at every step."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import millstream as ms
from millstream.core.parts import Columns
from millstream.errors import LogError, RecordError
from millstream.targets import delta_rows as rows_module
from millstream.targets import row_files
from millstream.targets.delta_rows import DeltaRowsOutput
from millstream.targets.output import Refused
from millstream.targets.row_values import RowValues
from tests.writer.test_targets import Killed, killed_after


@dataclass(frozen=True)
class Spent:
    name: str
    total: int
    at: ms.Timestamp = ms.START_OF_TIME
    tags: list[str] = field(default_factory=list)


def rows_in(path: Path, kind: Any = ms.Change[int], *, key: str = "key", name: str = "out") -> DeltaRowsOutput:
    output = DeltaRowsOutput(name, str(path / "rows"), RowValues("t", kind, key), identity="identity", begins=0)
    output.position()
    return output


class Told:
    """Changes as a computation tells them, and the rows that they leave: the oracle."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.epoch = 0

    def change(self, output: DeltaRowsOutput, **after: Any) -> None:
        """One epoch with these changes."""
        self.epoch += 1
        after = {key: value for key, value in after.items() if value is not None or key in self.rows}
        texts = [json.dumps({"before": self.rows.get(key), "after": value}).encode() for key, value in after.items()]
        times = [ms.Timestamp(self.epoch)] * len(texts)
        output.add(self.epoch, "t", "t", self.epoch, Columns(list(after), texts, times, range(len(texts))))
        self.rows |= after
        self.rows = {key: value for key, value in self.rows.items() if value is not None}

    def step(self, output: DeltaRowsOutput, **after: Any) -> None:
        self.change(output, **after)
        assert output.commit(self.epoch) == self.epoch


def found(path: Path) -> dict[str, Any]:
    table = DeltaTable(str(path / "rows")).to_pyarrow_table()
    keys = table["key"].to_pylist()
    assert len(keys) == len(set(keys)), "one row a key"
    return dict(zip(keys, table["value"].to_pylist(), strict=True))


def live(path: Path) -> set[str]:
    return {uri.rpartition("/")[2] for uri in DeltaTable(str(path / "rows")).file_uris()}


def test_a_row_has_a_column_for_each_field(tmp_path: Path) -> None:
    output, told = rows_in(tmp_path, ms.Change[Spent]), Told()
    told.step(output, a={"name": "Ann", "total": 3, "at": 5, "tags": ["x"]}, b={"name": "Bob", "total": 4, "at": 0})
    told.step(output, a={"name": "Ann", "total": 7, "at": 6}, c={"name": "Cid", "total": 1, "at": 0})
    told.step(output, b=None)
    table = DeltaTable(str(tmp_path / "rows"))
    dataset = table.to_pyarrow_dataset()
    assert duckdb.sql('select key, name, total, epoch_us("at"), tags from dataset order by key').fetchall() == [
        ("a", "Ann", 7, 6, []),
        ("c", "Cid", 1, 0, []),
    ]
    assert table.to_pandas().sort_values("key")["total"].tolist() == [7, 1]
    assert table.version() == 3, "one commit a step, after the one that made it"
    assert rows_in(tmp_path, ms.Change[Spent]).position() == 3


def test_of_the_changes_of_a_step_the_newest_of_a_key_counts(tmp_path: Path) -> None:
    output = rows_in(tmp_path)
    for epoch, (minors, times) in enumerate([([0, 1], [5, 5]), ([0, 1], [6, 6])], 1):
        texts = [json.dumps({"before": None, "after": 10 * epoch + minor}).encode() for minor in minors]
        part = Columns(["a", "a"], texts, [ms.Timestamp(at) for at in times], minors)
        if epoch == 2:  # whichever order parts of an epoch come in
            part = Columns(part.keys[::-1], part.values[::-1], part.timestamps[::-1], part.minors[::-1])
        output.add(epoch, "t", "t", epoch, part)
    output.commit(2)
    assert found(tmp_path) == {"a": 21}


def test_only_files_that_hold_a_changed_row_are_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "ROWS_PER_FILE", 100)
    monkeypatch.setattr(rows_module, "ROWS_PER_FILE", 100)
    output, told = rows_in(tmp_path), Told()
    told.step(output, **{f"k{n}": n for n in range(1_000)})
    before = live(tmp_path)
    assert len(before) == 10
    told.step(output, k5=-5, k7=-7, new=1)
    assert len(before - live(tmp_path)) == 1
    before = live(tmp_path)
    told.step(output, k5=-6)
    assert len(before - live(tmp_path)) == 1, "what changed lies with what changed, in a small file"
    assert found(tmp_path) == told.rows


def test_the_number_of_files_follows_the_rows_not_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "ROWS_PER_FILE", 16)
    monkeypatch.setattr(rows_module, "ROWS_PER_FILE", 16)
    output, told, most = rows_in(tmp_path), Told(), 0
    for n in range(150):
        told.step(output, **{f"k{n}": n})
        most = max(most, len(live(tmp_path)))
    assert most <= 2 * 150 / 16 + 2 * row_files.MERGED
    told.step(output, **{f"k{n}": None for n in range(150)})
    assert found(tmp_path) == {}
    assert live(tmp_path) == set()


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_over_restarts_and_others_maintenance(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(row_files, "ROWS_PER_FILE", chance.choice([4, 16, 100]))
    monkeypatch.setattr(rows_module, "ROWS_PER_FILE", row_files.ROWS_PER_FILE)
    monkeypatch.setattr(rows_module, "BYTES_HELD", chance.choice([50, 1_000, 1 << 20]))
    output, told = rows_in(tmp_path), Told()
    for n in range(30):
        for _ in range(chance.randrange(1, 3)):
            keys = chance.sample(range(120), chance.choice([1, 3, 40]))
            told.change(output, **{f"k{key}": None if chance.random() < 0.3 else n for key in keys})
        assert output.commit(told.epoch) == told.epoch
        assert found(tmp_path) == told.rows
        match chance.randrange(6):
            case 0:
                output = rows_in(tmp_path)
                assert output.position() == told.epoch
            case 1:
                DeltaTable(str(tmp_path / "rows")).optimize.compact()
            case 2:
                output.sweep(ms.Timestamp(0))
            case 3:
                output.commit(told.epoch + 1)  # nothing came
                told.epoch += 1
    assert found(tmp_path) == told.rows


def test_what_changes_the_table_in_the_middle_of_a_step_makes_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, told = rows_in(tmp_path), Told()
    for n in range(3):
        told.step(output, **{f"k{n}": n})
    real = DeltaTable.create_write_transaction

    def between(self: DeltaTable, *given: Any, **options: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", real)
        DeltaTable(str(tmp_path / "rows")).optimize.compact()
        real(self, *given, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", between)
    told.change(output, k0=10)
    with pytest.raises(Refused, match="another writer changes"):
        output.commit(told.epoch)
    output.drop()
    assert output.position() == told.epoch - 1
    told.epoch -= 1
    told.step(output, k0=10)
    assert found(tmp_path) == told.rows == {"k0": 10, "k1": 1, "k2": 2}


def test_of_two_writers_of_one_delivery_each_step_goes_in_once(tmp_path: Path) -> None:
    first, told = rows_in(tmp_path), Told()
    second = rows_in(tmp_path)
    told.change(second, a=1)
    told.epoch = 0
    told.step(first, a=1, b=2)
    with pytest.raises(Refused, match="another writer changes"):
        second.commit(1)
    second.drop()
    assert second.position() == 1
    told.step(second, a=5)
    assert found(tmp_path) == told.rows == {"a": 5, "b": 2}


def test_a_step_larger_than_memory_should_hold_is_merged_before_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "BYTES_HELD", 100)
    output, told = rows_in(tmp_path), Told()
    for n in range(30):
        told.change(output, **{f"k{n % 7}": n, f"k{n}": n})
    assert found(tmp_path) == {}, "nobody sees it yet"
    output.commit(told.epoch)
    assert found(tmp_path) == told.rows
    named = {path.name for path in (tmp_path / "rows").glob("*.parquet")}
    assert named == live(tmp_path), "files of the step that it wrote anew itself are gone"
    told.change(output, a=1)
    told.change(output, **{f"k{n}": n for n in range(20)})
    output.drop()
    assert {path.name for path in (tmp_path / "rows").glob("*.parquet")} == named, "so are those of a step that came to nothing"


def test_killed_at_every_step_the_rows_are_what_the_changes_say(tmp_path: Path) -> None:
    for step in range(200):
        path = tmp_path / f"{step}"
        path.mkdir()
        first, told = rows_in(path), Told()
        said = 0
        try:
            with killed_after(step):
                told.step(first, a=1, b=2, c=3)
                said = 1
                told.step(first, a=None, b=20, d=4)
                said = 2
        except Killed:
            pass
        again, after = rows_in(path), Told()
        position = again.position()
        assert position >= said
        for epoch, changes in enumerate([{"a": 1, "b": 2, "c": 3}, {"a": None, "b": 20, "d": 4}, {"c": None, "e": 5}], 1):
            if epoch > position:
                after.epoch = epoch - 1
                after.step(again, **changes)
            after.rows |= changes
        assert found(path) == {"b": 20, "d": 4, "e": 5}, f"killed after {step} steps"
        if said == 2:
            break
    assert said == 2
    assert step > 8


def test_what_has_left_the_table_goes_after_the_time_that_it_says(tmp_path: Path) -> None:
    output, told = rows_in(tmp_path), Told()
    for n in range(5):
        told.step(output, a=n)
    (tmp_path / "rows" / ".millstream").mkdir()
    (tmp_path / "rows" / ".millstream" / "out.json").write_text("{}")
    names = {path.name for path in (tmp_path / "rows").glob("*.parquet")}
    output.sweep(ms.Timestamp(0))
    assert {path.name for path in (tmp_path / "rows").glob("*.parquet")} == names, "somebody may just be reading them"
    with mock.patch("time.time", return_value=time.time() - 7_200):
        for n in range(5):
            told.step(output, a=10 + n)
    for path in (tmp_path / "rows").glob("*.parquet"):
        if path.name not in live(tmp_path):
            long_ago = time.time() - 7_200
            os.utime(path, (long_ago, long_ago))
    output.sweep(ms.Timestamp(0))
    assert len(list((tmp_path / "rows").glob("*.parquet"))) < len(names) + 5
    assert (tmp_path / "rows" / ".millstream" / "out.json").exists()
    told.step(output, a=99)
    assert found(tmp_path) == {"a": 99}


def test_a_row_that_does_not_fit_is_named_with_its_record(tmp_path: Path) -> None:
    output, told = rows_in(tmp_path), Told()
    told.change(output, a=1, b="two")
    with pytest.raises(RecordError, match=r"record t/1/1 of stream 't', key 'b': its row does not fit the type of the table"):
        output.commit(1)


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    Told().step(rows_in(tmp_path), a=1)
    with pytest.raises(LogError, match=r"has the columns key string, value int64, and the rows of stream 't' have key string, name string"):
        rows_in(tmp_path, ms.Change[Spent])


def test_a_file_that_is_lost_or_damaged_is_named(tmp_path: Path) -> None:
    told = Told()
    told.step(rows_in(tmp_path), a=1)
    (name,) = live(tmp_path)
    file = tmp_path / "rows" / name
    shutil.copy(file, tmp_path / "copy")
    file.write_bytes(b"x" * 100)
    with pytest.raises(LogError, match=f"{name} is damaged"):
        told.step(rows_in(tmp_path), b=1)
    file.unlink()
    with pytest.raises(LogError, match=f"{name} is missing"):
        told.step(rows_in(tmp_path), b=1)


@dataclass(frozen=True)
class Keyed:
    key: str


@dataclass(frozen=True)
class TwoCases:
    name: str
    NAME: str


def test_columns_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ms.TopologyError, match=r"Keyed brings a column 'key', and so does the key .* delta_rows\(\.\.\., key='row_key'\)"):
        RowValues("t", ms.Change[Keyed], "key")
    assert RowValues("t", ms.Change[Keyed], "row_key").schema.names == ["row_key", "key"]
    with pytest.raises(ms.TopologyError, match="differ in case only"):
        RowValues("t", ms.Change[TwoCases], "key")


def test_what_has_no_fields_is_one_column() -> None:
    for kind, column in ((float, pa.float64()), (Any, pa.string()), (int | None, pa.int64())):
        assert RowValues("t", ms.Change[kind], "key").schema == pa.schema([("key", pa.string()), ("value", column)])
