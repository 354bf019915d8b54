"""Windows against Spark SQL's own, and DuckDB's, on the same data."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest

import millstream as ms
from millstream import aggregate
from millstream.window import Days, Hopping, Rolling, Session, Tumbling, Window
from tests.operators.arrival import arrive, play
from tests.operators.shop import Order, Sales, at, coming, shop, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GAP = 12_500  # milliseconds; records lie on whole seconds, so none lies just a gap after another


def sales() -> aggregate.Aggregate[Order, Any, Sales]:
    return aggregate.combine(Sales, aggregate.count(), aggregate.sum(lambda order: order.price))


def some(chance: random.Random, seconds: int) -> list[Order]:
    """No two of a customer at the same time: SQL's frames take in all of the same time, whichever came first."""
    return [Order(who, round(chance.uniform(0, 9), 2), second) for who in "abcd" for second in chance.sample(range(seconds), 100)]


def ours(window: Any, orders: list[Order], chance: random.Random) -> list[tuple[Any, ...]]:
    topology, stream = shop(window)
    found = values(play(topology, arrive(coming(stream, orders), chance)), window.results)
    return sorted((one.key, int(one.start), int(one.end), one.value.orders, round(one.value.revenue, 6)) for one in found)


def theirs(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((row[0], int(row[1]), int(row[2]), int(row[3]), round(row[4], 6)) for row in rows)


@pytest.fixture
def sold(spark: SparkSession) -> Iterator[tuple[Any, list[Order], random.Random]]:
    chance = random.Random(7)
    orders = some(chance, 1500)
    rows = [(order.customer, order.price, int(at(order.at))) for order in orders]
    frame = spark.createDataFrame(rows, "customer string, price double, micros long").selectExpr("*", "timestamp_micros(micros) as at")
    frame.createOrReplaceTempView("sold")
    yield spark, orders, chance
    spark.catalog.dropTempView("sold")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("window", "sql"),
    [
        (Tumbling(ms.MINUTE), "window(at, '1 minute')"),
        (Tumbling(ms.MINUTE, offset=20 * ms.SECOND), "window(at, '1 minute', '1 minute', '20 seconds')"),
        (Hopping(ms.MINUTE, every=10 * ms.SECOND), "window(at, '1 minute', '10 seconds')"),
        (Session(GAP * ms.MILLISECOND), f"session_window(at, '{GAP} milliseconds')"),
    ],
)
def test_windows_are_those_of_spark_sql(sold: tuple[Any, list[Order], random.Random], window: Any, sql: str) -> None:
    spark, orders, chance = sold
    found = spark.sql(
        f"select customer, unix_micros(span.start), unix_micros(span.end), n, revenue from ("
        f"select customer, {sql} as span, count(*) as n, sum(price) as revenue from sold group by customer, {sql})"
    )
    told = ours(Window(Order, window, sales()), orders, chance)
    assert len(told) > 20
    assert told == theirs(found.collect())


@pytest.mark.spark
def test_spark_joins_sessions_that_touch_and_millstream_does_not(sold: tuple[Any, list[Order], random.Random]) -> None:
    spark, _, chance = sold
    orders = [Order("ann", 1, 0), Order("ann", 1, 10)]
    rows = [(order.customer, int(at(order.at))) for order in orders]
    spark.createDataFrame(rows, "customer string, micros long").createOrReplaceTempView("touching")
    found = spark.sql("select count(*) from touching group by customer, session_window(timestamp_micros(micros), '10 seconds')")
    assert [row[0] for row in found.collect()] == [2]
    assert [one[3] for one in ours(Window(Order, Session(10 * ms.SECOND), sales()), orders, chance)] == [1, 1]


def test_days_and_rolling_spans_are_those_of_duckdb() -> None:
    chance = random.Random(8)
    orders = some(chance, 40 * 86_400)
    sold = pa.table(
        {
            "customer": [order.customer for order in orders],
            "price": [order.price for order in orders],
            "micros": pa.array([int(at(order.at)) for order in orders], pa.int64()),
        }
    )
    days = duckdb.sql(
        "select customer, strftime(make_timestamptz(micros) at time zone 'America/New_York', '%Y-%m-%d') as day, count(*), sum(price) "
        "from sold group by customer, day"
    ).fetchall()
    zone = ZoneInfo("America/New_York")
    told = ours(Window(Order, Days(zone), sales()), orders, chance)
    of_days = [(key, f"{ms.to_datetime(ms.Timestamp(start)).astimezone(zone):%Y-%m-%d}", n, s) for key, start, _, n, s in told]
    assert sorted(of_days) == sorted((key, day, n, round(s, 6)) for key, day, n, s in days)

    over = 3 * 86_400
    rolling = Rolling(Order, over * ms.SECOND, sales())
    sums = duckdb.sql(
        f"select customer, micros, count(*) over span, sum(price) over span from sold window span as "
        f"(partition by customer order by micros range between {over * 1_000_000 - 1} preceding and current row)"
    ).fetchall()
    told = [(key, end - 1, n, s) for key, _, end, n, s in ours(rolling, orders, chance)]
    assert told == sorted((key, micros, n, round(s, 6)) for key, micros, n, s in sums)
