"""How a delivery follows the log, asked without a query around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.core.backlog import Position
from millstream.log import maintenance
from millstream.log.folder import Folder, read_json, write_json
from millstream.log.intact import check_log
from millstream.log.maintenance import Keeper
from millstream.log.table import Table, commit_file, newest_version
from millstream.spark import deliver
from millstream.spark.deliver import LogReader, Part, Taken
from millstream.spark.targets import DeliverySettings
from tests.log.test_table import made, staged

TABLE = "injector clicks"
NOT_BEGUN: dict[str, Any] = {"positions": {}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A log whose first versions are cleaned away."""
    monkeypatch.setattr(deliver, "WAIT", 0.0)
    for name in ("COMMITS_KEPT", "CHECKPOINT_EVERY"):
        monkeypatch.setattr(maintenance, name, 1)
    found = Folder(tmp_path)
    table = made(found.table(TABLE))
    for epoch in range(10):
        table.commit(staged(table.path, epoch), b"{}", writer="clicks", epoch=epoch)
    write_json(found.consumer("mill"), {TABLE: Position(newest_version(table.path) + 1)})
    Keeper(found, TABLE, readers=["mill"], retention=None, fence=1).look_after()
    assert not commit_file(table.path, 0).exists()
    return found


def reader(folder: Folder, stream: str) -> LogReader:
    settings = DeliverySettings(str(folder.path), "id", "new", stream, (TABLE,), "", "run")
    return LogReader(msgspec.json.encode(settings).decode())


def latest(folder: Folder, stream: str, start: dict[str, Any]) -> dict[str, Any]:
    return reader(folder, stream).latestOffset(start, None)  # type: ignore[arg-type]


def test_a_delivery_whose_stream_has_no_record_yet_moves_on_with_the_log(folder: Folder) -> None:
    """Else nothing would ever be merged or cleaned for its sake."""
    assert latest(folder, "dead letters", NOT_BEGUN) == NOT_BEGUN
    table = Table(folder.table(TABLE), TABLE, 1)
    for _ in range(deliver.QUIET_COMMITS):
        table.annotate(b"{}")
    moved = latest(folder, "dead letters", NOT_BEGUN)
    assert msgspec.convert(moved, Taken) == Taken({TABLE: Position(newest_version(table.path) + 1)})
    assert reader(folder, "dead letters").partitions(NOT_BEGUN, moved) == [Part([])]
    latest(folder, "dead letters", moved)
    assert read_json(folder.consumer("deliver new"), dict[str, Position]) == {TABLE: Position(newest_version(table.path) + 1)}


def test_a_delivery_goes_on_when_a_table_of_its_stream_is_gone(folder: Folder) -> None:
    """That of an injector that was removed, whose dead letters it had looked for."""
    taken = Taken({TABLE: Position(newest_version(folder.table(TABLE)) + 1), "injector gone": Position(7)})
    start = msgspec.to_builtins(taken)
    assert latest(folder, "dead letters", start) == start


def test_a_delivery_that_was_stopped_before_its_first_epoch_can_be_started_again(folder: Folder) -> None:
    """It has read nothing, and the oldest versions are gone; it takes what the table holds."""
    for stream in ("dead letters", "s"):
        latest(folder, stream, NOT_BEGUN)
        assert read_json(folder.consumer("deliver new"), dict[str, Position]) == {TABLE: Position()}
        check_log(folder, injectors=[], deliveries=["new"])
    (part,) = reader(folder, "s").partitions(NOT_BEGUN, latest(folder, "s", NOT_BEGUN))
    assert isinstance(part, Part)
    assert len(part.files) == 10
