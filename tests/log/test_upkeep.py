"""The log is kept small beside its commits: no record changes but by retention, and nobody's commit is passed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from millstream.errors import LogError
from millstream.journal.disk import LocalDisk
from millstream.log import upkeep as module
from millstream.log.entries import entry_path
from millstream.log.history import At
from millstream.log.keeping import Keeping, Needs
from millstream.log.reading_history import history, records
from millstream.log.snapshot import LogSnapshot, read_entry
from millstream.log.upkeep import Upkeep
from millstream.timestamp import HOUR, MINUTE, SECOND, Duration, Timestamp
from tests.log.made import Clock, Table, local, rows, values


def upkeep(table: Table, path: Path, *, retention: Duration | None = None, **streams: Keeping) -> Upkeep:
    return Upkeep(table.history, path, retention=retention, streams=streams)


def run(upkeep: Upkeep, table: Table, **needed_from: int) -> None:
    """All there is to do, once."""
    while upkeep.run(table.clock.now, Needs(table.at.upto, needed_from)):
        pass
    table.at = table.history.position()


def live(path: Path) -> set[str]:
    return set(LogSnapshot(LocalDisk(path)).files)


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.glob("*-*-*/*.parquet")}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(tmp_path: Path, clock: Clock) -> Table:
    """A hundred entries."""
    made = local(tmp_path, clock)
    made.grow(*range(1, 101))
    return made


def test_small_files_are_merged_and_the_records_stay(table: Table, tmp_path: Path) -> None:
    before = records(table.history.disk, "s")
    run(upkeep(table, tmp_path), table)
    assert records(table.history.disk, "s") == before
    assert len(live(tmp_path)) == 1
    assert values(tmp_path) == sorted([*range(1, 101)] * 2)
    assert table.history.position() == At(table.at.version, 100)
    merge = read_entry(table.history.disk, 101)
    assert merge is not None
    assert not any(add.data_change for add in merge.added)  # whoever follows the table sees nothing new
    assert list(tmp_path.glob("_delta_log/*.checkpoint.parquet"))
    table.grow(101)
    assert values(tmp_path) == sorted([*range(1, 102)] * 2)


def test_the_number_of_live_files_does_not_follow_the_entries(tmp_path: Path) -> None:
    table = local(tmp_path)
    keeper = upkeep(table, tmp_path)
    for start in range(1, 400, 40):
        table.grow(*range(start, start + 40))
        run(keeper, table)
    assert len(live(tmp_path)) <= 64
    assert values(tmp_path) == sorted([*range(1, 401)] * 2)


def test_opening_costs_the_same_however_many_entries_there_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_KEPT", 5)
    table = local(tmp_path)
    keeper = upkeep(table, tmp_path)
    for start in range(1, 200, 20):
        table.grow(*range(start, start + 20))
        run(keeper, table)
    assert len(list(tmp_path.glob("_delta_log/*.json"))) < 50
    assert len(list(tmp_path.glob("_delta_log/*.checkpoint.parquet"))) == 2
    newest = sorted(tmp_path.glob("_delta_log/*.checkpoint.parquet"))[-1]
    assert pq.read_table(newest)["add"].drop_null().length() <= 64 + 20
    assert values(tmp_path) == sorted([*range(1, 201)] * 2)
    assert local(tmp_path).at == table.history.position()


def test_checkpoints_of_the_table_do_not_remember_the_files_that_left_it(tmp_path: Path) -> None:
    """But for those of the last minute: by default Delta remembers them for a week, and a checkpoint would grow with the merges."""
    table = local(tmp_path)
    table.clock.now = Timestamp(time.time_ns() // 1000 - 2 * MINUTE)
    keeper = upkeep(table, tmp_path)
    for start in range(1, 400, 80):
        table.grow(*range(start, start + 80))
        run(keeper, table)
    left = sum(len(entry.removed) for version in range(table.at.version + 1) if (entry := read_entry(table.history.disk, version)))
    assert left >= 64, "files have left the table"
    newest = sorted(tmp_path.glob("_delta_log/*.checkpoint.parquet"))[-1]
    assert pq.read_table(newest)["remove"].drop_null().length() == 0
    table.clock.now = Timestamp(time.time_ns() // 1000)
    table.grow(*range(401, 481))
    run(keeper, table)
    newest = sorted(tmp_path.glob("_delta_log/*.checkpoint.parquet"))[-1]
    young = pq.read_table(newest)["remove"].drop_null()
    assert 0 < len(young) <= 160
    assert all(each["deletionTimestamp"].as_py() >= table.clock.now // 1000 for each in young)


def test_a_merge_is_bounded_in_bytes_and_rows(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sum(file.size for file in LogSnapshot(table.history.disk).files.values())
    monkeypatch.setattr(module, "BYTES_PER_MERGE", whole // 4)
    keeper = upkeep(table, tmp_path)
    assert keeper.run(table.clock.now)
    assert 75 <= len(live(tmp_path)) <= 77
    monkeypatch.setattr(module, "ROWS_PER_MERGE", 100)
    assert keeper.run(table.clock.now)
    assert 50 < len(live(tmp_path)) < 64  # below that, nothing is due
    assert not keeper.run(table.clock.now)
    assert values(tmp_path) == sorted([*range(1, 101)] * 2)


def test_full_files_are_not_written_again(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_PER_FILE", 2)
    before = live(tmp_path)
    run(upkeep(table, tmp_path), table)
    assert live(tmp_path) == before


def test_what_left_the_table_is_deleted_an_hour_later_also_by_a_later_run(table: Table, tmp_path: Path, clock: Clock) -> None:
    for file in files(tmp_path):
        os.utime(tmp_path / file, (0, 0))  # they are old, and leave now
    run(upkeep(table, tmp_path), table)
    before = files(tmp_path)
    assert len(before) > 100 > len(live(tmp_path))
    clock.now += HOUR - SECOND
    run(upkeep(table, tmp_path), table)
    assert files(tmp_path) == before
    clock.now += 2 * SECOND
    run(upkeep(table, tmp_path), table)
    assert files(tmp_path) == live(tmp_path)
    assert values(tmp_path) == sorted([*range(1, 101)] * 2)


def test_an_orphan_goes_after_an_hour_unless_an_entry_names_it_or_this_process_will(tmp_path: Path, clock: Clock) -> None:
    table, other = local(tmp_path / "log", clock), local(tmp_path / "log", clock)
    other.history._unique = iter(f"other{n}" for n in range(9)).__next__
    root = tmp_path / "log"
    orphan = other.history.stage("s", rows(1))
    slow = other.history.stage("s", rows(1))
    own = table.history.stage("s", rows(1))
    for file in (orphan, slow, own):
        os.utime(root / file.path, (int(clock.now) / 1e6,) * 2)
    keeper = upkeep(table, root)
    clock.now += HOUR - SECOND
    run(keeper, table)
    assert files(root) == {orphan.path, slow.path, own.path}
    assert other.history.commit([slow], after=other.at, to=1) is not None
    clock.now += 2 * SECOND
    run(keeper, table)
    assert files(root) == {slow.path, own.path}
    assert values(root) == [1, 1]


def test_an_entry_that_a_killed_writer_was_writing_aside_goes_after_an_hour(tmp_path: Path, clock: Clock) -> None:
    table = local(tmp_path, clock)
    table.grow(1)
    aside = tmp_path / "_delta_log" / ".00000000000000000002.json-4f0c"
    aside.touch()
    os.utime(aside, (int(clock.now) / 1e6,) * 2)
    clock.now += HOUR - SECOND
    run(upkeep(table, tmp_path), table)
    assert aside.exists()
    clock.now += SECOND
    run(upkeep(table, tmp_path), table)
    assert not aside.exists()
    assert values(tmp_path) == [1, 1]


def test_retention_goes_by_the_time_of_writing(tmp_path: Path, clock: Clock) -> None:
    table = local(tmp_path, clock)
    table.grow(*range(1, 71))
    keeper = upkeep(table, tmp_path, retention=2 * HOUR)
    run(keeper, table)
    assert len(live(tmp_path)) == 1
    clock.now += HOUR
    table.grow(*range(71, 141))
    run(keeper, table)  # they are merged, but not with older ones: what is in one file is as young as its newest record
    assert len(values(tmp_path)) == 280
    assert len(live(tmp_path)) == 2
    clock.now += HOUR
    table.grow(141)
    run(keeper, table)
    assert len(values(tmp_path)) == 282
    clock.now += 10 * SECOND
    run(keeper, table)
    assert values(tmp_path) == sorted([*range(71, 142)] * 2)
    clock.now += HOUR
    run(keeper, table)
    assert values(tmp_path) == [141, 141]
    assert table.history.position().upto == 141


def test_retention_leaves_what_a_delivery_needs(tmp_path: Path, clock: Clock) -> None:
    table = local(tmp_path, clock)
    table.grow(1, 2, 3)
    table.grow(4, stream="t")
    clock.now += 2 * HOUR
    made = upkeep(table, tmp_path, retention=HOUR)
    run(made, table, s=2)
    assert values(tmp_path) == [2, 2, 3, 3]
    assert made.kept == {"s"}
    made = upkeep(table, tmp_path, retention=HOUR)
    run(made, table)
    assert values(tmp_path) == []
    assert made.kept == frozenset()


def test_retention_leaves_what_came_after_all_that_is_known_of_readers(tmp_path: Path, clock: Clock) -> None:
    """The writer may write a commit before it hears who needs it."""
    table = local(tmp_path, clock)
    table.grow(1, 2, 3)
    clock.now += 2 * HOUR
    made = upkeep(table, tmp_path, retention=HOUR)
    made.run(clock.now, Needs(2))
    assert values(tmp_path) == [3, 3]
    assert made.kept == frozenset()  # nobody is known to need it


def test_each_stream_has_the_retention_that_was_asked_for_it(tmp_path: Path, clock: Clock) -> None:
    table = local(tmp_path, clock)
    for epoch, stream in enumerate(("usual", "short", "long", "ever"), 1):
        table.grow(epoch, stream=stream)
    made = upkeep(table, tmp_path, retention=2 * HOUR, short=Keeping(HOUR), long=Keeping(3 * HOUR), ever=Keeping(None))
    for left in ([1, 2, 3, 4], [1, 3, 4], [3, 4], [4], [4]):
        run(made, table)
        assert values(tmp_path) == sorted(left * 2)
        clock.now += HOUR + SECOND


def test_a_slow_stream_grows_old_though_its_files_are_merged(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged with whatever is young, its records would be young for ever."""
    monkeypatch.setattr(module, "FILES_PER_MERGE", 4)
    table = local(tmp_path, clock)
    keeper = upkeep(table, tmp_path, retention=HOUR)
    for epoch in range(1, 61):
        table.grow(epoch)
        run(keeper, table)
        clock.now += 3 * MINUTE
    found = set(values(tmp_path))
    assert set(range(41, 61)) <= found <= set(range(35, 61))
    assert len(live(tmp_path)) < 15


