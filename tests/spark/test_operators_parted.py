"""Joins and tables on Spark: the same is told as by the driver that gets all at once, however it comes and whatever dies."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream import aggregate
from millstream.join import AsOf, Direction, Join, Lookup, Misses
from millstream.table import Grouped, Kind, Newest, TableJoin, View
from tests.operators.arrival import Event, arrive, at_once, play, records, rows, second
from tests.spark.test_model import Hasty

pytestmark = pytest.mark.spark

KEYS = [f"{number}" for number in range(40)]  # each a case of its own
CUSTOMERS = KEYS[:15]
CRASHES = 2


@dataclass(frozen=True)
class Order:
    id: str
    customer: str
    price: int
    at: int


@dataclass(frozen=True)
class Payment:
    order: str
    number: int
    at: int


@dataclass(frozen=True)
class Customer:
    id: str
    country: str
    at: int


class Paid(View[Payment, int]):
    """How often an order was paid, modulo three; never and three times is no row."""

    def apply(self, row: int | None, record: ms.Record[Payment]) -> int | None:
        return ((row or 0) + 1) % 3 or None


class Shop:
    """All operators over the same three streams."""

    def __init__(self) -> None:
        self.topology = topology = ms.Topology("shop")
        promise = ms.BoundedDisorder(ms.SECOND)
        self.orders = topology.inject(
            "orders", ms.values([], Order), key=lambda order: order.id, timestamp=lambda order: second(order.at), low_watermark=promise
        )
        self.payments = topology.inject(
            "payments", ms.values([], Payment), key=lambda paid: paid.order, timestamp=lambda paid: second(paid.at), low_watermark=promise
        )
        self.customers = topology.inject(
            "customers", ms.values([], Customer), key=lambda one: one.id, timestamp=lambda one: second(one.at), low_watermark=promise
        )
        join = Join(Order, Payment, before=3 * ms.SECOND, after=8 * ms.SECOND, misses=Misses.BOTH)
        topology.compute("join", join).reads(*join.of(self.orders, self.payments))
        then = AsOf(Payment, Order, direction=Direction.NEAREST, tolerance=9 * ms.SECOND)
        topology.compute("then", then).reads(*then.of(self.payments, versions=self.orders))
        placed = Newest(Order, gone=lambda order: order.price == 0)
        topology.compute("placed", placed).reads(self.orders)
        known = Newest(Customer, gone=lambda customer: customer.country == "")
        topology.compute("known", known).reads(self.customers)
        located = TableJoin(
            Order,
            Customer,
            left_key=lambda order: order.id,
            reference=lambda order: order.customer,
            right_key=lambda customer: customer.id,
            kind=Kind.LEFT,
        )
        topology.compute("located", located).reads(*located.of(placed.changes, known.changes))
        spent = Grouped(Order, lambda order: order.customer, aggregate.sum(lambda order: order.price, int))
        topology.compute("spent", spent).reads(*spent.of(placed.changes))
        paid = Paid()
        topology.compute("paid", paid).reads(self.payments)
        self.lookup = Lookup(Order, Customer)
        topology.compute("lookup", self.lookup).reads(*self.lookup.of(self.orders.by(lambda order: order.customer), table=known.changes))
        self.known = known.changes
        self.outputs: list[ms.Output[Any]] = [join.pairs, join.unmatched_left, join.unmatched_right, then.pairs, then.unmatched]
        self.tables: list[ms.Output[Any]] = [placed.changes, known.changes, located.changes, spent.changes, paid.changes]
        self.late: list[ms.Output[Any]] = [join.late_left, join.late_right, then.late, then.late_versions]

    def events(self, chance: random.Random) -> list[Event]:
        """No two orders, nor two customers, at one time: of those the last to come would count."""
        orders = [Order(chance.choice(KEYS), chance.choice(CUSTOMERS), chance.randrange(5), at) for at in chance.sample(range(400), 240)]
        customers = [Customer(chance.choice(CUSTOMERS), chance.choice(["", "NL", "DE"]), at) for at in chance.sample(range(400), 80)]
        payments = [Payment(chance.choice(KEYS), number, chance.randrange(400)) for number in range(240)]
        return [
            *(Event(self.orders, order, order.at) for order in orders),
            *(Event(self.customers, customer, customer.at) for customer in customers),
            *(Event(self.payments, payment, payment.at) for payment in payments),
        ]


def every_order_is_looked_up(shop: Shop, stage: Hasty, events: list[Event]) -> None:
    """Once, beside a row that stood at some time; which one depends on what came first."""
    pairs, lone = ([record.value for record in stage.read(output)] for output in (shop.lookup.pairs, shop.lookup.unmatched))
    orders = [event.value for event in events if isinstance(event.value, Order)]
    assert sorted(map(repr, [*lone, *(pair.left for pair in pairs)])) == sorted(map(repr, orders))
    stood = {record.value.after for record in stage.read(shop.known)}
    assert all(pair.right in stood and pair.right.id == pair.left.customer for pair in pairs)


@pytest.mark.parametrize("seed", [9, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (10, 11, 12))])
def test_the_same_is_told_however_it_comes_and_whatever_dies(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    shop, chance = Shop(), random.Random(seed)
    events = shop.events(chance)
    wanted = play(shop.topology, at_once(events))
    epochs = arrive(events, chance).epochs
    crashes = set(chance.sample(range(len(epochs) // 3, len(epochs)), CRASHES))
    stage = Hasty(shop.topology, tmp_path / "mill", spark, 2)
    try:
        stage.begin()
        for number, epoch in enumerate(epochs):
            if number in crashes:
                stage.crash()
            for stream in (shop.orders, shop.payments, shop.customers):
                if some := [event.value for event in epoch.events if event.stream is stream]:
                    stage.send(stream, *some)
            if epoch.low_watermark is not None:
                stage.advance(low_watermark=second(epoch.low_watermark))
        stage.finish()
        found: Any = stage
        for output in shop.outputs:
            assert records(found, output) == records(wanted, output), output
        for table in shop.tables:
            assert rows(found, table) == rows(wanted, table), table
        assert not any(stage.read(output) for output in shop.late)
        every_order_is_looked_up(shop, stage, events)
        assert len(stage.torn) == CRASHES
        assert [stage.keys(name) for name in ("join", "then")] == [0, 0]
    finally:
        stage.stop()
    assert min(len(wanted.read(output)) for output in (*shop.outputs, *shop.tables)) > 5
