"""A table's rows in groups: against DuckDB, and however they come."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream import aggregate
from millstream.change import deleted, inserted, updated
from millstream.table import Grouped, Newest
from millstream.testing import Driver
from tests.core.alone import Alone
from tests.operators.arrival import Event, arrive, at_once, notice, play, rows, second

IDS = [f"i{number}" for number in range(60)]
CUSTOMERS = [f"c{number}" for number in range(25)]


@dataclass(frozen=True)
class Order:
    id: str
    customer: str  # none: the order is gone
    price: int
    at: int


@dataclass(frozen=True)
class Sales:
    count: int
    turnover: float
    mean: float


@dataclass(frozen=True)
class Rates:
    count: int
    rate: float


def sales() -> Any:
    return aggregate.combine(
        Sales, aggregate.count(), aggregate.sum(lambda order: order.price / 10), aggregate.mean(lambda order: order.price)
    )


class Shop:
    def __init__(self, how: Any) -> None:
        self.topology = ms.Topology("shop")
        self.orders = self.topology.inject(
            "orders",
            ms.values([], Order),
            key=lambda order: order.id,
            timestamp=lambda order: second(order.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.table = Newest(Order, gone=lambda order: order.customer == "", remember=ms.DAY)
        self.topology.compute("table", self.table).reads(self.orders)
        self.grouped: Grouped[Order, Any] = Grouped(Order, lambda order: order.customer, how)
        self.topology.compute("grouped", self.grouped).reads(*self.grouped.of(self.table.changes))

    def driver(self, *, ship: bool = False) -> Driver:
        return Driver(self.topology, ship=ship)

    def events(self, chance: random.Random) -> list[Event]:
        places = [(id_, at) for id_ in IDS for at in range(chance.choice((10, 60)))]
        found = [
            Order(id_, chance.choice(["", chance.choice(CUSTOMERS), chance.choice(CUSTOMERS)]), chance.randrange(100), at)
            for id_, at in chance.sample(places, 250)
        ]
        return [Event(self.orders, order, order.at) for order in found]


def by_duckdb(events: list[Event]) -> dict[str, Sales]:
    """The newest of each order, in groups, as SQL says it."""
    connection = duckdb.connect()
    connection.execute("create table orders (id text, customer text, price int, moment int)")
    connection.executemany("insert into orders values (?, ?, ?, ?)", [list(vars(event.value).values()) for event in events])
    found = connection.execute(
        """
        select customer, count(*), sum(price) / 10, avg(price) from (select distinct on (id) * from orders order by id, moment desc)
        where customer != '' group by customer
        """
    ).fetchall()
    return {customer: Sales(count, turnover, mean) for customer, count, turnover, mean in found}


def close_to(found: dict[str, Sales]) -> dict[str, Any]:
    return {key: (row.count, pytest.approx(row.turnover), pytest.approx(row.mean)) for key, row in found.items()}


def test_a_row_that_changes_moves_and_goes() -> None:
    shop = Shop(aggregate.sum(lambda order: order.price, int))
    driver = shop.driver(ship=True)
    for order in (Order("1", "ann", 5, 1), Order("2", "ann", 7, 2), Order("2", "bob", 8, 3), Order("1", "ann", 6, 4), Order("1", "", 0, 5)):
        driver.send(shop.orders, order)
    changes = driver.read(shop.grouped.changes)
    assert [r.value for r in changes if r.key == "ann"] == [inserted(5), updated(5, 12), updated(12, 5), updated(5, 6), deleted(6)]
    assert [(r.value, r.timestamp) for r in changes if r.key == "bob"] == [(inserted(8), second(3))]
    driver.finish()
    assert driver.keys(shop.grouped) == 1


def test_a_group_whose_value_stays_is_not_told_again() -> None:
    shop = Shop(aggregate.count())
    driver = shop.driver()
    driver.send(shop.orders, Order("1", "ann", 5, 1))
    driver.send(shop.orders, Order("1", "ann", 6, 2))
    assert [r.value for r in driver.read(shop.grouped.changes)] == [inserted(1)]


def test_a_sum_of_nothing_is_a_row_as_long_as_there_are_rows() -> None:
    shop = Shop(aggregate.sum(lambda order: order.price, int))
    driver = shop.driver()
    driver.send(shop.orders, Order("1", "ann", 5, 1), Order("2", "ann", -5, 2))
    assert rows(driver, shop.grouped.changes) == {"ann": 0}
    driver.send(shop.orders, Order("1", "", 0, 3), Order("2", "", 0, 4))
    assert rows(driver, shop.grouped.changes) == {}


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_are_the_same_however_they_come(seed: int) -> None:
    shop, chance = Shop(sales()), random.Random(seed)
    notice(shop.topology, shop.grouped.changes)
    for _ in range(3):
        events = shop.events(chance)
        wanted = by_duckdb(events)
        for arrival in (at_once(events), arrive(events, chance), arrive(events, chance, lateness=0.3)):
            driver = play(shop.topology, arrival)
            found = rows(driver, shop.grouped.changes)
            assert {key: (row.count, row.turnover, row.mean) for key, row in found.items()} == close_to(wanted)
            assert driver.keys(shop.grouped) == len(wanted)


class Prices(aggregate.Reversible[Order, list[int], list[int]]):
    """Returns the very list that it goes on to change."""

    def zero(self) -> list[int]:
        return []

    def add(self, so_far: list[int], record: ms.Record[Order], /) -> list[int]:
        so_far.append(record.value.price)
        return so_far

    def remove(self, so_far: list[int], record: ms.Record[Order], /) -> list[int]:
        so_far.remove(record.value.price)
        return so_far

    def merge(self, one: list[int], other: list[int], /) -> list[int]:
        return one + other

    def result(self, so_far: list[int], span: aggregate.Span, /) -> list[int]:
        return so_far


@pytest.mark.parametrize("together", [True, False])
def test_what_was_told_is_not_changed_by_what_comes(together: bool) -> None:
    shop = Shop(Prices())
    driver = shop.driver()
    with driver.together() if together else nullcontext():
        for order in (Order("1", "ann", 5, 1), Order("2", "ann", 7, 2), Order("1", "ann", 5, 3), Order("1", "bob", 5, 4)):
            driver.send(shop.orders, order)
    changes = [r.value for r in driver.read(shop.grouped.changes) if r.key == "ann"]
    assert changes == [inserted([5]), updated([5], [5, 7]), updated([5, 7], [7, 5]), updated([7, 5], [7])]


class Untyped(Prices):
    """Nobody says what it returns, so what was told comes back as plain types."""

    def result(self, so_far: list[int], span: aggregate.Span, /) -> Any:
        return Sales(len(so_far), 0.0, 0.0)

    def returned(self, value: Any) -> Any:
        return Any


def test_a_value_of_a_type_that_nobody_says_is_told_once_if_it_stays() -> None:
    shop = Shop(Untyped())
    driver = shop.driver()
    for order in (Order("1", "ann", 5, 1), Order("1", "ann", 6, 2), Order("2", "ann", 6, 3)):
        driver.send(shop.orders, order)
    assert [r.value.after["count"] for r in driver.read(shop.grouped.changes)] == [1, 2]


class Unreadable(Prices):
    """Says that it keeps whole numbers, and keeps text."""

    def add(self, so_far: Any, record: ms.Record[Order], /) -> Any:
        return [*so_far, "text"]

    def result(self, so_far: Any, span: aggregate.Span, /) -> list[int]:
        return []


def test_what_could_not_be_read_back_is_refused_at_once() -> None:
    shop = Shop(Unreadable())
    with pytest.raises(ms.RecordError, match="its state cannot be kept"):
        shop.driver().send(shop.orders, Order("1", "ann", 5, 1))


class Unkept(Prices):
    def zero(self) -> Any:
        return object()


def test_groups_that_are_empty_take_no_rows() -> None:
    shop = Shop(aggregate.count())
    driver, most = shop.driver(), 0
    for at in range(0, 400, 2):
        driver.send(shop.orders, Order("1", f"{at}", 1, at))
        driver.advance(low_watermark=second(at))
        most = max(most, driver.keys(shop.grouped))
    assert most == 1


def test_a_row_that_never_entered_cannot_leave() -> None:
    shop = Shop(aggregate.count())
    driver = shop.driver()
    order = Order("1", "ann", 5, 1)
    with pytest.raises(
        ms.RecordError, match="a row leaves the group 'ann' that never entered it; let it read the table from its beginning"
    ):
        driver.put(shop.table.changes, deleted(order), key="1", timestamp=second(1))


def test_what_another_aggregate_kept_is_refused() -> None:
    def alone(how: Any) -> Any:
        shop = Shop(how)
        shop_driver = shop.driver()
        it = Alone.__new__(Alone)
        it.driver = shop_driver
        return shop, it

    first, older = alone(aggregate.count())
    older.driver.send(first.orders, Order("1", "ann", 5, 1))
    then, newer = alone(aggregate.sum(lambda order: order.price, int))
    newer.take_over(older)
    with pytest.raises(ms.RecordError, match="it was kept by another aggregate; give the computation a new name"):
        newer.driver.put(then.table.changes, inserted(Order("2", "ann", 5, 2)), key="2", timestamp=second(2))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"aggregate": aggregate.max(lambda order: order.price)}, "cannot take a row out again when that changes; give a reversible"),
        ({"aggregate": aggregate.count}, "is not an aggregate"),
        ({"aggregate": aggregate.rate()}, "no span of time that a rate could be of; count them instead"),
        ({"aggregate": aggregate.combine(Rates, aggregate.count(), aggregate.rate())}, "no span of time that a rate could be of"),
        ({"aggregate": Unkept()}, r"Grouped: what Unkept keeps, .*cannot be kept.*define dump and load"),
        ({"group": None}, "Grouped: the group is None; give a function of the row"),
        ({"value": 3}, "Grouped: 3 is not a type"),
    ],
)
def test_what_cannot_be_meant_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        Grouped(**{"value": Order, "group": lambda order: order.customer, "aggregate": aggregate.count(), **changed})
