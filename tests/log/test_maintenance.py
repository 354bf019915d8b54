"""The log is kept small, and nothing that a consumer has not read is touched."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import millstream as ms
from millstream.core.backlog import Position
from millstream.log import maintenance
from millstream.log.folder import Folder, write_json
from millstream.log.maintenance import Keeper, consumed, live_files, sweep_orphans
from millstream.log.table import newest_note, newest_version, tail
from tests.log.test_table import made, staged


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def grow(folder: Folder, epochs: range) -> None:
    table = made(folder.table("mill")) if epochs.start == 0 else maintenance_table(folder)
    for epoch in epochs:
        table.commit(staged(table.path, epoch), b'{"n":%d}' % epoch, writer="mill", epoch=epoch)


def maintenance_table(folder: Folder):  # type: ignore[no-untyped-def]
    from millstream.log.table import Table

    return Table(folder.table("mill"), "mill", 1)


def values(folder: Folder) -> list[int]:
    return sorted(int(value) for value in DeltaTable(str(folder.table("mill"))).to_pyarrow_table()["value"].to_pylist())


def test_read_files_are_compacted_and_the_records_stay(folder: Folder) -> None:
    grow(folder, range(100))
    version = newest_version(folder.table("mill")) + 1
    write_json(folder.consumer("mill"), {"mill": Position(version)})
    before = values(folder)
    keeper = Keeper(folder, "mill", retention=None, fence=1)
    keeper.look_after()
    assert values(folder) == before
    assert len(live_files(DeltaTable(str(folder.table("mill"))), "mill")) < 100 / 10
    assert all(not commit.files for commit in tail(folder.table("mill"), "mill", Position(version)))  # no reader notices
    assert newest_note(folder.table("mill"), "mill") == (101, b'{"n":99}')
    assert list(folder.table("mill").glob("_delta_log/*.checkpoint.parquet"))


def test_a_checkpoint_forgets_what_left_the_table_and_was_deleted(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a commit would cost more with every epoch that there ever was."""
    monkeypatch.setattr("millstream.log.table.REMEMBERED", {"delta.deletedFileRetentionDuration": "interval 1 milliseconds"})
    monkeypatch.setattr(maintenance, "HOURS_KEPT", 0)
    monkeypatch.setattr(maintenance, "CHECKPOINT_EVERY", 1)
    grow(folder, range(100))
    write_json(folder.consumer("mill"), {"mill": Position(newest_version(folder.table("mill")) + 1)})
    keeper = Keeper(folder, "mill", retention=None, fence=1)
    for _ in range(3):  # what the first merges, the next deletes and the last forgets
        keeper.look_after()
        maintenance_table(folder).annotate(b'{"n":99}')
    newest = sorted(folder.table("mill").glob("_delta_log/*.checkpoint.parquet"))[-1]
    assert pq.read_table(newest)["remove"].drop_null().length() == 0
    live = {file.path for file in live_files(DeltaTable(str(folder.table("mill"))), "mill")}
    assert {str(file.relative_to(folder.table("mill"))) for file in folder.table("mill").glob("[0-9]*/*")} == live
    assert values(folder) == sorted([*range(100), *range(100)])


def test_what_a_consumer_has_not_read_stays_as_it_is(folder: Folder) -> None:
    grow(folder, range(100))
    write_json(folder.consumer("fast"), {"mill": Position(102)})
    write_json(folder.consumer("slow"), {"mill": Position(12)})
    assert consumed(folder, "mill") == 12
    Keeper(folder, "mill", retention=0 * ms.SECOND, fence=1).look_after()
    kept = [file for commit in tail(folder.table("mill"), "mill", Position(12)) for file in commit.files]
    assert len(kept) == 90
    assert all((folder.table("mill") / file.path).exists() for file in kept)
    assert values(folder)[:2] == [10, 10]  # what all have read is gone: the retention is zero


def test_versions_before_the_checkpoint_are_cleaned_away(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "COMMITS_KEPT", 5)
    keeper = None
    for start in range(0, 100, 20):
        grow(folder, range(start, start + 20))
        write_json(folder.consumer("mill"), {"mill": Position(newest_version(folder.table("mill")) + 1)})
        keeper = keeper or Keeper(folder, "mill", retention=None, fence=1)
        keeper.look_after()
    assert len(list(folder.table("mill").glob("_delta_log/*.json"))) < 50
    assert values(folder) == sorted([*range(100), *range(100)])


def test_orphans_are_swept_and_what_a_manifest_names_is_not(folder: Folder) -> None:
    grow(folder, range(3))
    orphan, promised = staged(folder.table("mill"), 3), staged(folder.table("mill"), 3)
    write_json(folder.manifests / "000000000003-000001.json", promised)
    assert sweep_orphans(folder, "mill") == 1
    assert not (folder.table("mill") / orphan[0].path).exists()
    assert (folder.table("mill") / promised[0].path).exists()
    assert values(folder) == [0, 0, 1, 1, 2, 2]


def test_files_younger_than_the_retention_stay(folder: Folder) -> None:
    grow(folder, range(30))
    write_json(folder.consumer("mill"), {"mill": Position(newest_version(folder.table("mill")) + 1)})
    Keeper(folder, "mill", retention=ms.HOUR, fence=1).look_after()
    assert len(values(folder)) == 60


def test_the_number_of_live_files_does_not_follow_the_epochs(folder: Folder) -> None:
    keeper = None
    for start in range(0, 200, 40):
        grow(folder, range(start, start + 40))
        write_json(folder.consumer("mill"), {"mill": Position(newest_version(folder.table("mill")) + 1)})
        keeper = keeper or Keeper(folder, "mill", retention=None, fence=1)
        keeper.look_after()
    assert len(live_files(DeltaTable(str(folder.table("mill"))), "mill")) <= 64
    assert values(folder) == sorted([*range(200), *range(200)])
