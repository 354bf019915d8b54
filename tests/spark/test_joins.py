"""The interval join beside Spark SQL's own, on the same generated data."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.join import Join, Misses
from tests.spark.clicks import T

pytestmark = pytest.mark.spark

SECOND = 1_000_000


@dataclass(frozen=True)
class Order:
    id: int
    customer: str
    at: int


@dataclass(frozen=True)
class Payment:
    id: int
    customer: str
    at: int


def generated(chance: random.Random) -> tuple[list[Order], list[Payment]]:
    """Roughly in order, so that none is later than the promise allows."""
    orders = [Order(number, f"c{chance.randrange(8)}", number + chance.randrange(5)) for number in range(400)]
    payments = [Payment(number, f"c{chance.randrange(8)}", number + chance.randrange(5)) for number in range(400)]
    return orders, payments


def test_the_interval_join_says_what_spark_sql_says(spark: SparkSession, drained: Callable[..., ms.Run], at: Path) -> None:
    orders, payments = generated(random.Random(8))
    topology = ms.Topology("shop")
    left = topology.inject(
        "orders",
        ms.values(orders, Order),
        key=lambda order: order.customer,
        timestamp=lambda order: T + order.at * ms.SECOND,
        low_watermark=ms.BoundedDisorder(5 * ms.SECOND),
    )
    right = topology.inject(
        "payments",
        ms.values(payments, Payment),
        key=lambda payment: payment.customer,
        timestamp=lambda payment: T + payment.at * ms.SECOND,
        low_watermark=ms.BoundedDisorder(5 * ms.SECOND),
    )
    join = Join(Order, Payment, before=2 * ms.SECOND, after=7 * ms.SECOND, misses=Misses.BOTH)
    topology.compute("paid", join).reads(*join.of(left, right))
    drained(topology, max_records_per_epoch=60)

    spark.createDataFrame([(o.id, o.customer, o.at) for o in orders], "id int, customer string, at int").createOrReplaceTempView("orders")
    spark.createDataFrame([(p.id, p.customer, p.at) for p in payments], "id int, customer string, at int").createOrReplaceTempView(
        "payments"
    )
    found = spark.sql(
        """
        select o.id, p.id, greatest(o.at, p.at) from orders o full outer join payments p
        on o.customer = p.customer and p.at between o.at - 2 and o.at + 7
        """
    ).collect()
    wanted = {tuple(row) for row in found}

    def told(output: str) -> list[ms.Record[object]]:
        return list(ms.read(at, f"paid.{output}", last=100_000))

    pairs = [(r.value["left"]["id"], r.value["right"]["id"], (r.timestamp - T) // SECOND) for r in told("pairs")]  # type: ignore[index]
    lone_orders = [r.value["id"] for r in told("unmatched_left")]  # type: ignore[index]
    lone_payments = [r.value["id"] for r in told("unmatched_right")]  # type: ignore[index]
    assert len(pairs) > 200
    assert len(lone_orders) > 20
    assert sorted(pairs) == sorted(row for row in wanted if row[0] is not None and row[1] is not None)
    assert sorted(lone_orders) == sorted(order for order, payment, _ in wanted if payment is None)
    assert sorted(lone_payments) == sorted(payment for order, payment, _ in wanted if order is None)
