"""Delta tables and files, as the writer writes them: each epoch once, over crashes at every step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pytest
from deltalake import DeltaTable

import millstream as ms
from millstream.core.parts import Columns
from millstream.errors import Fenced, LogError, RecordError
from millstream.format import Format
from millstream.targets import delta as delta_module
from millstream.targets.delta import DeltaOutput
from millstream.targets.files import FilesOutput
from millstream.targets.output import Refused, WriterOutput
from millstream.targets.steps import Steps
from millstream.targets.typed import Values


@dataclass(frozen=True)
class Seen:
    page: str
    at: ms.Timestamp
    note: str | None = None


def columns(*values: Any) -> Columns:
    texts = [json.dumps(value).encode() for value in values]
    return Columns(
        [f"k{n}" for n in range(len(values))], texts, [ms.Timestamp(1_000_000 + n) for n in range(len(values))], range(len(values))
    )


def delta(path: Path, *, kind: Any = int, begins: int = 0, name: str = "out") -> DeltaOutput:
    return DeltaOutput(name, str(path / "delta"), Values("s", kind), identity="identity", begins=begins)


def files(path: Path, *, format: Format = Format.JSON_LINES, owner: Callable[[], bool] = lambda: True, kind: Any = int) -> FilesOutput:
    steps = Steps(path / "deliveries" / "out", identity="identity")
    return FilesOutput("out", str(path / "files"), format, Values("s", kind), steps=steps, still_owner=owner)


def put(output: WriterOutput, upto: int) -> None:
    """All epochs up to this, each with a record of its number."""
    for epoch in range(output.position() + 1, upto + 1):
        output.add(epoch, "s", "s", epoch, columns(epoch))
    assert output.commit(upto) == upto


def in_table(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path / "delta")).to_pyarrow_table()["value"].to_pylist())


def in_files(path: Path) -> list[int]:
    found = [json.loads(line) for file in sorted((path / "files").glob("*.jsonl")) for line in file.read_text().splitlines()]
    return sorted(line["value"] for line in found)


def test_a_table_has_typed_columns(tmp_path: Path) -> None:
    output = delta(tmp_path, kind=Seen)
    assert output.position() == 0
    output.add(1, "s", "in", 7, columns({"page": "/a", "at": 5}, {"page": "/b", "at": 6, "note": "x"}))
    assert output.commit(3) == 3
    found = DeltaTable(str(tmp_path / "delta")).to_pyarrow_dataset()
    rows = duckdb.sql("select key, value.page, epoch_us(value.at), value.note, epoch_us(timestamp), id from found order by id").fetchall()
    assert rows == [("k0", "/a", 5, None, 1_000_000, "in/7/0"), ("k1", "/b", 6, "x", 1_000_001, "in/7/1")]
    assert delta(tmp_path, kind=Seen).position() == 3


def test_a_line_and_a_parquet_file(tmp_path: Path) -> None:
    lines, parquet = files(tmp_path, kind=Seen), files(tmp_path / "p", format=Format.PARQUET, kind=Seen)
    for output in (lines, parquet):
        output.add(1, "s", "in", 7, columns({"page": "/a", "at": 5}))
        output.commit(2)
    assert [file.name for file in (tmp_path / "files").glob("*.jsonl")] == ["out-identity-000000000-0000.jsonl"]
    line = json.loads((tmp_path / "files" / "out-identity-000000000-0000.jsonl").read_text())
    assert line == {"key": "k0", "value": {"page": "/a", "at": 5}, "timestamp": "1970-01-01T00:00:01Z", "id": "in/7/0"}
    assert duckdb.sql(f"select value.page, id from '{tmp_path}/p/files/*.parquet'").fetchall() == [("/a", "in/7/0")]


def test_files_are_numbered_by_step_and_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.targets.typed.ROWS_PER_FILE", 2)
    output = files(tmp_path)
    put(output, 5)
    output.commit(6)  # nothing came: no step
    put(output, 7)
    assert sorted(file.name for file in (tmp_path / "files").glob("*.jsonl")) == [
        "out-identity-000000000-0000.jsonl",
        "out-identity-000000000-0001.jsonl",
        "out-identity-000000000-0002.jsonl",
        "out-identity-000000001-0000.jsonl",
    ]
    assert in_files(tmp_path) == [1, 2, 3, 4, 5, 7]


def test_a_value_that_does_not_fit_is_named_with_its_record(tmp_path: Path) -> None:
    output = delta(tmp_path)
    output.position()
    output.add(1, "s", "in", 7, columns(1, "two", 3))
    with pytest.raises(RecordError, match=r"record in/7/1 of stream 's', key 'k1': its value does not fit the type of the stream"):
        output.commit(1)


def test_a_table_of_another_type_is_refused(tmp_path: Path) -> None:
    put(delta(tmp_path), 1)
    with pytest.raises(
        LogError, match="holds values of int64, the stream 's' now carries string; deliver it to another path, or keep the old type"
    ):
        delta(tmp_path, kind=str).position()


def test_of_two_writers_of_one_delivery_each_epoch_goes_in_once(tmp_path: Path) -> None:
    first, second = delta(tmp_path), delta(tmp_path)
    assert first.position() == second.position() == 0
    second.add(1, "s", "s", 1, columns(1))
    put(first, 2)
    with pytest.raises(Refused, match=r"another writer delivers to .* as this delivery; stop it"):
        second.commit(1)
    second.drop()
    assert second.position() == 2
    put(second, 3)
    assert in_table(tmp_path) == [1, 2, 3]
    assert len(list((tmp_path / "delta").glob("*.parquet"))) == 2, "refused files are dropped"


def test_a_writer_that_comes_between_the_look_and_the_commit_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = delta(tmp_path), delta(tmp_path)
    first.position()
    second.position()
    second.add(1, "s", "s", 1, columns(1))
    real = delta_module.sync_folder

    def slow(path: Path) -> None:  # it has looked by now
        monkeypatch.setattr(delta_module, "sync_folder", real)
        put(first, 2)
        real(path)

    monkeypatch.setattr(delta_module, "sync_folder", slow)
    with pytest.raises(Refused, match="another writer"):
        second.commit(1)
    assert in_table(tmp_path) == [1, 2]


def test_others_may_write_to_the_table_and_maintain_it(tmp_path: Path) -> None:
    output, other = delta(tmp_path), delta(tmp_path, name="other")
    put(output, 2)
    put(other, 1)
    DeltaTable(str(tmp_path / "delta")).optimize.compact()
    put(output, 3)
    assert in_table(tmp_path) == [1, 1, 2, 3]


def test_a_new_table_of_a_known_delivery_begins_where_it_is(tmp_path: Path) -> None:
    output = delta(tmp_path, begins=5)
    assert output.position() == 5
    put(output, 6)
    assert in_table(tmp_path) == [6]


def test_a_table_gets_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_module, "VERSIONS_PER_CHECKPOINT", 5)
    output = delta(tmp_path)
    for upto in range(1, 12):
        put(output, upto)
    assert len(list((tmp_path / "delta" / "_delta_log").glob("*.checkpoint.parquet"))) == 2


def test_an_overtaken_run_renames_nothing(tmp_path: Path) -> None:
    answers = iter([True, False])
    output = files(tmp_path, owner=lambda: next(answers))
    with mock.patch("millstream.targets.typed.ROWS_PER_FILE", 1), pytest.raises(Fenced, match="a newer run delivers to"):
        put(output, 3)
    assert len(list((tmp_path / "files").glob("*.jsonl"))) == 1
    later = files(tmp_path)
    assert (later.position(), later.open_until()) == (0, 3)
    put(later, 3)
    assert in_files(tmp_path) == [1, 2, 3]
    later.sweep(ms.Timestamp(time.time_ns() // 1000 + int(ms.HOUR)))
    assert not list((tmp_path / "files" / ".staging").iterdir())


def test_a_repeated_step_that_needs_fewer_files_leaves_none_of_the_others(tmp_path: Path) -> None:
    output = files(tmp_path)
    with (
        mock.patch("millstream.targets.typed.ROWS_PER_FILE", 1),
        mock.patch.object(output._steps, "done", side_effect=Killed),
        pytest.raises(Killed),
    ):
        put(output, 3)
    assert len(list((tmp_path / "files").glob("*.jsonl"))) == 3
    put(files(tmp_path), 3)
    assert len(list((tmp_path / "files").glob("*.jsonl"))) == 1
    assert in_files(tmp_path) == [1, 2, 3]


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """The process ends before or after one of its calls of the system, the create of a Delta commit among them."""
    left = 2 * [steps]

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            for when in range(2):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                if when == 0:
                    result = real(*given, **options)
            return result

        return call

    transaction = DeltaTable.create_write_transaction
    with (
        mock.patch.object(os, "fsync", guarded(os.fsync)),
        mock.patch.object(os, "fdatasync", guarded(os.fdatasync)),
        mock.patch.object(os, "replace", guarded(os.replace)),
        mock.patch.object(os, "pwrite", guarded(os.pwrite)),
        mock.patch.object(DeltaTable, "create_write_transaction", guarded(transaction)),
    ):
        yield


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_killed_at_every_step_each_epoch_is_delivered_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.targets.typed.ROWS_PER_FILE", 2)
    make = delta if kind == "delta" else files
    found = in_table if kind == "delta" else in_files
    for step in range(200):
        path = tmp_path / f"{step}"
        path.mkdir()
        first = make(path)
        first.position()
        said = 0
        try:
            with killed_after(step):
                for upto in (3, 5):
                    put(first, upto)
                    said = upto
        except Killed:
            pass
        ended = said == 5
        again = make(path)
        position, until = again.position(), again.open_until()
        assert position >= said
        if until is not None:
            put(again, until)
        put(again, 6)
        assert found(path) == [1, 2, 3, 4, 5, 6], f"killed after {step} steps"
        if ended:
            break
    assert ended
    assert step > 10
