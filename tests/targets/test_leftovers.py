"""What killed writers leave in targets goes an hour later, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable

from millstream.format import Format
from millstream.targets import leftovers
from millstream.targets.delta import DeltaOutput
from millstream.targets.files import FilesOutput
from millstream.targets.steps import Steps
from millstream.targets.typed import Values
from millstream.timestamp import HOUR, MINUTE, Timestamp
from tests.log.made import NOW, columns


class Table:
    """A delivered table in which every file was written at noon, and what its writers do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def writer(self, identity: str = "identity") -> DeltaOutput:
        output = DeltaOutput("out", str(self.path), Values("s", int), identity=identity, begins=0)
        output.position()
        return output

    def write(self, output: DeltaOutput, epoch: int) -> str:
        """A file of this epoch that no entry names yet; its name."""
        before = self.files()
        output.add(epoch, "s", "s", epoch, columns([epoch]))
        output._gathered.flush()
        (made,) = self.files() - before
        at_noon(self.path / made)
        return made

    def deliver(self, output: DeltaOutput, *epochs: int) -> list[str]:
        names = []
        for epoch in epochs:
            names.append(self.write(output, epoch))
            output.commit(epoch)
        return names

    def files(self) -> set[str]:
        return {file.name for file in self.path.glob("*.parquet")}


def at_noon(file: Path) -> None:
    os.utime(file, (int(NOW) / 1e6, int(NOW) / 1e6))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def test_a_file_that_no_entry_names_goes_after_an_hour(table: Table) -> None:
    killed = table.writer()
    live = table.deliver(killed, 1, 2)
    left = table.write(killed, 3)
    output = table.writer()
    live += table.deliver(output, 3, 4, 5)
    output.sweep(NOW + HOUR - MINUTE)
    assert table.files() == {*live, left}, "whoever writes it may still be at it"
    output.sweep(NOW + HOUR)
    assert table.files() == {*live}


def test_what_is_written_and_waits_for_its_commit_stays(table: Table) -> None:
    output = table.writer()
    staged = table.write(output, 1)
    output.sweep(NOW + 2 * HOUR)
    assert table.files() == {staged}
    output.commit(1)
    output.sweep(NOW + 2 * HOUR)
    assert table.files() == {staged}


def test_what_another_has_committed_meanwhile_stays(table: Table) -> None:
    older, newer = table.writer(), table.writer()
    name = table.write(older, 1)
    older.commit(1)
    newer.sweep(NOW + 2 * HOUR)
    assert table.files() == {name}


def test_files_that_have_left_the_table_are_its_owners(table: Table) -> None:
    """Older versions name them."""
    output = table.writer()
    live = table.deliver(output, 1, 2, 3)
    DeltaTable(str(table.path)).optimize.compact()
    merged = table.files() - {*live}
    live += table.deliver(output, 4)
    output.sweep(NOW + 2 * HOUR)
    assert table.files() == {*live, *merged}
    assert DeltaTable(str(table.path), version=3).to_pyarrow_table().num_rows == 3


def test_files_of_others_stay(table: Table) -> None:
    output, another = table.writer(), table.writer("another one")
    table.deliver(output, 1)
    theirs = {table.write(another, 1), "part-00000-4f0c.snappy.parquet", "identity.parquet", "identity-000000000001-x.parquet"}
    for name in theirs:
        (table.path / name).touch()
        at_noon(table.path / name)
    output.sweep(NOW + 2 * HOUR)
    assert theirs < table.files()


def test_where_the_entries_do_not_reach_back_nothing_goes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = table.writer()
    live = table.deliver(killed, 1, 2)
    left = table.write(killed, 3)
    output = table.writer()
    live += table.deliver(output, 3, 4, 5)
    with monkeypatch.context() as bounded:
        bounded.setattr(leftovers, "ENTRIES_READ", 1)
        output.sweep(NOW + 2 * HOUR)
    assert table.files() == {*live, left}
    DeltaTable(str(table.path)).create_checkpoint()
    entries = sorted((table.path / "_delta_log").glob("*.json"))
    for entry in entries[:4]:  # that of epoch 3 is the last of them
        entry.unlink()
    output.sweep(NOW + 2 * HOUR)
    assert table.files() == {*live, left}


def test_what_was_staged_for_files_goes_after_an_hour(tmp_path: Path) -> None:
    def writer(fence: int) -> FilesOutput:
        steps = Steps(tmp_path / "steps", fence=fence)
        return FilesOutput("out", str(tmp_path / "out"), Format.JSON_LINES, Values("s", int), steps=steps, still_owner=lambda: True)

    def stage(output: FilesOutput, epoch: int) -> Path:
        before = set(staging.glob("*"))
        output.add(epoch, "s", "s", epoch, columns([epoch]))
        output._gathered.flush()
        (made,) = set(staging.glob("*")) - before
        at_noon(made)
        return made

    staging = tmp_path / "out" / ".staging"
    left = stage(writer(1), 1)
    output = writer(2)
    own = stage(output, 1)
    earlier, others = staging / f"out-12345678-{'0' * 32}", staging / f"other-12345678-{'0' * 32}"
    for file in (earlier, others):
        file.touch()
        at_noon(file)
    output.sweep(Timestamp(NOW + HOUR - MINUTE))
    assert set(staging.glob("*")) == {left, own, earlier, others}
    output.sweep(Timestamp(NOW + HOUR))
    assert set(staging.glob("*")) == {own, others}, "what waits for its commit stays, and what is another delivery's"
    output.commit(1)
    assert not own.exists()
