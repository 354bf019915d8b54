"""What tests of windows share: orders, a stream of them, and what was told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

import millstream as ms
from millstream.testing import Driver
from tests.operators.arrival import Event, second

CUSTOMERS = [f"c{number}" for number in range(60)]
NOON_OF_DAY = 43_200  # seconds
NOON = second(NOON_OF_DAY)  # 2024-05-01T12:00Z


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


def some_orders(chance: random.Random, count: int, seconds: int, customers: Sequence[str] = CUSTOMERS) -> list[Order]:
    """Every customer is a case of its own."""
    return [Order(chance.choice(customers), round(chance.uniform(0, 9), 2), chance.randrange(seconds)) for _ in range(count)]


def coming(stream: Any, orders: Sequence[Order]) -> list[Event]:
    """Orders on their way in."""
    return [Event(stream, order, NOON_OF_DAY + order.at) for order in orders]


def told(driver: Driver, output: ms.Output[Any]) -> list[tuple[Any, ...]]:
    """All that an output has, in an order of its own."""
    return sorted((record.key, int(record.timestamp), repr(msgspec.to_builtins(record.value))) for record in driver.read(output))


def values(driver: Driver, output: ms.Output[Any]) -> list[Any]:
    return [record.value for record in driver.read(output)]
