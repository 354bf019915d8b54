"""What a writer relies on, of the real table and of the one that stands in for it in simulations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from millstream.core.parts import Columns
from millstream.journal.disk import LocalDisk
from millstream.log.history import At, History, HistoryTable
from millstream.log.reading_history import records
from millstream.log.rows import Rows
from millstream.log.snapshot import LogSnapshot
from millstream.timestamp import Timestamp
from tests.journal.simdisk import SimDisk
from tests.log.made import NOW, rows
from tests.writer.memory_table import Found, MemoryTable


class Given(Protocol):
    """A table under test."""

    def open(self) -> HistoryTable:
        """As a process that begins finds it."""

    def maintain(self) -> None: ...
    def lose_power(self) -> None: ...
    def found(self, stream: str) -> list[Found]: ...


class GivenMemory:
    def __init__(self) -> None:
        self.table = MemoryTable()
        self.maintain, self.lose_power, self.found = self.table.maintain, self.table.lose_power, self.table.found

    def open(self) -> HistoryTable:
        return self.table


class GivenHistory:
    """The real one, on a disk in memory or a real one."""

    def __init__(self, disk: SimDisk | LocalDisk) -> None:
        self.disk = disk
        self.open()

    def open(self) -> History:
        table = History(self.disk, now=lambda: NOW)
        table.create()
        return table

    def maintain(self) -> None:
        assert self.open().replace(LogSnapshot(self.disk), [], [], operation="OPTIMIZE", data_change=False)

    def lose_power(self) -> None:
        if isinstance(self.disk, SimDisk):
            self.disk.power_loss()

    def found(self, stream: str) -> list[Found]:
        if not LogSnapshot(self.disk).of_stream(stream):
            return []
        return [
            (
                r["epoch"],
                r["origin"],
                r["major"],
                r["minor"],
                r["key"],
                r["value"].encode(),
                Timestamp(int(r["timestamp"].timestamp() * 1e6)),
            )
            for r in records(self.disk, stream).to_pylist()
        ]


@pytest.fixture(params=["memory", "simulated disk", "local disk"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Given:
    if request.param == "memory":
        return GivenMemory()
    return GivenHistory(SimDisk() if request.param == "simulated disk" else LocalDisk(tmp_path))


def write(table: HistoryTable, after: At, to: int) -> At | None:
    return table.commit([table.stage("s", rows(*range(after.upto + 1, to + 1)))], after=after, to=to)


def epochs(given: Given) -> list[int]:
    return [found[0] for found in given.found("s")]


def test_what_is_committed_is_found_as_it_was_put_there(given: Given) -> None:
    table, made = given.open(), Rows()
    made.add(1, "in", 7, Columns(["a", "b"], [b'"x"', b"\xc3\xa4".join([b'"', b'"'])], [Timestamp(5), Timestamp(6)], [3, 9]))
    made.add(2, "in", 8, Columns(["c"], [b"null"], [Timestamp(4)], [0]))
    assert table.commit([table.stage("s", made)], after=table.position(), to=2) is not None
    assert given.found("s") == [(1, "in", 7, 3, "a", b'"x"', 5), (1, "in", 7, 9, "b", '"ä"'.encode(), 6), (2, "in", 8, 0, "c", b"null", 4)]
    assert table.position().upto == given.open().position().upto == 2


def test_nothing_shows_before_the_commit(given: Given) -> None:
    table = given.open()
    table.stage("s", rows(1))
    assert epochs(given) == []
    assert table.position().upto == 0


def test_epochs_go_in_once(given: Given) -> None:
    first, second = given.open(), given.open()
    began = second.position()
    at = write(first, first.position(), 3)
    assert at == first.position()
    assert write(second, began, 2) is None, "another has written them"
    assert write(second, At(at.version, began.upto), 5) is None, "as the next version, but from an epoch that was passed"
    assert epochs(given) == [1, 1, 2, 2, 3, 3]
    assert write(second, second.position(), 4) is not None
    assert write(first, at, 4) is None
    assert epochs(given) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_maintenance_between_reading_and_commit_hinders_nobody(given: Given) -> None:
    table = given.open()
    at = write(table, table.position(), 1)
    assert at is not None
    given.maintain()
    given.maintain()
    after = write(table, at, 2)
    assert after == table.position() == At(at.version + 3, 2)
    given.maintain()
    assert given.open().position() == At(after.version + 1, 2)
    assert epochs(given) == [1, 1, 2, 2]


def test_epochs_without_a_record_are_a_commit_too(given: Given) -> None:
    table = given.open()
    assert table.commit([], after=table.position(), to=9) is not None
    assert given.open().position().upto == 9


def test_what_was_said_survives_a_power_loss(given: Given) -> None:
    table = given.open()
    assert write(table, table.position(), 1) is not None
    given.lose_power()
    table = given.open()
    assert table.position().upto == 1
    assert write(table, table.position(), 2) is not None
    assert epochs(given) == [1, 1, 2, 2]


class Killed(Exception):
    """The process ends here."""


def killer(after: int) -> Callable[[str], None]:
    """Kills after so many steps."""
    left = after

    def on_step(what: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed(what)

    return on_step


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("kind", ["memory", "simulated disk"])
def test_killed_at_every_step_each_epoch_is_there_once(kind: str, power: bool) -> None:
    """Between file and entry, after the entry before its sync, after the sync before it was said, and everywhere else."""
    step, ended = 0, False
    while not ended:
        given: GivenMemory | GivenHistory = GivenMemory() if kind == "memory" else GivenHistory(SimDisk())
        on_step = killer(step)
        said = 0
        table = given.open()
        at = table.position()
        stepping = given.table if isinstance(given, GivenMemory) else given.disk
        stepping.on_step = on_step  # type: ignore[union-attr]
        try:
            for to in (2, 3):
                after = write(table, at, to)
                assert after is not None
                at, said = after, to
            ended = True
        except Killed:
            pass
        stepping.on_step = lambda what: None  # type: ignore[union-attr]
        if power:
            given.lose_power()
        table = given.open()
        at = table.position()
        assert at.upto >= said, "what was said is gone"
        assert epochs(given) == [epoch for epoch in range(1, at.upto + 1) for _ in range(2)]
        if at.upto < 3:
            assert write(table, at, 3) is not None
        assert epochs(given) == [1, 1, 2, 2, 3, 3]
        step += 1
    assert step > 4