def test_files_younger_than_the_retention_stay(table: Table, tmp_path: Path) -> None:
    run(upkeep(table, tmp_path, retention=HOUR), table)
    assert len(values(tmp_path)) == 200


def test_neither_commit_nor_upkeep_passes_the_other(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what upkeep has read and its entry the writer commits, and the other way round."""
    keeper = upkeep(table, tmp_path)
    real = table.history.replace

    def slow(*given: object, **options: object) -> bool:
        table.grow(table.at.upto + 1)
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(table.history, "replace", slow)
    assert keeper.run(table.clock.now)
    monkeypatch.undo()
    table.grow(102)  # goes on from where it was: upkeep has moved no epoch
    assert table.history.position() == At(table.at.version, 102)
    assert values(tmp_path) == sorted([*range(1, 103)] * 2)


def test_of_two_upkeeps_one_merges(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other finds that what it would remove is gone, and throws away what it wrote."""
    other = Table(LocalDisk(tmp_path), table.clock)
    other.history._unique = iter(f"other{n}" for n in range(99)).__next__
    first, second = upkeep(table, tmp_path), upkeep(other, tmp_path)
    real = other.history.replace

    def slow(*given: object, **options: object) -> bool:
        assert first.run(table.clock.now)
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(other.history, "replace", slow)
    assert not second.run(table.clock.now)
    assert values(tmp_path) == sorted([*range(1, 101)] * 2)
    assert not [file for file in files(tmp_path) if "other" in file]


def test_who_reads_on_while_files_are_merged_and_deleted_finds_every_epoch(table: Table, tmp_path: Path) -> None:
    reading = history(table.history.disk, "s", 0, 100)
    found = [next(reading) for _ in range(10)]
    run(upkeep(table, tmp_path), table)
    for file in files(tmp_path) - live(tmp_path):
        (tmp_path / file).unlink()
    found += reading
    assert [epoch for epoch, _ in found] == [*range(1, 101)]


def test_a_damaged_file_is_named_and_nothing_is_merged(table: Table, tmp_path: Path) -> None:
    file = sorted(live(tmp_path))[3]
    content = bytearray((tmp_path / file).read_bytes())
    content[40] ^= 1
    (tmp_path / file).write_bytes(content)
    with pytest.raises(LogError, match=f"{file} is damaged"):
        upkeep(table, tmp_path).run(table.clock.now)
    assert len(live(tmp_path)) == 100


def test_a_checkpoint_of_delta_is_needed_by_nobody_who_has_the_entries(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hint may be torn, or it may be gone, as long as the entries are there."""
    run(upkeep(table, tmp_path), table)
    (tmp_path / "_delta_log" / "_last_checkpoint").write_bytes(b"{")
    assert LogSnapshot(table.history.disk).upto == 100
    for checkpoint in tmp_path.glob("_delta_log/*.checkpoint.parquet"):
        checkpoint.unlink()
    assert LogSnapshot(table.history.disk).upto == 100
    assert (tmp_path / entry_path(0)).exists()


def test_merged_files_are_sorted(table: Table, tmp_path: Path) -> None:
    run(upkeep(table, tmp_path), table)
    (file,) = live(tmp_path)
    content: pa.Table = pq.read_table(tmp_path / file, partitioning=None)
    assert content["epoch"].to_pylist() == [epoch for epoch in range(1, 101) for _ in range(2)]
    assert DeltaTable(str(tmp_path)).version() == table.at.version
