"""The log is kept small, and nothing that a consumer has not read is touched."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

import millstream as ms
from millstream.core.backlog import Position
from millstream.log import maintenance
from millstream.log import staged as staging
from millstream.log.folder import Folder, Pinned, write_json
from millstream.log.maintenance import Keeper, consumed, live_files
from millstream.log.reading import newest_records
from millstream.log.table import SCHEMA, Table, newest_note, newest_version, tail
from tests.log.test_table import made, staged


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


_grown: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A log that most tests begin with; it is made once."""
    _grown.append(tmp_path_factory.mktemp("grown"))
    grow(Folder(_grown[0]), range(100))
    yield
    _grown.clear()


def a_hundred_epochs(folder: Folder) -> None:
    shutil.copytree(_grown[0], folder.path, dirs_exist_ok=True)


def grow(folder: Folder, epochs: range) -> None:
    table = made(folder.table("mill")) if epochs.start == 0 else maintenance_table(folder)
    for epoch in epochs:
        table.commit(staged(table.path, epoch), b'{"n":%d}' % epoch, writer="mill", epoch=epoch)


def maintenance_table(folder: Folder) -> Table:
    return Table(folder.table("mill"), "mill", 1)


def values(folder: Folder) -> list[int]:
    return sorted(int(value) for value in DeltaTable(str(folder.table("mill"))).to_pyarrow_table()["value"].to_pylist())


def test_read_files_are_compacted_and_the_records_stay(folder: Folder) -> None:
    a_hundred_epochs(folder)
    version = newest_version(folder.table("mill")) + 1
    write_json(folder.consumer("mill"), {"mill": Position(version)})
    before = values(folder)
    keeper = Keeper(folder, "mill", readers=["mill"], retention=None, fence=1)
    keeper.look_after()
    assert values(folder) == before
    assert len(live_files(DeltaTable(str(folder.table("mill"))), "mill")) < 100 / 10
    assert all(not commit.files for commit in tail(folder.table("mill"), "mill", Position(version)))  # no reader notices
    assert newest_note(folder.table("mill"), "mill") == (101, b'{"n":99}')
    assert list(folder.table("mill").glob("_delta_log/*.checkpoint.parquet"))


def all_read(folder: Folder) -> None:
    write_json(folder.consumer("mill"), {"mill": Position(newest_version(folder.table("mill")) + 1)})


def files_of(folder: Folder) -> set[str]:
    return {str(file.relative_to(folder.table("mill"))) for file in folder.table("mill").glob("[0-9]*/*")}


def live(folder: Folder) -> set[str]:
    return {file.path for file in live_files(DeltaTable(str(folder.table("mill"))), "mill")}


