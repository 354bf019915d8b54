"""Of what is old the newest record of each key stays in the log, and of what is young everything."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from millstream.errors import LogError
from millstream.journal.disk import LocalDisk
from millstream.log import compaction as module
from millstream.log.compaction import Compaction
from millstream.log.keeping import Keeping, Needs
from millstream.log.reading_history import history
from millstream.log.snapshot import LogSnapshot, read_entry
from millstream.timestamp import SECOND, Duration
from tests.journal.simdisk import Crash, SimDisk
from tests.log.compacted import AFTER, STREAM, Kept, Log, changes, compact, left, newest


@pytest.fixture
def log() -> Log:
    return Log(SimDisk())


def compaction(log: Log, *, is_table: bool = False, after: Duration = AFTER) -> Compaction:
    return Compaction(log.history, {STREAM: Keeping(None, after, is_table)})


def test_the_newest_of_each_key_stays_of_what_is_old_and_all_of_what_is_young(log: Log) -> None:
    old = changes(log)
    log.clock.now += AFTER + SECOND
    young = [*log.write(("k1", "7"), ("k1", "8")), *log.write(("k1", "null"))]
    compact(log)
    assert log.left() == sorted(newest(old) + young)
    log.clock.now += AFTER - SECOND  # just young enough
    compact(log)
    assert log.left() == sorted(newest(old) + young)
    log.clock.now += 2 * SECOND + AFTER // 8
    compact(log)
    assert log.left() == newest(old + young)


def test_newest_is_by_epoch_then_timestamp_then_id(log: Log) -> None:
    log.write(("a", "1"), ("b", "1"), timestamps=[99, 5])
    log.write(("a", "2"), ("a", "3"), ("b", "2"), ("b", "3"), timestamps=[9, 8, 5, 5], files=4)
    log.clock.now += AFTER + SECOND
    compact(log)
    assert [(record.key, record.value) for record in log.left()] == [("b", "3"), ("a", "2")]


def test_a_deletion_goes_when_it_is_the_newest_and_old(log: Log) -> None:
    log.write(("gone", "1"), ("back", "1"), ("stays", "1"))
    log.write(("gone", "null"), ("back", " null "), ("never", "null"))
    log.write(("back", "2"))
    log.clock.now += AFTER + SECOND
    log.write(("stays", "null"))
    compact(log)
    assert [(record.key, record.value) for record in log.left()] == [("stays", "1"), ("back", "2"), ("stays", "null")]


def test_of_a_table_a_change_without_an_after_is_a_deletion(log: Log) -> None:
    values = {
        "a": '{"before":{"after":1},"after":null}',
        "b": '{"before":{"after":1}}',
        "c": '{"before":null,"after":{"x":null}}',
        "d": '{"after":"null"}',
        "e": '{"before":1,"\\u0061fter":null}',
        "f": '["of another type"]',
        "g": "null",
    }
    log.write(*values.items())
    log.clock.now += AFTER + SECOND
    compact(log, compaction(log))
    assert [record.key for record in log.left()] == ["a", "b", "c", "d", "e", "f"]  # elsewhere only a null
    again = Log(SimDisk())
    again.write(*values.items())
    again.clock.now += AFTER + SECOND
    compact(again, compaction(again, is_table=True))
    assert [record.key for record in again.left()] == ["c", "d", "f", "g"]


def test_entries_say_that_records_have_left_and_move_no_epoch(log: Log) -> None:
    log.write(("a", "1"), ("b", "1"))
    log.write(("a", "2"))
    log.clock.now += AFTER + SECOND
    before = LogSnapshot(log.history.disk)
    compact(log)
    assert (log.at.version, log.at.upto) == (3, 2)
    entry = read_entry(log.history.disk, 3)
    assert entry is not None
    assert entry.upto == 2
    assert [add.data_change for add in entry.added] == [True]
    assert b'"operation":"DELETE"' in log.history.disk.read("_delta_log/00000000000000000003.json")
    after = LogSnapshot(log.history.disk)
    assert after.compacted == {STREAM: 2}
    assert {file.modified for file in after.files.values()} <= {file.modified for file in before.files.values()}, "no younger"
    log.write(("a", "3"))
    assert [record.value for record in log.left()] == ["1", "2", "3"]


@pytest.mark.parametrize("rows", [1, 7, 40, 1000])
def test_it_is_done_in_portions(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_PER_STEP", rows)
    disk = SimDisk()
    log = Log(disk)
    written = changes(log, epochs=60, keys=30)
    log.clock.now += AFTER + SECOND
    compacting, snapshot, steps = compaction(log), LogSnapshot(log.history.disk), 0
    while steps == 0 or compacting.is_busy:
        before = len(disk.log)
        compacting.run(snapshot, log.clock.now, Needs(snapshot.upto))
        steps += 1
        read = {what for what in disk.log[before:] if what.startswith("read 20")}
        assert len(read) <= 2 * rows + 6, "a step looks at its portion, and begins the next one"
    assert log.left() == newest(written)
    assert steps > 60 // rows


def test_what_is_compacted_is_not_looked_at_again(tmp_path: Path) -> None:
    """Also by a run that comes later, and that begins with a checkpoint of the table."""
    table = Log(LocalDisk(tmp_path))
    written = changes(table)
    table.clock.now += AFTER + SECOND
    compact(table)
    DeltaTable(str(tmp_path)).create_checkpoint()
    for entry in sorted(tmp_path.glob("_delta_log/*.json"))[:-1]:
        entry.unlink()
    assert LogSnapshot(table.history.disk).compacted == {STREAM: 30}
    for file in tmp_path.glob("*-*-*/*.parquet"):
        file.rename(file.with_suffix(".hidden"))
    compact(table)
    for file in tmp_path.glob("*-*-*/*.hidden"):
        file.rename(file.with_suffix(".parquet"))
    assert table.left() == newest(written)


def test_few_records_wait_for_more_but_not_for_long(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass reads the keys of all that is compacted."""
    monkeypatch.setattr(module, "ROWS_PER_FILE", 20)
    compacting = compaction(log, after=800 * SECOND)
    log.write(*((f"k{n}", "1") for n in range(200)))
    log.clock.now += 10 * SECOND
    log.write(*((f"k{n}", "2") for n in range(30)))
    log.clock.now += 10 * SECOND
    log.write(*((f"k{n}", "3") for n in range(20)))
    log.clock.now += 785 * SECOND  # the first are old
    compact(log, compacting)
    log.clock.now += 10 * SECOND  # now the second, too: fewer than a quarter of the first
    compact(log, compacting)
    assert len(log.left()) == 250
    log.clock.now += 10 * SECOND  # and the third: together they are enough
    compact(log, compacting)
    assert len(log.left()) == 200
    log.write(("k0", "4"))
    log.clock.now += 801 * SECOND  # an eighth of it has passed since
    compact(log, compacting)
    assert len(log.left()) == 200


