"""The log's table: what any tool sees of it, damage, and writers that come too late."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from millstream.errors import LogError
from millstream.journal.disk import LocalDisk
from millstream.log.entries import APP_ID, entry_path
from millstream.log.history import At, read_file
from millstream.log.snapshot import LogSnapshot, read_entry
from tests.journal.simdisk import SimDisk
from tests.log.made import Table, local, rows, values


def test_any_tool_reads_it(tmp_path: Path) -> None:
    table = local(tmp_path)
    table.grow(1, 2, 3)
    table.grow(4, stream="page views/ä")
    delta = DeltaTable(str(tmp_path))
    assert delta.transaction_version(APP_ID) == 4
    found = delta.to_pyarrow_table()
    assert found.column_names == ["stream", "key", "value", "timestamp", "epoch", "origin", "major", "minor"]
    assert duckdb.sql("select stream, count(*), max(epoch) from found group by 1 order by 1").fetchall() == [
        ("page views/ä", 2, 4),
        ("s", 6, 3),
    ]
    assert delta.to_pyarrow_table(filters=[("stream", "=", "s")]).num_rows == 6
    delta.create_checkpoint()
    assert values(tmp_path) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_snapshot_is_the_same_from_a_checkpoint_and_from_entries(tmp_path: Path) -> None:
    table = local(tmp_path)
    table.grow(*range(1, 10))
    before = LogSnapshot(table.history.disk)
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(9):
        (tmp_path / entry_path(version)).unlink()
    after = LogSnapshot(table.history.disk)
    assert (after.files, after.version, after.upto) == (before.files, before.version, before.upto)
    table.grow(10)
    after.advance()
    assert (len(after.files), after.upto) == (10, 10)


def test_no_bit_of_an_entry_can_turn_without_being_noticed(tmp_path: Path) -> None:
    table = local(tmp_path)
    table.grow(1)
    path = tmp_path / entry_path(1)
    whole = path.read_bytes()
    for place in range(len(whole)):
        turned = bytearray(whole)
        turned[place] ^= 1 << place % 7
        path.write_bytes(turned)
        with pytest.raises(LogError, match=rf"{path.name} is damaged"):
            read_entry(table.history.disk, 1)
    path.write_bytes(whole[:-40])
    with pytest.raises(LogError, match=rf"{path.name} is damaged"):
        read_entry(table.history.disk, 1)


def test_a_file_that_is_torn_or_has_a_turned_bit_is_named(tmp_path: Path) -> None:
    table = local(tmp_path)
    table.grow(1)
    (file,) = LogSnapshot(table.history.disk).files
    path = tmp_path / file
    whole = path.read_bytes()
    noticed = 0
    for place in range(0, len(whole), 5):
        turned = bytearray(whole)
        turned[place] ^= 1 << place % 8
        path.write_bytes(turned)
        try:
            assert read_file(table.history.disk, file).num_rows == 2
        except LogError as error:
            noticed += f"{file} is damaged" in str(error)
    assert noticed > len(whole) / 5 / 4  # of the footer, not all bits matter
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LogError, match=f"{file} is damaged"):
        read_file(table.history.disk, file)
    path.unlink()
    with pytest.raises(LogError, match=f"{file} is missing, and the log names it"):
        read_file(table.history.disk, file)


def test_an_entry_that_is_missing_is_named(tmp_path: Path) -> None:
    table = local(tmp_path)
    table.grow(1, 2, 3)
    (tmp_path / entry_path(2)).unlink()
    with pytest.raises(LogError, match=rf"{entry_path(2)} is missing, and later entries are there"):
        LogSnapshot(table.history.disk)


def test_another_tool_that_writes_between_moves_no_epoch(tmp_path: Path) -> None:
    table = local(tmp_path)
    table.grow(1, 2)
    DeltaTable(str(tmp_path)).optimize.compact()
    assert table.history.position() == At(table.at.version + 1, 2)
    table.grow(3)
    assert values(tmp_path) == [1, 1, 2, 2, 3, 3]
    assert len(LogSnapshot(table.history.disk).files) == 2


def test_a_writer_that_slept_while_its_number_was_cleaned_away_must_stop(tmp_path: Path) -> None:
    table, late = local(tmp_path), local(tmp_path)
    table.grow(*range(1, 6))
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(4):
        (tmp_path / entry_path(version)).unlink()
    with pytest.raises(LogError, match="another run has written the log meanwhile; this one must stop"):
        late.grow(1)
    assert not (tmp_path / entry_path(1)).exists()
    assert values(tmp_path) == sorted([*range(1, 6)] * 2)


@pytest.mark.parametrize("fault", ["answer", "taken"])
def test_an_entry_whose_answer_was_lost_is_known_by_its_content(fault: str) -> None:
    disk = SimDisk()
    table = Table(disk)
    setattr(disk.faults, fault, True)
    table.grow(1)
    assert table.history.position() == At(1, 1)
    assert LogSnapshot(disk).upto == 1


def test_a_refused_writer_leaves_no_file(tmp_path: Path) -> None:
    table, late = local(tmp_path), local(tmp_path)
    table.grow(1)
    assert late.history.commit([late.history.stage("s", rows(1))], after=late.at, to=1) is None
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.glob("*/*.parquet")} == set(LogSnapshot(LocalDisk(tmp_path)).files)


def test_a_full_disk_changes_nothing() -> None:
    disk = SimDisk()
    table = Table(disk)
    table.grow(1)
    disk.faults.space = 100
    with pytest.raises(LogError, match="cannot be used: No space left on device; make room and start again"):
        table.grow(2)
    disk.faults.space = None
    assert table.history.position() == At(1, 1)
    table.grow(2)
    assert LogSnapshot(disk).upto == 2