def test_a_checkpoint_forgets_what_left_the_table(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an epoch would cost more with every epoch that there ever was."""
    monkeypatch.setattr("millstream.log.table.REMEMBERED", {"delta.deletedFileRetentionDuration": "interval 1 milliseconds"})
    monkeypatch.setattr(maintenance, "CHECKPOINT_EVERY", 1)
    grow(folder, range(100))
    all_read(folder)
    keeper = Keeper(folder, "mill", readers=["mill"], retention=None, fence=1)
    for _ in range(2):  # what the first merges the next forgets
        keeper.look_after()
        maintenance_table(folder).annotate(b'{"n":99}')
    newest = sorted(folder.table("mill").glob("_delta_log/*.checkpoint.parquet"))[-1]
    assert pq.read_table(newest)["remove"].drop_null().length() == 0
    assert len(files_of(folder)) > len(live(folder)), "somebody may be reading them"


@pytest.mark.parametrize("restart", [False, True])
def test_what_left_the_table_is_deleted_an_hour_later(folder: Folder, monkeypatch: pytest.MonkeyPatch, restart: bool) -> None:
    a_hundred_epochs(folder)
    for file in files_of(folder):
        os.utime(folder.table("mill") / file, (0, 0))  # they are old, and leave now
    all_read(folder)
    keeper = Keeper(folder, "mill", readers=["mill"], retention=None, fence=1)
    keeper.look_after()
    before = files_of(folder)
    assert len(before) > 100 > len(live(folder))

    def later(seconds: float) -> None:
        now = time.time()
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda: now + seconds)
            (Keeper(folder, "mill", readers=["mill"], retention=None, fence=1) if restart else keeper).look_after()

    later(3500)
    assert files_of(folder) == before
    later(3700)
    assert files_of(folder) == live(folder)
    assert values(folder) == sorted([*range(100), *range(100)])


def test_what_a_consumer_has_not_read_stays_as_it_is(folder: Folder) -> None:
    a_hundred_epochs(folder)
    write_json(folder.consumer("mill"), {"mill": Position(102)})
    write_json(folder.consumer("slow"), {"mill": Position(12)})
    assert consumed(folder, "mill") == 12
    Keeper(folder, "mill", readers=["mill"], retention=0 * ms.SECOND, fence=1).look_after()
    kept = [file for commit in tail(folder.table("mill"), "mill", Position(12)) for file in commit.files]
    assert len(kept) == 90
    assert all((folder.table("mill") / file.path).exists() for file in kept)
    assert values(folder)[:2] == [10, 10]  # what all have read is gone: the retention is zero


def test_versions_before_the_checkpoint_are_cleaned_away(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "COMMITS_KEPT", 5)
    keeper = None
    for start in range(0, 100, 20):
        grow(folder, range(start, start + 20))
        all_read(folder)
        keeper = keeper or Keeper(folder, "mill", readers=["mill"], retention=None, fence=1)
        keeper.look_after()
    assert len(list(folder.table("mill").glob("_delta_log/*.json"))) < 50
    assert values(folder) == sorted([*range(100), *range(100)])


def test_what_crashed_attempts_left_is_swept_at_the_start_and_what_a_manifest_names_is_not(folder: Folder) -> None:
    grow(folder, range(3))
    orphan, promised = staged(folder.table("mill"), 3), staged(folder.table("mill"), 3)
    write_json(folder.manifests / "000000000003-000001.json", promised)
    Keeper(folder, "mill", readers=["mill"], retention=None, fence=1)
    assert files_of(folder) == live(folder) | {promised[0].path}
    assert orphan[0].path != promised[0].path
    assert values(folder) == [0, 0, 1, 1, 2, 2]


def test_what_an_attempt_of_a_published_epoch_left_waits_as_if_it_had_been_in_the_table(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(folder, range(3))
    orphan = staged(folder.table("mill"), 1)[0].path
    Keeper(folder, "mill", readers=["mill"], retention=None, fence=1).look_after()
    assert files_of(folder) == live(folder) | {orphan}
    monkeypatch.setattr(maintenance, "HOURS_KEPT", 0)
    Keeper(folder, "mill", readers=["mill"], retention=None, fence=1).look_after()
    assert files_of(folder) == live(folder)


def test_a_table_whose_files_all_have_left_is_told_from_one_that_never_had_any(folder: Folder) -> None:
    """What left it lately may still be read, though no live file says how far its epochs had come."""
    grow(folder, range(30))
    all_read(folder)
    Keeper(folder, "mill", readers=["mill"], retention=0 * ms.SECOND, fence=1).look_after()
    assert not live(folder)
    before = files_of(folder)
    Keeper(folder, "mill", readers=["mill"], retention=None, fence=1)
    assert files_of(folder) == before != set()


def rewritten(folder: Folder) -> set[str]:
    """What a new keeper makes anew of the files that it finds."""
    before = live(folder)
    Keeper(folder, "mill", readers=["mill"], retention=None, fence=1).look_after()
    return live(folder) - before


def test_files_that_are_full_are_not_written_again_at_every_start(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "ROWS_A_FILE", 2)
    monkeypatch.setattr("millstream.log.staged.ROWS_A_FILE", 2)
    a_hundred_epochs(folder)  # two rows an epoch: full already, though they are not large
    all_read(folder)
    assert rewritten(folder) == set()


def test_no_more_rows_are_merged_at_once_than_memory_should_hold(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "COMPACT_ROWS", 50)
    merged = list[int]()
    real = maintenance.stage
    monkeypatch.setattr(maintenance, "stage", lambda *given, **told: merged.append(given[2].num_rows) or real(*given, **told))
    a_hundred_epochs(folder)
    all_read(folder)
    assert len(rewritten(folder)) == len(merged) == 4
    assert merged == [50] * 4
    assert values(folder) == sorted([*range(100), *range(100)])


def test_no_more_bytes_are_merged_at_once_than_memory_should_hold(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    a_hundred_epochs(folder)
    whole = sum(file.size for file in live_files(DeltaTable(str(folder.table("mill"))), "mill"))
    monkeypatch.setattr(maintenance, "COMPACT_SIZE", whole // 3)
    all_read(folder)
    assert 3 <= len(rewritten(folder)) <= 4


def test_what_earlier_runs_left_is_merged_when_a_new_reader_has_caught_up(folder: Folder) -> None:
    a_hundred_epochs(folder)
    all_read(folder)
    keeper = Keeper(folder, "mill", readers=["mill", "deliver new"], retention=None, fence=1)
    keeper.look_after()
    assert len(live(folder)) == 100
    write_json(folder.consumer("deliver new"), {"mill": Position(newest_version(folder.table("mill")) + 1)})
    keeper.look_after()
    assert len(live(folder)) == 1


def test_files_grow_no_younger_by_being_merged(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(maintenance, "CHECKPOINT_EVERY", 1)
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: now - 7200)
        grow(folder, range(100))
    all_read(folder)
    assert rewritten(folder)
    maintenance_table(folder).annotate(b"{}")
    Keeper(folder, "mill", readers=["mill"], retention=ms.HOUR, fence=1).look_after()
    assert live(folder) == set()


def test_the_newest_records_are_found_among_merged_files(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (maintenance, staging):
        monkeypatch.setattr(module, "ROWS_A_FILE", 50)
    a_hundred_epochs(folder)
    write_json(folder.pinned, Pinned("t", "id", str(folder.path), [0], 1))
    all_read(folder)
    assert len(rewritten(folder)) == 4
    grow(folder, range(100, 101))
    found = [msgspec.json.decode(line)["id"] for line in newest_records(folder.path, "s", 5)]
    assert found == ["mill/98/1", "mill/99/0", "mill/99/1", "mill/100/0", "mill/100/1"]


def test_a_file_that_an_older_run_was_slow_to_commit_is_not_deleted(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked like a leftover when the new run began, and the commit of a merge carries no fence."""
    monkeypatch.setattr(maintenance, "HOURS_KEPT", 0)
    grow(folder, range(3))
    slow = staged(folder.table("mill"), 1)[0]
    keeper = Keeper(folder, "mill", readers=["mill"], retention=None, fence=1)
    late = AddAction(slow.path, slow.size, {"stream": "s"}, 0, False, slow.statistics())
    DeltaTable(str(folder.table("mill"))).create_write_transaction([late], "append", SCHEMA, ["stream"])
    keeper.look_after()
    assert slow.path in files_of(folder)
    assert values(folder) == [0, 0, 1, 1, 1, 1, 2, 2]


def test_a_keeper_whose_run_has_lost_the_table_changes_nothing_in_it(folder: Folder) -> None:
    a_hundred_epochs(folder)
    all_read(folder)
    keeper = Keeper(folder, "mill", readers=["mill"], retention=0 * ms.SECOND, fence=1)
    Table(folder.table("mill"), "mill", 2).raise_fence()
    before = files_of(folder)
    keeper.look_after()
    assert (files_of(folder), live(folder)) == (before, before)


def test_a_reader_that_has_not_said_how_far_it_is_has_read_nothing(folder: Folder) -> None:
    a_hundred_epochs(folder)
    all_read(folder)
    write_json(folder.consumer("deliver torn"), {"another table": Position(7)})
    assert consumed(folder, "mill", ["mill"]) == 102
    assert consumed(folder, "mill", ["mill", "deliver gone"]) == 0
    assert consumed(folder, "mill", ["mill", "deliver torn"]) == 0


def test_files_younger_than_the_retention_stay(folder: Folder) -> None:
    grow(folder, range(30))
    all_read(folder)
    Keeper(folder, "mill", readers=["mill"], retention=ms.HOUR, fence=1).look_after()
    assert len(values(folder)) == 60


def test_the_number_of_live_files_does_not_follow_the_epochs(folder: Folder) -> None:
    keeper = None
    for start in range(0, 200, 40):
        grow(folder, range(start, start + 40))
        all_read(folder)
        keeper = keeper or Keeper(folder, "mill", readers=["mill"], retention=None, fence=1)
        keeper.look_after()
    assert len(live_files(DeltaTable(str(folder.table("mill"))), "mill")) <= 64
    assert values(folder) == sorted([*range(200), *range(200)])
