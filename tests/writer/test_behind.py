"""An output that is slower than the log: the journal lets go of what it knew, and the log has it."""

from __future__ import annotations

from millstream.core.parts import Columns, Part
from millstream.journal.errors import Missing
from millstream.targets.lacking import Epoch, InLog, Tail
from millstream.timestamp import MINUTE, SECOND
from millstream.writer.log_output import LogOutput
from millstream.writer.machine import MAX_REFUSALS, AskTail, Begun, Fail, WriteParts, WriterMachine
from millstream.writer.performing import WasMissing, perform
from tests.journal.simdisk import SimDisk
from tests.writer.memory_table import MemoryTable
from tests.writer.test_machine import T, begun, place


def test_what_is_gone_is_asked_for_anew_and_comes_from_the_log() -> None:
    machine = begun(every=MINUTE)
    for number in (1, 2, 3):
        assert machine.on_commit(number, [place(at=number)], T) == []
    (write,) = machine.on_tick(T + MINUTE)
    assert isinstance(write, WriteParts)
    assert machine.on_missing("out", "gone", T + MINUTE) == [AskTail("out", 0)]
    (again,) = machine.on_tail("out", Tail(2, 3, [Epoch(3, [place(at=3)])]), T + MINUTE)
    assert isinstance(again, WriteParts)
    assert (again.after, again.pieces) == (0, [InLog(0, 2)])
    machine.on_done("out", again.to, T + MINUTE)
    (rest,) = machine.on_tick(T + 2 * MINUTE)
    assert rest == WriteParts("out", 2, [Epoch(3, [place(at=3)])], 3)


def test_an_answer_to_what_was_asked_before_is_not_taken_for_all_there_is() -> None:
    """It begins after what was known then; what is gone lies before that."""
    machine = begun()
    machine.on_commit(1, [place(at=1)], T)
    (ask,) = machine.on_commit(5, [place(at=5)], T)  # 2 to 4 came by other ways
    assert ask == AskTail("out", 1)
    (write,) = machine.on_tick(T + SECOND)
    assert isinstance(write, WriteParts)
    assert machine.on_missing("out", "gone", T + SECOND) == []
    assert machine.on_tail("out", Tail(1, 5, [Epoch(5, [place(at=5)])]), T + SECOND) == [AskTail("out", 0)]
    (again,) = machine.on_tail("out", Tail(4, 5, [Epoch(5, [place(at=5)])]), T + SECOND)
    assert isinstance(again, WriteParts)
    assert (again.after, again.pieces) == (0, [InLog(0, 4)])


def test_what_is_gone_again_and_again_is_damage() -> None:
    machine = begun()
    machine.on_commit(1, [place()], T)
    now = T
    for _ in range(MAX_REFUSALS - 1):
        now += SECOND
        assert len(machine.on_tick(now)) == 1
        machine.on_missing("out", "segment is missing", now)
        machine.on_tail("out", Tail(0, 1, [Epoch(1, [place()])]), now)
    machine.on_tick(now + SECOND)
    assert machine.on_missing("out", "segment is missing", now + SECOND) == [Fail("out", "segment is missing")]


def test_what_the_log_itself_lacks_is_damage_at_once() -> None:
    machine = WriterMachine({"log": Begun(None, 0, is_log=True)}, newest=0, now=T)
    machine.on_commit(1, [place()], T)
    machine.on_tick(T + SECOND)
    assert machine.on_missing("log", "segment is missing", T + SECOND) == [Fail("log", "segment is missing")]


def test_nothing_of_a_write_stays_that_missed_a_part() -> None:
    class Gone:
        def part(self, segment: str, part: Part) -> Columns:
            if part.offset:
                raise Missing("gone")
            return Columns(["k"], [b"1"], [T], [0])

    table = MemoryTable()
    output = LogOutput(table)
    write = WriteParts("log", 0, [Epoch(1, [place(at=0), place(at=1)])], 1)
    assert perform(write, output, Gone(), SimDisk()) == WasMissing("log", "gone")
    assert output.position() == 0
