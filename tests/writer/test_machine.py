"""The writer's machine: what it asks for and when, and that every epoch goes in once whatever happens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from millstream.core.parts import Columns, Part
from millstream.targets.lacking import Epoch, InLog, Place, Tail
from millstream.timestamp import SECOND, Timestamp
from millstream.writer import machine as module
from millstream.writer.log_output import LogOutput
from millstream.writer.machine import IDLE, Action, AskTail, Begun, Fail, SayWritten, WriteParts, WriterMachine
from millstream.writer.performing import Done, WasRefused, perform
from tests.journal.simdisk import SimDisk
from tests.writer.memory_table import MemoryTable

T = Timestamp(1_000_000_000)


def place(stream: str = "s", records: int = 1, at: int = 0) -> Place:
    return "segment", Part(at, 0, 0, 0, stream, "", stream, 1, records, T)


def begun(position: int = 0, **options: object) -> WriterMachine:
    machine = WriterMachine({"out": Begun(frozenset(["s"]), position, **options)}, newest=position, now=T)  # type: ignore[arg-type]
    assert machine.on_start(T) == []
    return machine


def test_what_comes_within_a_second_is_one_commit() -> None:
    machine = begun()
    assert machine.on_commit(1, [place()], T) == []
    assert machine.on_commit(2, [place("other")], T) == []
    assert machine.on_commit(3, [place()], T) == []
    assert machine.on_tick(T + SECOND - 1) == []
    (write,) = machine.on_tick(T + SECOND)
    assert write == WriteParts("out", 0, [Epoch(1, [place()]), Epoch(3, [place()])], 3)
    assert machine.on_commit(4, [place()], T + SECOND) == [], "one commit at a time"
    assert machine.on_done("out", 3, T + SECOND) == [SayWritten("out", 3)]
    assert machine.on_tick(T + 2 * SECOND) == [WriteParts("out", 3, [Epoch(4, [place()])], 4)]


def test_a_full_commit_is_not_waited_for_and_holds_whole_epochs() -> None:
    machine = begun()
    assert machine.on_commit(1, [place(records=600_000)], T) == []
    (write,) = machine.on_commit(2, [place(records=600_000)], T)
    assert isinstance(write, WriteParts)
    assert (write.to, len(write.pieces)) == (1, 1)
    assert machine.on_done("out", 1, T) == [SayWritten("out", 1)]
    big = begun()
    (write,) = big.on_commit(1, [place(records=5_000_000)], T)
    assert isinstance(write, WriteParts)
    assert write.to == 1, "an epoch is never cut"


def test_it_is_known_when_something_is_due_though_nothing_comes() -> None:
    machine = begun()
    assert machine.next_tick(T) is None
    machine.on_commit(1, [place()], T)
    assert machine.next_tick(T) == SECOND
    assert machine.next_tick(T + 3 * SECOND) == 0
    assert machine.on_tick(T + SECOND - 1) == []
    assert len(machine.on_tick(T + SECOND)) == 1
    assert machine.next_tick(T + SECOND) is None, "it writes; that ends by itself"
    machine.on_done("out", 1, T + SECOND)
    machine.on_commit(2, [], T + SECOND)
    assert machine.next_tick(T + SECOND) == IDLE
    opened = WriterMachine({"out": Begun(frozenset(["s"]), 0, 2)}, newest=0, now=T)
    opened.on_commit(1, [place()], T)
    assert opened.next_tick(T + 3 * SECOND) is None, "an open step waits for its last epoch"


def test_a_flush_waits_for_nothing_more() -> None:
    machine = begun()
    assert machine.on_commit(1, [place()], T) == []
    assert machine.on_flush(1, T) == [WriteParts("out", 0, [Epoch(1, [place()])], 1)]
    assert machine.on_done("out", 1, T) == [SayWritten("out", 1)]
    assert machine.on_commit(2, [place()], T) == [], "what comes after it waits as ever"


def test_without_a_record_the_position_moves_on_now_and_then_and_at_a_stop() -> None:
    machine = begun()
    assert machine.on_commit(1, [], T) == []
    assert machine.on_tick(T + IDLE - 1) == []
    assert machine.on_tick(T + IDLE) == [WriteParts("out", 0, (), 1)]
    assert machine.on_done("out", 1, T + IDLE) == [SayWritten("out", 1)]
    assert machine.on_commit(2, [], T + IDLE) == []
    assert machine.on_stop(2, T + IDLE) == [WriteParts("out", 1, (), 2)]
    assert not machine.finished
    machine.on_done("out", 2, T + IDLE)
    assert machine.finished


def test_an_output_that_is_behind_asks_for_what_it_lacks() -> None:
    machine = WriterMachine({"out": Begun(frozenset(["s"]), 3)}, newest=9, now=T)
    assert machine.on_start(T) == [AskTail("out", 3)]
    assert machine.on_commit(10, [place()], T) == []
    assert machine.on_tail("out", Tail(0, 5, [Epoch(2, [place()]), Epoch(4, [place()])]), T) == [AskTail("out", 5)]
    assert machine.on_tail("out", Tail(0, 10, [Epoch(10, [place()])]), T) == []
    (write,) = machine.on_tick(T + SECOND)
    assert write == WriteParts("out", 3, [Epoch(4, [place()]), Epoch(10, [place()])], 10)


def test_what_the_journal_let_go_comes_from_the_log() -> None:
    machine = WriterMachine({"out": Begun(frozenset(["s"]), 3)}, newest=9, now=T)
    machine.on_start(T)
    assert machine.on_tail("out", Tail(7, 9, [Epoch(8, [place()])]), T) == [WriteParts("out", 3, [InLog(3, 7)], 7, module.MAX_RECORDS)]
    assert machine.on_done("out", 5, T) == [SayWritten("out", 5), WriteParts("out", 5, [InLog(5, 7)], 7, module.MAX_RECORDS)]
    machine.on_done("out", 7, T)
    assert machine.on_tick(T + SECOND) == [WriteParts("out", 7, [Epoch(8, [place()])], 9)]


def test_an_open_commit_is_repeated_exactly() -> None:
    machine = WriterMachine({"out": Begun(frozenset(["s"]), 3, open_until=6)}, newest=9, now=T)
    assert machine.on_start(T) == [AskTail("out", 3)]
    assert machine.on_tail("out", Tail(0, 5, [Epoch(5, [place()])]), T) == [AskTail("out", 5)]
    (write,) = machine.on_tail("out", Tail(0, 9, [Epoch(6, [place()]), Epoch(7, [place()])]), T)
    assert write == WriteParts("out", 3, [Epoch(5, [place()]), Epoch(6, [place()])], 6)
    assert machine.on_done("out", 6, T) == [SayWritten("out", 6)]
    machine = WriterMachine({"out": Begun(frozenset(["s"]), 3, open_until=6)}, newest=9, now=T)
    machine.on_start(T)
    (write,) = machine.on_tail("out", Tail(5, 9, [Epoch(6, [place()]), Epoch(7, [place()])]), T)
    assert write == WriteParts("out", 3, [InLog(3, 5), Epoch(6, [place()])], 6), "part of it lies in the log by now"


def test_more_than_it_remembers_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PLACES", 4)
    machine = begun()
    asked = [machine.on_commit(n, [place()], T) for n in range(1, 10)]
    assert asked == [[]] * 9
    (write,) = machine.on_tick(T + SECOND)
    assert isinstance(write, WriteParts)
    assert write.to == 4
    assert machine.on_done("out", 4, T + SECOND) == [SayWritten("out", 4), AskTail("out", 4)]


def test_a_refused_commit_goes_on_from_where_the_other_came() -> None:
    machine = begun()
    for n in (1, 2, 3):
        machine.on_commit(n, [place()], T)
    machine.on_tick(T + SECOND)
    machine.on_refused("out", 2, "why", T + SECOND)
    (write,) = machine.on_tick(T + 2 * SECOND)
    assert write == WriteParts("out", 2, [Epoch(3, [place()])], 3)
    for n in (2, 3):
        machine.on_refused("out", 2, "why", T + n * SECOND)
        machine.on_tick(T + (n + 1) * SECOND)
    assert machine.on_refused("out", 2, "another writer", T + 4 * SECOND) == [Fail("out", "another writer")]
    assert machine.on_tick(T + 9 * SECOND) == []


def test_an_overtaken_run_that_still_writes_what_is_committed_does_not_end_the_owner() -> None:
    machine = begun()
    for n in range(1, 21):
        machine.on_commit(n, [place()], T)
    machine.on_tick(T + SECOND)
    for n in range(1, 20):  # each time it came first, by an epoch
        machine.on_refused("out", n, "another writer", T + n * SECOND)
        (write,) = machine.on_tick(T + (n + 1) * SECOND)
        assert isinstance(write, WriteParts)
        assert write.after == n


def test_a_log_that_has_lost_entries_is_refused() -> None:
    machine = WriterMachine({"/log": Begun(None, 3, is_log=True)}, newest=9, now=T)
    machine.on_start(T)
    (fail,) = machine.on_tail("/log", Tail(7, 9), T)
    assert isinstance(fail, Fail)
    assert "ends with epoch 3, but the commits say that it had 7" in fail.message


def test_the_log_takes_all_streams_that_are_kept() -> None:
    machine = WriterMachine({"/log": Begun(None, 0, unkept=frozenset(["u"]), is_log=True)}, newest=0, now=T)
    machine.on_commit(1, [place("a"), place("u"), place("b")], T)
    (write,) = machine.on_tick(T + SECOND)
    assert isinstance(write, WriteParts)
    assert write.pieces == [Epoch(1, [place("a"), place("b")])]


def test_what_an_older_run_kept_goes_to_the_log_though_this_one_does_not_keep_it() -> None:
    """What it asked for is for the log, whatever this run keeps."""
    machine = WriterMachine({"/log": Begun(None, 0, unkept=frozenset(["u"]), is_log=True)}, newest=1, now=T)
    machine.on_start(T)
    machine.on_tail("/log", Tail(0, 1, [Epoch(1, [place("u")])]), T)
    machine.on_commit(2, [place("u")], T)
    assert machine.on_tick(T + SECOND) == [WriteParts("/log", 0, [Epoch(1, [place("u")])], 2)]


def test_what_the_log_leaves_out_comes_from_the_journal_before_what_it_has_again() -> None:
    """Of a stream that was not kept up to epoch 5, and is since."""
    machine = WriterMachine({"out": Begun(frozenset(["s"]), 3)}, newest=9, now=T)
    assert machine.on_start(T) == [AskTail("out", 3)]
    assert machine.on_tail("out", Tail(3, 5, [Epoch(4, [place()])]), T) == [AskTail("out", 5)]
    assert machine.on_tail("out", Tail(8, 9, [Epoch(9, [place()])]), T) == []
    assert machine.on_tick(T + SECOND) == [WriteParts("out", 3, [Epoch(4, [place()])], 5)]
    assert machine.on_done("out", 5, T + SECOND) == [SayWritten("out", 5), WriteParts("out", 5, [InLog(5, 8)], 8, module.MAX_RECORDS)]
    machine.on_done("out", 8, T + SECOND)
    assert machine.on_tick(T + 2 * SECOND) == [WriteParts("out", 8, [Epoch(9, [place()])], 9)]


def test_an_open_commit_is_repeated_though_it_lies_in_the_journal_in_the_log_and_in_the_journal() -> None:
    machine = WriterMachine({"out": Begun(frozenset(["s"]), 3, open_until=9)}, newest=10, now=T)
    machine.on_start(T)
    assert machine.on_tail("out", Tail(3, 5, [Epoch(4, [place()])]), T) == [AskTail("out", 5)]
    (write,) = machine.on_tail("out", Tail(8, 10, [Epoch(9, [place()]), Epoch(10, [place()])]), T)
    assert write == WriteParts("out", 3, [Epoch(4, [place()]), InLog(5, 8), Epoch(9, [place()])], 9)


class Killed(Exception):
    """The process ends here."""


@dataclass
class Driver:
    """Commits, and their parts: what a writer is told and may ask for."""

    commits: list[list[tuple[Place, Columns]]] = field(default_factory=list)

    def commit(self, rng: random.Random) -> list[Place]:
        number = len(self.commits) + 1
        found = []
        for n in range(rng.choice([0, 0, 1, 2])):
            count = rng.randint(1, 5)
            columns = Columns(["k"] * count, [b"%d" % number] * count, [T] * count, [n * 100 + m for m in range(count)])
            found.append(((f"{number}", Part(n, 0, 0, 0, "s", "", "s", number, count, T)), columns))
        self.commits.append(found)
        return [each[0] for each in found]

    def part(self, segment: str, part: Part) -> Columns:
        return self.commits[int(segment) - 1][part.offset][1]

    def tail(self, after: int, rng: random.Random) -> Tail:
        upto = min(len(self.commits), after + rng.randint(1, 6))
        return Tail(0, upto, [Epoch(n, [each[0] for each in self.commits[n - 1]]) for n in range(after + 1, upto + 1)])

    def want(self) -> list[tuple[int, int]]:
        return [(n, minor) for n, found in enumerate(self.commits, 1) for _, columns in found for minor in columns.minors]


class Life:
    """A writer process, from its start to its end."""

    def __init__(self, driver: Driver, table: MemoryTable, rng: random.Random) -> None:
        self.driver, self.table, self.rng = driver, table, rng
        self.output = LogOutput(table)
        begun = Begun(None, self.output.position(), is_log=True)
        self.now = T
        self.machine = WriterMachine({"log": begun}, newest=len(driver.commits), now=T)
        self.todo: list[Action] = self.machine.on_start(T)
        self.said = begun.position
        self.failed = False

    def step(self) -> None:
        """Something happens: an action is performed, or a moment passes."""
        self.now += self.rng.randint(0, 400_000)
        if not self.todo:
            self.todo = self.machine.on_tick(self.now)
            return
        action = self.todo.pop(self.rng.randrange(len(self.todo)))
        match action:
            case AskTail(output, after):
                self.todo += self.machine.on_tail(output, self.driver.tail(after, self.rng), self.now)
            case WriteParts():
                outcome = perform(action, self.output, self.driver, SimDisk())
                if isinstance(outcome, Done):
                    self.todo += self.machine.on_done("log", outcome.upto, self.now)
                else:
                    assert isinstance(outcome, WasRefused)
                    self.todo += self.machine.on_refused("log", outcome.position, outcome.why, self.now)
            case SayWritten(_, upto):
                self.said = upto
            case Fail(_, message):
                assert "another run writes it" in message
                self.failed = True

    def hear(self, places: Sequence[Place]) -> None:
        self.todo += self.machine.on_commit(len(self.driver.commits), places, self.now)


@pytest.mark.parametrize("seed", range(150))
def test_every_epoch_goes_in_once_over_kills_power_losses_and_a_writer_of_an_older_run(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(module, "MAX_PLACES", rng.choice([4, 50_000]))
    monkeypatch.setattr(module, "MAX_RECORDS", rng.choice([3, 1_000_000]))
    driver, table = Driver(), MemoryTable()
    lives = [Life(driver, table, rng)]

    def maybe_killed(what: str) -> None:
        if rng.random() < 0.02:
            raise Killed(what)

    table.on_step = maybe_killed
    said = 0
    for _ in range(400):
        life = rng.choice(lives)
        try:
            if rng.random() < 0.2:
                places = driver.commit(rng)
                for each in lives:
                    each.hear(places)
            elif rng.random() < 0.05:
                table.maintain()
            elif rng.random() < 0.01 and len(lives) < 2:
                lives.append(Life(driver, table, rng))  # a new run begins while the old writer still lives
            else:
                life.step()
                if life.failed:  # refused again and again: the other one writes, or did until it was killed
                    lives.remove(life)
                    if not lives:
                        table.on_step = lambda what: None
                        lives.append(Life(driver, table, rng))
                        table.on_step = maybe_killed
            said = max(said, *(each.said for each in lives))
        except Killed:
            if rng.random() < 0.5:
                table.lose_power()
                lives.clear()
            else:
                lives = [each for each in lives if each is not life]
            table.on_step = lambda what: None
            lives = lives or [Life(driver, table, rng)]
            table.on_step = maybe_killed
            assert table.versions[-1].upto >= said, "what was said is gone"
    table.on_step = lambda what: None
    last = Life(driver, table, rng)
    last.todo += last.machine.on_stop(len(driver.commits), last.now)
    for _ in range(2_000):
        if last.machine.finished:
            break
        last.step()
    assert not last.failed
    assert last.machine.finished
    assert [(found[0], found[3]) for found in table.found("s")] == sorted(driver.want())
    assert table.versions[-1].upto == len(driver.commits)


def test_many_streams_are_held_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.writer.log_output.ROWS_HELD", 40)
    table = MemoryTable()
    output = LogOutput(table)
    output.position()
    for n in range(100):
        columns = Columns(["k"] * 3, [b"1"] * 3, [T] * 3, [0, 1, 2])
        output.add(1, f"s{n % 30}", "s", n, columns)
        assert sum(map(len, output._gathered.values())) <= 43
    output.commit(1)
    assert sum(len(table.found(f"s{n}")) for n in range(30)) == 300
