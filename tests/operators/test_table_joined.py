"""Two tables joined by a foreign key."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.change import deleted, inserted, updated
from millstream.join import Pair
from millstream.table import Kind, Newest, TableJoin
from millstream.testing import Driver
from tests.operators.arrival import Event, arrive, at_once, notice, play, rows, second


@dataclass(frozen=True)
class Order:
    id: str
    customer: str  # none: the order is gone
    at: int


@dataclass(frozen=True)
class Customer:
    id: str
    country: str  # none: the customer is gone
    at: int


ANONYMOUS = "anonymous"  # an order of nobody
IDS = [f"i{number}" for number in range(50)]
CUSTOMERS = [f"c{number}" for number in range(15)]


class Shop:
    def __init__(self, kind: Kind, remember: ms.Duration = ms.DAY) -> None:
        self.kind = kind
        self.topology = ms.Topology("shop")
        self.orders = self.topology.inject(
            "orders",
            ms.values([], Order),
            key=lambda order: order.id,
            timestamp=lambda order: second(order.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.customers = self.topology.inject(
            "customers",
            ms.values([], Customer),
            key=lambda customer: customer.id,
            timestamp=lambda customer: second(customer.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        placed = Newest(Order, gone=lambda order: order.customer == "", remember=remember)
        known = Newest(Customer, gone=lambda customer: customer.country == "", remember=remember)
        self.topology.compute("placed", placed).reads(self.orders)
        self.topology.compute("known", known).reads(self.customers)
        self.joined = TableJoin(
            Order,
            Customer,
            left_key=lambda order: order.id,
            reference=lambda order: None if order.customer == ANONYMOUS else order.customer,
            right_key=lambda customer: customer.id,
            kind=kind,
        )
        self.topology.compute("joined", self.joined).reads(*self.joined.of(placed.changes, known.changes))

    def driver(self) -> Driver:
        return Driver(self.topology, ship=False)

    def events(self, chance: random.Random) -> list[Event]:
        """No two of one key at one time: of these, the last to come counts."""
        found: list[Event] = []
        span = chance.choice((10, 60))
        for id_, at in chance.sample([(id_, at) for id_ in IDS for at in range(span)], 150):
            customer = chance.choice(["", ANONYMOUS, *chance.choices(CUSTOMERS, k=4)])
            found.append(Event(self.orders, Order(id_, customer, at), at))
        for id_, at in chance.sample([(id_, at) for id_ in CUSTOMERS for at in range(span)], 60):
            found.append(Event(self.customers, Customer(id_, chance.choice(["", "NL", "DE"]), at), at))
        return found

    def by_hand(self, events: list[Event]) -> dict[str, Pair[Order, Customer | None]]:
        in_order = sorted(events, key=lambda event: event.at)
        orders = {event.value.id: event.value for event in in_order if isinstance(event.value, Order)}
        customers = {event.value.id: event.value for event in in_order if isinstance(event.value, Customer)}
        known = {key: customer for key, customer in customers.items() if customer.country}
        pairs = {key: Pair(order, known.get(order.customer)) for key, order in orders.items() if order.customer}
        return {key: pair for key, pair in pairs.items() if pair.right is not None or self.kind is Kind.LEFT}


def changes(driver: Driver, shop: Shop) -> list[ms.Change[Pair[Order, Customer | None]]]:
    return [record.value for record in driver.read(shop.joined.changes)]


def test_a_row_follows_both_tables_and_each_step_is_one_change() -> None:
    shop = Shop(Kind.LEFT)
    driver = shop.driver()
    one, moved = Order("1", "a", 1), Order("1", "b", 4)
    dutch, german, other = Customer("a", "NL", 2), Customer("a", "DE", 3), Customer("b", "FR", 3)
    driver.send(shop.orders, one)
    driver.send(shop.customers, dutch)
    driver.send(shop.customers, german, other)
    driver.send(shop.orders, moved)
    driver.send(shop.customers, Customer("b", "", 5))
    driver.send(shop.orders, Order("1", "", 6))
    steps = [Pair(one, None), Pair(one, dutch), Pair(one, german), Pair(moved, other), Pair(moved, None)]
    assert changes(driver, shop) == [inserted(steps[0]), *map(updated, steps, steps[1:]), deleted(steps[-1])]
    assert {record.key for record in driver.read(shop.joined.changes)} == {"1"}


def test_an_inner_join_has_no_row_without_a_partner() -> None:
    shop = Shop(Kind.INNER)
    driver = shop.driver()
    one, dutch = Order("1", "a", 1), Customer("a", "NL", 2)
    driver.send(shop.orders, one, Order("2", "c", 1))
    assert changes(driver, shop) == []
    driver.send(shop.customers, dutch)
    driver.send(shop.customers, Customer("a", "", 3))
    assert changes(driver, shop) == [inserted(Pair(one, dutch)), deleted(Pair(one, dutch))]


@pytest.mark.parametrize("kind", Kind)
def test_a_row_without_a_reference_has_no_partner(kind: Kind) -> None:
    shop = Shop(kind)
    driver = shop.driver()
    dutch = Customer("a", "NL", 1)
    nobodys, anns, again = Order("1", ANONYMOUS, 2), Order("1", "a", 3), Order("1", ANONYMOUS, 4)
    driver.send(shop.customers, dutch)
    for order in (nobodys, anns, again):
        driver.send(shop.orders, order)
    driver.send(shop.customers, Customer("a", "DE", 5))
    alone, found = Pair(nobodys, None), Pair(anns, dutch)
    if kind is Kind.LEFT:
        assert changes(driver, shop) == [inserted(alone), updated(alone, found), updated(found, Pair(again, None))]
    else:
        assert changes(driver, shop) == [inserted(found), deleted(found)]


def test_an_answer_that_is_on_its_way_when_a_row_refers_to_nothing_any_more_is_passed_over() -> None:
    shop = Shop(Kind.LEFT)
    driver = shop.driver()
    driver.send(shop.customers, Customer("a", "NL", 1))
    with driver.together():
        for order in (Order("1", "a", 2), Order("1", ANONYMOUS, 3), Order("2", "a", 2), Order("2", "", 3), Order("2", ANONYMOUS, 4)):
            driver.send(shop.orders, order)
            driver.epoch()
    assert rows(driver, shop.joined.changes) == {"1": Pair(Order("1", ANONYMOUS, 3), None), "2": Pair(Order("2", ANONYMOUS, 4), None)}


def test_one_right_row_serves_many_left_ones() -> None:
    shop = Shop(Kind.INNER)
    driver = shop.driver()
    driver.send(shop.orders, *(Order(f"{number}", "a", number) for number in range(50)))
    driver.send(shop.customers, Customer("a", "NL", 60))
    driver.send(shop.customers, Customer("a", "DE", 61))
    assert {pair.right.country for pair in rows(driver, shop.joined.changes).values()} == {"DE"}
    assert len(rows(driver, shop.joined.changes)) == 50


def test_the_state_lies_once_and_a_row_that_is_gone_leaves_none() -> None:
    shop = Shop(Kind.LEFT, remember=ms.SECOND)
    driver = shop.driver()
    driver.send(shop.orders, Order("1", "a", 1))
    driver.send(shop.customers, Customer("a", "NL", 2))
    assert driver.keys(shop.joined) == 2
    driver.send(shop.orders, Order("1", "", 3))
    driver.send(shop.customers, Customer("a", "", 4))
    driver.advance(low_watermark=second(5))
    assert driver.keys(shop.joined) == 0


def test_a_left_row_that_points_to_nothing_is_forgotten_there_when_it_goes() -> None:
    shop = Shop(Kind.INNER, remember=ms.SECOND)
    driver = shop.driver()
    most = 0
    for at in range(0, 600, 2):
        driver.send(shop.orders, Order(f"{at}", f"{at}", at))
        driver.send(shop.orders, Order(f"{at}", "", at + 1))
        driver.advance(low_watermark=second(at))
        most = max(most, driver.keys(shop.joined))
    assert most <= 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", Kind)
def test_the_rows_are_the_same_however_they_come(kind: Kind, seed: int) -> None:
    shop = Shop(kind)
    notice(shop.topology, shop.joined.changes)
    chance = random.Random(seed)
    for _ in range(2):
        events = shop.events(chance)
        for arrival in (at_once(events), arrive(events, chance), arrive(events, chance, lateness=0.3)):
            driver = play(shop.topology, arrival)
            assert rows(driver, shop.joined.changes) == shop.by_hand(events)


def test_every_pair_that_is_told_stood_at_some_time() -> None:
    """What is on its way about a row to which one no longer points is passed over, also when one points there again."""
    shop = Shop(Kind.LEFT)
    driver = shop.driver()
    driver.send(shop.customers, Customer("a", "NL", 1), Customer("b", "DE", 1))
    with driver.together():
        driver.send(shop.orders, Order("1", "a", 2))
        driver.send(shop.orders, Order("1", "b", 3))
        driver.send(shop.orders, Order("1", "a", 4))
    assert changes(driver, shop) == [inserted(Pair(Order("1", "a", 4), Customer("a", "NL", 1)))]


def test_an_answer_from_where_a_row_no_longer_points_is_passed_over() -> None:
    """Rows that move while answers are on their way, all at one time, so that nothing but the numbers tells questions apart."""
    shop, chance = Shop(Kind.LEFT), random.Random(5)
    for _ in range(3):
        driver = shop.driver()
        driver.send(shop.customers, Customer("a", "NL", 1), Customer("b", "DE", 1))
        with driver.together():
            for _ in range(20):
                driver.send(shop.orders, *(Order(id_, chance.choice(["a", "b", ANONYMOUS]), 2) for id_ in chance.sample(IDS, 30)))
                for _ in range(chance.randrange(3)):
                    driver.epoch()
        for change in changes(driver, shop):
            for pair in (change.before, change.after):
                refers = None if pair is None or pair.left.customer == ANONYMOUS else pair.left.customer
                assert pair is None or refers == (pair.right and pair.right.id)
        rows(driver, shop.joined.changes)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"reference": None}, "TableJoin: reference is None; give a function of the left row"),
        ({"left_key": lambda: ""}, "TableJoin: left_key is .* which cannot be called with the left row alone"),
        ({"kind": "left"}, r"TableJoin\(kind='left'\): give Kind.INNER or Kind.LEFT"),
    ],
)
def test_what_cannot_be_meant_is_refused(changed: dict[str, Any], why: str) -> None:
    usual: dict[str, Any] = {
        "left": Order,
        "right": Customer,
        "left_key": lambda order: order.id,
        "reference": lambda order: order.customer,
        "right_key": lambda customer: customer.id,
    }
    with pytest.raises(ms.TopologyError, match=why):
        TableJoin(**{**usual, **changed})
