"""Tables that follow a stream by a rule of the user's."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

import millstream as ms
from millstream.change import deleted, inserted, updated
from millstream.table import View
from millstream.testing import Driver
from tests.operators.arrival import Event, arrive, at_once, notice, play, rows, second

ACCOUNTS = [f"a{number}" for number in range(50)]


@dataclass(frozen=True)
class Booking:
    account: str
    amount: int
    at: int


@dataclass
class Statement:
    balance: int
    bookings: int = 0


class Balances(View[Booking, int]):
    """What is on an account; an account with nothing on it is none."""

    def apply(self, row: int | None, record: ms.Record[Booking]) -> int | None:
        return (row or 0) + record.value.amount or None


class Statements(View[Booking, Statement]):
    def apply(self, row: Statement | None, record: ms.Record[Booking]) -> Statement:
        row = row or Statement(0)
        return replace(row, balance=row.balance + record.value.amount, bookings=row.bookings + 1)


class InPlace(View[Booking, Statement]):
    def apply(self, row: Statement | None, record: ms.Record[Booking]) -> Statement:
        row = row or Statement(0)
        row.balance += record.value.amount
        return row


@dataclass(frozen=True)
class Wrapped:
    last: list[int]


class InPlaceInside(View[Booking, Wrapped]):
    """A new row every time, around the old list."""

    def apply(self, row: Wrapped | None, record: ms.Record[Booking]) -> Wrapped:
        last = [] if row is None else row.last
        last.append(record.value.amount)
        return Wrapped(last)


class Bank:
    def __init__(self) -> None:
        self.topology = ms.Topology("bank")
        self.bookings = self.topology.inject(
            "bookings",
            ms.values([], Booking),
            key=lambda booking: booking.account,
            timestamp=lambda booking: second(booking.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.balances, self.statements = Balances(), Statements()
        self.topology.compute("balances", self.balances).reads(self.bookings)
        self.topology.compute("statements", self.statements).reads(self.bookings)

    def driver(self, *, ship: bool = False) -> Driver:
        return Driver(self.topology, ship=ship)


def test_rows_come_change_and_go() -> None:
    bank = Bank()
    driver = bank.driver(ship=True)
    driver.send(bank.bookings, Booking("a", 5, 1), Booking("a", 0, 2), Booking("a", 2, 3), Booking("a", -7, 4))
    assert [r.value for r in driver.read(bank.balances.changes)] == [inserted(5), updated(5, 7), deleted(7)]
    assert driver.read(bank.statements.changes)[-1].value == updated(Statement(7, 3), Statement(0, 4))


def test_a_change_is_never_dated_before_the_last() -> None:
    bank = Bank()
    driver = bank.driver()
    for at in (5, 3, 8):
        driver.send(bank.bookings, Booking("a", 1, at))
    assert [r.timestamp for r in driver.read(bank.balances.changes)] == [second(5), second(5), second(8)]


def test_a_row_that_goes_and_comes_back_late_is_not_dated_back() -> None:
    bank = Bank()
    driver = bank.driver()
    driver.send(bank.bookings, Booking("a", 1, 5))
    driver.send(bank.bookings, Booking("a", -1, 6))
    assert driver.keys(bank.balances) == 1
    driver.advance(low_watermark=second(6))
    assert driver.keys(bank.balances) == 0
    driver.send(bank.bookings, Booking("a", 3, 2))
    assert [r.timestamp for r in driver.read(bank.balances.changes)] == [second(5), second(6), second(6)]


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_are_the_same_however_they_come(seed: int) -> None:
    bank, chance = Bank(), random.Random(seed)
    notice(bank.topology, bank.balances.changes, bank.statements.changes)
    for _ in range(3):
        bookings = [Booking(chance.choice(ACCOUNTS), chance.choice([-1, 0, 1, 2]), chance.randrange(40)) for _ in range(250)]
        events = [Event(bank.bookings, booking, booking.at) for booking in bookings]
        balances = {key: sum(b.amount for b in bookings if b.account == key) for key in ACCOUNTS}
        counts = {key: sum(b.account == key for b in bookings) for key in ACCOUNTS}
        for arrival in (at_once(events), arrive(events, chance), arrive(events, chance, lateness=0.3)):
            driver = play(bank.topology, arrival)
            assert rows(driver, bank.balances.changes) == {key: balance for key, balance in balances.items() if balance}
            assert rows(driver, bank.statements.changes) == {key: Statement(balances[key], n) for key, n in counts.items() if n}
            assert driver.keys(bank.balances) == sum(balance != 0 for balance in balances.values())


@pytest.mark.parametrize("view", [InPlace, InPlaceInside])
def test_a_row_that_is_changed_in_place_is_refused(view: type[View[Booking, Any]]) -> None:
    topology = ms.Topology("bank")
    bookings = topology.inject(
        "bookings",
        ms.values([], Booking),
        key=lambda booking: booking.account,
        timestamp=lambda booking: second(booking.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("in place", view()).reads(bookings)
    driver = Driver(topology, ship=False)
    driver.send(bookings, Booking("a", 1, 1))
    with pytest.raises(ms.RecordError, match=rf"{view.__name__}.apply has changed the row that it was given.*return a new one"):
        driver.send(bookings, Booking("a", 1, 2))