# Who reads epoch by epoch.


def test_what_somebody_lacks_stays_whole(log: Log) -> None:
    written = changes(log)
    log.clock.now += AFTER + SECOND
    compact(log, needs=Needs(30, {STREAM: 12}))
    assert log.left() == sorted(newest(r for r in written if r.epoch < 12) + [r for r in written if r.epoch >= 12])
    compact(log, needs=Needs(20))  # what came after that commit, somebody may lack
    assert log.left() == sorted(newest(r for r in written if r.epoch <= 20) + [r for r in written if r.epoch > 20])
    compact(log)
    assert log.left() == newest(written)


def test_a_pass_ends_where_somebody_comes_to_need_what_it_would_take(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_PER_STEP", 10)
    written = changes(log)
    log.clock.now += AFTER + SECOND
    compacting, snapshot = compaction(log), LogSnapshot(log.history.disk)
    while snapshot.compacted.get(STREAM, 0) < 9:
        compacting.run(snapshot, log.clock.now, Needs(30))
    bound = snapshot.compacted[STREAM]
    for _ in range(20):
        compacting.run(snapshot, log.clock.now, Needs(30, {STREAM: bound + 1}))
        log.clock.now += 10 * SECOND
    assert [r for r in log.left() if r.epoch > bound] == [r for r in sorted(written) if r.epoch > bound]
    compact(log)
    assert log.left() == newest(written)


def test_who_follows_meanwhile_loses_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads epoch after epoch; what it has read is compacted, and the files that it was about to read go."""
    monkeypatch.setattr(module, "ROWS_PER_STEP", 20)
    written = changes(log)
    log.clock.now += AFTER + SECOND
    compacting, snapshot, found = compaction(log), LogSnapshot(log.history.disk), []
    for epoch, pieces in history(log.history.disk, STREAM, 0, 30):
        found += [(epoch, minor) for piece in pieces for minor in piece.columns.minors]
        for _ in range(4):
            for path in compacting.run(snapshot, log.clock.now, Needs(30, {STREAM: epoch + 1})):
                log.history.disk.remove(path)
            log.clock.now += 10 * SECOND
    assert found == [(r.epoch, r.minor) for r in sorted(written, key=lambda r: (r.epoch, r.minor))]
    compact(log)
    assert log.left() == newest(written)


# Who else writes, and who is killed.


def test_a_commit_that_comes_between_is_not_passed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    written = changes(log)
    log.clock.now += AFTER + SECOND
    real, young = log.history.replace, []

    def slow(*given: object, **options: object) -> bool:
        young.extend(log.write(("k1", "5")))
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(log.history, "replace", slow)
    compact(log)
    monkeypatch.undo()
    assert log.at.upto == 31
    assert log.left() == sorted(newest(written) + young)


@pytest.mark.parametrize("nth", range(5))
def test_where_another_exchanges_a_file_the_pass_comes_to_nothing(nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing; the next one compacts what is there then."""
    monkeypatch.setattr(module, "ROWS_PER_STEP", 40)
    disk = SimDisk()
    log = Log(disk)
    written = changes(log)
    log.clock.now += AFTER + SECOND
    other = Log(log.history.disk, log.clock, run="b")
    real, calls = log.history.replace, []

    def overtaken(*given: object, **options: object) -> bool:
        calls.append(given)
        if len(calls) == nth + 1:
            compact(other)
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(log.history, "replace", overtaken)
    compact(log)
    monkeypatch.undo()
    log.clock.now += 20 * SECOND
    compact(log)
    assert log.left() == newest(written)
    assert len(calls) > nth
    assert not log.history.staged
    entries = [read_entry(log.history.disk, version) for version in range(log.at.version + 1)]
    named = {add.path for entry in entries if entry is not None for add in entry.added}
    assert {path for path in disk.entries if path.endswith(".parquet")} == named, "no file that no entry has named"


def compacted_until(step: int | None, seed: int) -> tuple[Log, SimDisk, list[Kept]]:
    """A log that was being compacted, by a process that was killed before this step on its disk."""
    disk = SimDisk(random.Random(seed))
    log = Log(disk)
    written = changes(log, epochs=7, rng=random.Random(seed))
    log.clock.now += AFTER + SECOND
    disk.log.clear()
    if step is not None:
        disk.crash_at(step)
        with pytest.raises(Crash):
            compact(log)
    else:
        compact(log)
    return log, disk, written


@pytest.mark.parametrize(("fate", "seed"), [("killed", 0), ("power loss", 1)])
def test_killed_at_any_step_every_key_has_its_newest_and_nothing_comes_back(fate: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the kill the table shows the same rows as before, however much is compacted; and the next run compacts on."""
    monkeypatch.setattr(module, "ROWS_PER_STEP", 12)
    _, whole, _ = compacted_until(None, seed)
    steps = [n for n, what in enumerate(whole.log) if what.split()[0] not in ("read", "names", "exists")]
    assert len(steps) > 30
    for step in steps:
        log, disk, written = compacted_until(step, seed)
        if fate == "power loss":
            disk.power_loss()
        else:
            disk.crash()
        found = left(disk)
        assert newest(found) == newest(written), f"step {step}: {whole.log[step]}"
        assert set(found) <= set(written)
        again = Log(disk, log.clock, run="b")
        young = again.write(("k0", "1"))
        compact(again)
        assert again.left() == sorted(newest(written) + young)


def test_every_version_of_the_table_shows_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any tool reads it."""
    monkeypatch.setattr(module, "ROWS_PER_STEP", 12)
    log = Log(LocalDisk(tmp_path))
    written = changes(log, epochs=12)
    log.clock.now += AFTER + SECOND
    compact(log)
    assert log.at.version >= 16
    for version in range(12, log.at.version + 1):
        rows = DeltaTable(str(tmp_path), version=version).to_pyarrow_table().to_pylist()
        shown = [Kept(r["epoch"], int(r["timestamp"].timestamp() * 1e6), r["minor"], r["key"], r["value"]) for r in rows]
        assert newest(shown) == newest(written)


def test_a_damaged_file_is_named_and_nothing_changes(tmp_path: Path) -> None:
    log = Log(LocalDisk(tmp_path))
    changes(log)
    log.clock.now += AFTER + SECOND
    file = sorted(LogSnapshot(log.history.disk).files)[3]
    content = bytearray((tmp_path / file).read_bytes())
    content[8] ^= 1
    (tmp_path / file).write_bytes(content)
    with pytest.raises(LogError, match=f"{file} is damaged"):
        compact(log)
    assert log.history.position().version == log.at.version


def test_memory_goes_with_the_portion_and_not_with_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_PER_STEP", 4_000)
    usual = pa.default_memory_pool()
    peaks = []
    try:
        for keys in (20_000, 100_000):
            log = Log(SimDisk())
            for start in range(0, keys, 1_000):
                log.write(*((f"a key that is somewhat long {n}", '"and its value"') for n in range(start, start + 1_000)))
            log.clock.now += AFTER + SECOND
            pool = pa.proxy_memory_pool(usual)
            pa.set_memory_pool(pool)
            compact(log)
            pa.set_memory_pool(usual)
            assert len(log.left()) == keys
            peaks.append(pool.max_memory())
    finally:
        pa.set_memory_pool(usual)
    assert peaks[1] < 1.3 * peaks[0] < 10_000_000
