"""Compaction beside merging and retention, as upkeep does all three."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.journal.disk import LocalDisk
from millstream.log import upkeep as upkeep_module
from millstream.log.keeping import Keeping
from millstream.log.snapshot import LogSnapshot
from millstream.log.upkeep import Upkeep
from millstream.timestamp import SECOND
from tests.log.compacted import AFTER, STREAM, Log, changes


def upkeep(log: Log, root: Path, keeping: Keeping) -> Upkeep:
    return Upkeep(log.history, root, retention=None, streams={STREAM: keeping})


def maintain(keeper: Upkeep, log: Log) -> None:
    while keeper.run(log.clock.now):
        pass
    log.at = log.history.position()


def test_a_slow_stream_grows_old_though_its_files_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged with whatever is young, its records would be young for ever."""
    monkeypatch.setattr(upkeep_module, "FILES_PER_MERGE", 4)
    log = Log(LocalDisk(tmp_path))
    keeper = upkeep(log, tmp_path, Keeping(None, AFTER))
    written = []
    for n in range(60):
        written.append(log.write((f"k{n % 3}", str(n))))
        maintain(keeper, log)
        log.clock.now += 5 * SECOND
    old = [record for records in written[: 60 - 30] for record in records]  # a quarter longer ago than need be
    young = [record for records in written[60 - 20 :] for record in records]
    found = log.left()
    assert not {*old} & {*found}
    assert {*young} <= {*found}
    assert len(LogSnapshot(log.history.disk).files) < 20


def test_retention_and_compaction_both_hold(tmp_path: Path) -> None:
    log = Log(LocalDisk(tmp_path))
    keeper = upkeep(log, tmp_path, Keeping(5 * AFTER, AFTER))
    log.write(("once", "1"), ("often", "1"))
    log.clock.now += 2 * AFTER
    log.write(("often", "2"))
    maintain(keeper, log)
    assert [r.value for r in log.left()] == ["1", "1", "2"]
    log.clock.now += 2 * AFTER
    maintain(keeper, log)
    assert [(r.key, r.value) for r in log.left()] == [("once", "1"), ("often", "2")]
    log.clock.now += AFTER + SECOND
    maintain(keeper, log)
    assert [(r.key, r.value) for r in log.left()] == [("often", "2")]
    log.clock.now += 2 * AFTER
    maintain(keeper, log)
    assert log.left() == []


def test_other_streams_are_left_alone(tmp_path: Path) -> None:
    log = Log(LocalDisk(tmp_path))
    keeper = Upkeep(log.history, tmp_path, retention=None, streams={"another": Keeping(None, AFTER)})
    written = changes(log)
    log.clock.now += 10 * AFTER
    maintain(keeper, log)
    assert log.left() == sorted(written)
