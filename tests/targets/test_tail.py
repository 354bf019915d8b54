"""What there is for an output after an epoch: in the log, in the journal, or no longer for it."""

from __future__ import annotations

import random

import pytest

from millstream.core.ledger import Commit, Ledger, Plant
from millstream.core.parts import NO_LANE, Frame, Part
from millstream.journal.commits import Commits
from millstream.targets.lacking import Epoch, Lacking, Tail
from millstream.targets.tail import read_tail
from millstream.timestamp import Timestamp
from tests.journal.simdisk import SimDisk

KEPT, UNKEPT = Plant(deliveries={"out": "s"}, since={"out": 1}), Plant(deliveries={"out": "s"}, unkept=["s"], since={"out": 1})


class Journal:
    """Every commit but the first of a fence has a record of the stream."""

    def __init__(self) -> None:
        self.commits, self.ledger = Commits(SimDisk()), Ledger()
        self.commits.make_folders()

    def start(self, plant: Plant) -> None:
        self._commit(Commit(self.ledger.number + 1, "", "", self.ledger.fence + 1, Timestamp(0), plant=plant))

    def run(self, epochs: int) -> None:
        for _ in range(epochs):
            number = self.ledger.number + 1
            self._commit(Commit(number, "", "", self.ledger.fence, Timestamp(0), frames=[Frame(f"s{number}", NO_LANE, [part(number)])]))

    def has_record(self, number: int) -> bool:
        return number not in self.ledger.first

    def _commit(self, commit: Commit) -> None:
        commit.id, commit.before = f"c{commit.number}", self.ledger.id
        assert self.commits.create(commit)
        self.ledger.apply(commit)

    def tail(self, after: int, *, logged: int, delivery: str | None = "out") -> tuple[int, int, list[int]]:
        self.ledger.logged = logged
        found = read_tail(self.commits, self.ledger, delivery, after=after, at_most=100)
        assert found == Tail(found.history, found.upto, [Epoch(e.number, [(f"s{e.number}", part(e.number))]) for e in found.epochs])
        return found.history, found.upto, [epoch.number for epoch in found.epochs]


def part(number: int) -> Part:
    return Part(0, 1, 0, 0, "s", "", "s", number, 1, Timestamp(0))


def journal_of(*plants: Plant) -> Journal:
    """Runs of three epochs each: commits 1, 5, 9… are the first of theirs."""
    made = Journal()
    for plant in plants:
        made.start(plant)
        made.run(3)
    return made


@pytest.mark.parametrize("after", [0, 2, 4])
def test_a_stream_that_is_kept_no_longer_is_in_the_log_up_to_the_change(after: int) -> None:
    journal = journal_of(KEPT, UNKEPT)
    assert journal.tail(after, logged=3) == (max(after, 3), 8, [4, 6, 7, 8] if after < 4 else [6, 7, 8])
    assert journal.tail(after, logged=8) == (5, 8, [6, 7, 8]), "the log is complete, and has nothing of the rest"


def test_a_stream_that_was_not_kept_is_in_the_journal_up_to_the_change() -> None:
    journal = journal_of(UNKEPT, KEPT)
    for logged in (0, 3, 8):
        assert journal.tail(0, logged=logged) == (min(logged, 1), 5, [2, 3, 4])
        assert journal.tail(3, logged=logged) == (3, 5, [4])
    assert journal.tail(5, logged=7) == (7, 8, [8])


def test_it_may_change_again_and_again_while_a_delivery_is_behind() -> None:
    journal = journal_of(KEPT, UNKEPT, KEPT, UNKEPT)
    assert journal.tail(0, logged=16) == (5, 9, [6, 7, 8])
    assert journal.tail(9, logged=16) == (13, 16, [14, 15, 16])


def test_a_delivery_that_is_new_does_not_get_what_the_log_left_out_before_it() -> None:
    journal = journal_of(KEPT, UNKEPT, Plant(deliveries={"out": "s"}, unkept=["s"], since={"out": 9}))
    assert journal.tail(0, logged=3) == (3, 12, [4, 10, 11, 12])
    assert journal.tail(0, logged=12) == (9, 12, [10, 11, 12])


def test_the_log_gets_what_the_code_of_each_epoch_kept() -> None:
    journal = journal_of(KEPT, UNKEPT, KEPT)
    assert journal.tail(2, logged=2, delivery=None) == (2, 12, [3, 4, 10, 11, 12])


@pytest.mark.parametrize("seed", range(60))
def test_everything_comes_once_and_from_where_it_is(seed: int) -> None:
    """Runs that keep the stream or not, a log that goes on, and a delivery that is slower: it asks, takes, and asks anew."""
    rng = random.Random(seed)
    journal, lacking, position, got, freed = journal_of(KEPT), Lacking(0), 0, list[int](), 0
    for step in range(400):
        ledger, last = journal.ledger, step > 300
        what = rng.choice(["start", "run", "log", "free", "ask", "take", "take"]) if not last else rng.choice(["ask", "take"])
        if what == "start":
            journal.start(rng.choice([KEPT, UNKEPT]))
        elif what == "run":
            journal.run(rng.randint(1, 3))
            ledger.delivered["out"] = position
        elif what == "log":
            ledger.logged = rng.randint(ledger.logged, ledger.number)
        elif what == "free":
            freed = ledger.logged
        elif what == "ask" and lacking.known < ledger.number:
            lacking.add_tail(read_tail(journal.commits, ledger, "out", after=lacking.known, at_most=rng.randint(1, 9)))
        elif what == "take" and (in_log := lacking.in_log) is not None:
            assert in_log.upto <= ledger.logged
            upto = rng.randint(in_log.after + 1, in_log.upto)
            got += [n for n in range(position + 1, upto + 1) if journal.has_record(n) and not ledger.leaves_out("s", n)]
            position = upto
            lacking.forget(position)
        elif what == "take" and lacking:
            epochs, upto = lacking.next_epochs(rng.randint(1, 4))
            if any(epoch.number <= freed and not ledger.leaves_out("s", epoch.number) for epoch in epochs):
                lacking.ask_anew(position)  # the journal let it go, for the log has it
                continue
            got += [epoch.number for epoch in epochs]
            position = upto
            lacking.forget(position)
    assert lacking.known == journal.ledger.number
    assert not lacking
    assert got == [n for n in range(1, journal.ledger.number + 1) if journal.has_record(n)]
