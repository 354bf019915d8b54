"""Each record with the row of its key as it stands."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.join import Lookup, Pair
from millstream.table import Newest
from millstream.testing import Driver
from tests.operators.arrival import Event, arrive, play, records, second

CUSTOMERS = [f"c{number}" for number in range(40)]


@dataclass(frozen=True)
class Order:
    id: int
    customer: str
    at: int


@dataclass(frozen=True)
class Customer:
    id: str
    country: str
    at: int


class Shop:
    def __init__(self) -> None:
        self.topology = ms.Topology("shop")
        self.orders = self.topology.inject(
            "orders",
            ms.values([], Order),
            key=lambda order: f"{order.id}",
            timestamp=lambda order: second(order.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.customers = self.topology.inject(
            "customers",
            ms.values([], ms.Change[Customer]),
            key=lambda change: row(change).id,
            timestamp=lambda change: second(row(change).at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.lookup = Lookup(Order, Customer)
        self.topology.compute("lookup", self.lookup).reads(
            *self.lookup.of(self.orders.by(lambda order: order.customer), table=self.customers)
        )


def row(change: ms.Change[Customer]) -> Customer:
    found = change.before if change.after is None else change.after
    assert found is not None
    return found


def test_the_row_counts_that_stands_when_the_record_comes() -> None:
    shop = Shop()
    driver = Driver(shop.topology, ship=False)
    dutch, german = Customer("a", "NL", 5), Customer("a", "DE", 6)
    driver.send(shop.orders, Order(1, "a", 9))
    driver.send(shop.customers, ms.Change(None, dutch))
    driver.send(shop.orders, Order(2, "a", 1))  # older than the row, and it counts all the same
    driver.send(shop.customers, ms.Change(dutch, german))
    driver.send(shop.orders, Order(3, "a", 10), Order(4, "b", 10))
    driver.send(shop.customers, ms.Change(german, None))
    driver.send(shop.orders, Order(5, "a", 11))
    assert records(driver, shop.lookup.pairs) == [
        ("a", 1_000_000, Pair(Order(2, "a", 1), dutch)),
        ("a", 10_000_000, Pair(Order(3, "a", 10), german)),
    ]
    assert [value.id for _, _, value in records(driver, shop.lookup.unmatched)] == [5, 1, 4]


@pytest.mark.parametrize("seed", range(8))
def test_every_record_is_told_once_and_one_row_a_key_is_kept(seed: int) -> None:
    shop, chance = Shop(), random.Random(seed)
    for _ in range(6):
        orders = [Event(shop.orders, Order(number, chance.choice(CUSTOMERS), at := chance.randrange(50)), at) for number in range(200)]
        stood: dict[str, Customer] = {}
        changes: list[Event] = []
        for at in sorted(chance.choices(range(50), k=150)):
            key = chance.choice(CUSTOMERS)
            after = None if key in stood and chance.random() < 0.3 else Customer(key, chance.choice(["NL", "DE"]), at)
            changes.append(Event(shop.customers, ms.Change(stood.get(key), after), at))
            stood.pop(key, None)
            if after is not None:
                stood[key] = after
        # Changes of a key come in their order, as those of a table do; orders come as they will.
        arrival = arrive(orders, chance, lateness=0.3)
        driver = Driver(shop.topology, ship=False)
        wanted: dict[int, Customer | None] = {}
        known: dict[str, Customer | None] = {}
        for epoch in arrival.epochs:
            with driver.together():
                for change in [changes.pop(0) for _ in range(min(len(changes), chance.randrange(30)))]:
                    driver.send(shop.customers, change.value)
                    known[row(change.value).id] = change.value.after
            if epoch.crash:
                driver.crash()
            driver.send(shop.orders, *(event.value for event in epoch.events))
            wanted |= {event.value.id: known.get(event.value.customer) for event in epoch.events}
            if epoch.low_watermark is not None:
                driver.advance(low_watermark=second(epoch.low_watermark))
        found: dict[int, Any] = {pair.left.id: pair.right for _, _, pair in records(driver, shop.lookup.pairs)}
        found |= {order.id: None for _, _, order in records(driver, shop.lookup.unmatched)}
        assert found == wanted
        assert driver.keys(shop.lookup) == sum(customer is not None for customer in known.values())


def test_it_reads_a_table_that_another_computation_keeps() -> None:
    topology = ms.Topology("shop")
    customers = topology.inject(
        "customers",
        ms.values([], Customer),
        key=lambda customer: customer.id,
        timestamp=lambda customer: second(customer.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    newest, lookup = Newest(Customer), Lookup(Customer, Customer)
    topology.compute("newest", newest).reads(customers)
    topology.compute("lookup", lookup).reads(*lookup.of(customers, table=newest.changes))
    driver = Driver(topology)  # it travels
    driver.send(customers, Customer("a", "NL", 1))
    driver.send(customers, Customer("a", "DE", 2))
    assert [pair.right.country for _, _, pair in records(driver, lookup.pairs)] == ["NL"]
    assert play(topology, arrive([], random.Random(1))).keys(lookup) == 0


def test_what_is_no_type_is_refused() -> None:
    with pytest.raises(ms.TopologyError, match="Lookup: 'Customer' is not a type"):
        Lookup(Order, "Customer")  # type: ignore[arg-type]
