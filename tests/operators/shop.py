"""What tests of windows share: orders, a stream of them, and ways for the same orders to arrive."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

import millstream as ms
from millstream.testing import Driver

CUSTOMERS = string.ascii_lowercase
NOON = ms.Timestamp(1_714_564_800_000_000)  # 2024-05-01T12:00Z


@dataclass(frozen=True)
class Order:
    customer: str
    price: float
    at: int  # seconds after noon


@dataclass(frozen=True)
class Sales:
    orders: int
    revenue: float


def at(second: float) -> ms.Timestamp:
    return NOON + round(second * 1_000_000) * ms.MICROSECOND


def shop(*computations: Any, name: str = "shop") -> tuple[ms.Topology, Any]:
    """A topology in which the computations read all orders; each is called by its place."""
    topology = ms.Topology(name)
    orders = topology.inject(
        "orders",
        ms.values([], Order),
        key=lambda order: order.customer,
        timestamp=lambda order: at(order.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    for place, computation in enumerate(computations):
        topology.compute(f"c{place}", computation).reads(orders)
    return topology, orders


class Watching(ms.Computation):
    """Reads what an operator tells: the engine counts what is late for it."""

    def process_record(self, record: ms.Record[Any]) -> None:
        pass


def watch(topology: ms.Topology, outputs: Sequence[ms.Output[Any]]) -> None:
    for place, output in enumerate(outputs):
        topology.compute(f"watching {place}", Watching()).reads(output)


def late_of(driver: Driver, outputs: Sequence[ms.Output[Any]]) -> list[int]:
    return [driver.tally(f"watching {place}").late for place in range(len(outputs))]


def some_orders(chance: random.Random, count: int, seconds: int, customers: str = CUSTOMERS) -> list[Order]:
    """Every customer is a case of its own."""
    return [Order(chance.choice(customers), round(chance.uniform(0, 9), 2), chance.randrange(seconds)) for _ in range(count)]


def at_once(topology: ms.Topology, orders: Any, events: Sequence[Order]) -> Driver:
    """All of them in one epoch, and the end."""
    driver = Driver(topology, ship=False)
    with driver.together():
        driver.send(orders, *events)
    driver.finish()
    return driver


def bit_by_bit(topology: ms.Topology, orders: Any, events: Sequence[Order], chance: random.Random) -> Driver:
    """In another order, in epochs of any size, with crashes; the low watermark follows, so that nothing is late."""
    driver, left = Driver(topology, ship=False), list(events)
    while left:
        with driver.together():
            for _ in range(min(len(left), chance.choice([1, 3, 10, 30]))):
                driver.send(orders, left.pop(min(chance.randrange(len(left)), chance.randrange(len(left)))))
            if chance.random() < 0.5:
                driver.advance(low_watermark=min((at(order.at) for order in left), default=at(10**6), key=int))
            if chance.random() < 0.1:
                driver.crash()
    driver.finish()
    return driver


def told(driver: Driver, output: ms.Output[Any]) -> list[tuple[Any, ...]]:
    """All that an output has, in an order of its own."""
    return sorted((record.key, int(record.timestamp), repr(msgspec.to_builtins(record.value))) for record in driver.read(output))


def values(driver: Driver, output: ms.Output[Any]) -> list[Any]:
    return [record.value for record in driver.read(output)]
