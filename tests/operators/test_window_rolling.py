"""Each record with those shortly before it."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest

import millstream as ms
from millstream import aggregate, sketch
from millstream.testing import Driver
from millstream.window import Rolling
from tests.operators.arrival import arrive, at_once, notice, play
from tests.operators.shop import NOON, Order, Sales, at, coming, shop, some_orders, told, values


def price(order: Order) -> float:
    return order.price


def test_a_rolling_mean_in_event_time() -> None:
    recent = Rolling(Order, 10 * ms.SECOND, aggregate.mean(price))
    topology, orders = shop(recent)
    driver = Driver(topology)
    for order in (Order("ann", 30, 15), Order("ann", 10, 0), Order("ann", 20, 9), Order("ann", 50, 10)):
        driver.send(orders, order)
    assert values(driver, recent.results) == []
    driver.advance(low_watermark=at(10))
    assert [(r.timestamp, r.value.value) for r in driver.read(recent.results)] == [(at(0), 10.0), (at(9), 15.0)]
    driver.finish()
    assert [one.value for one in values(driver, recent.results)][2:] == [35.0, 100 / 3]  # what lies ten seconds back is out
    assert values(driver, recent.results)[3].start == at(5) + ms.MICROSECOND
    assert values(driver, recent.results)[3].end == at(15) + ms.MICROSECOND
    assert driver.keys(recent) == 0


def test_a_late_record_is_told_and_counts_nowhere() -> None:
    recent = Rolling(Order, ms.MINUTE, aggregate.count())
    topology, orders = shop(recent)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 30))
    driver.advance(low_watermark=at(31))
    driver.send(orders, Order("ann", 1, 20), Order("ann", 1, 40))
    driver.finish()
    assert values(driver, recent.late) == [Order("ann", 1, 20)]
    assert [one.value for one in values(driver, recent.results)] == [1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_the_same_in_any_order(seed: int) -> None:
    over = 20
    plain: list[tuple[Any, Any]] = [
        (aggregate.count(), len),
        (aggregate.combine(Sales, aggregate.count(), aggregate.sum(price)), lambda found: Sales(len(found), math.fsum(map(price, found)))),
        (aggregate.stddev(price), lambda found: pytest.approx(statistics.pstdev(map(price, found)), abs=1e-7)),
        (aggregate.max(price), lambda found: max(map(price, found))),
        (aggregate.collect(Order), lambda found: found),
        (sketch.distinct(lambda order: order.at), lambda found: len({order.at for order in found})),
    ]
    rolling = [Rolling(Order, over * ms.SECOND, of) for of, _ in plain]
    topology, orders = shop(*rolling)
    notice(topology, *(one.results for one in rolling))
    chance = random.Random(seed)
    for size in (60, 300):
        drawn = some_orders(chance, size, 10**6)
        events = [Order(order.customer, order.price, second) for order, second in zip(drawn, chance.sample(range(500), size), strict=True)]
        whole, split = play(topology, at_once(coming(orders, events))), play(topology, arrive(coming(orders, events), chance))
        arrival = arrive(coming(orders, events), chance, lateness=0.3)
        partly, in_time = play(topology, arrival), [event.value for event in arrival.on_time]
        for one, (_, oracle) in zip(rolling, plain, strict=True):
            assert told(split, one.results) == told(whole, one.results)
            for driver, came in ((split, events), (partly, in_time)):
                assert len(driver.read(one.results)) == len(came)
                for record in driver.read(one.results):
                    second = int(record.timestamp - NOON) // 1_000_000
                    near = [order for order in came if order.customer == record.key and second - over < order.at <= second]
                    assert record.value.value == oracle(sorted(near, key=lambda order: order.at))
                assert driver.keys(one) == 0
            assert sorted(map(repr, values(partly, one.late))) == sorted(repr(event.value) for event in arrival.late)


def test_a_long_stream_keeps_what_is_recent() -> None:
    recent = Rolling(Order, ms.MINUTE, aggregate.mean(price))
    topology, orders = shop(recent)
    driver, most = Driver(topology, ship=False), 0
    for second in range(0, 1200, 4):
        with driver.together():
            driver.send(orders, Order("a", second / 7, second), Order(f"once{second}", 1, second))
            driver.advance(low_watermark=at(second - 4))
        most = max(most, len(driver.state(recent, "a").records))
        assert driver.keys(recent) <= 40
    assert most == 15
    driver.finish()
    assert driver.keys(recent) == 0


def test_what_cannot_be_right_is_refused_while_building() -> None:
    with pytest.raises(ms.TopologyError, match=r"Rolling\(over=0\)"):
        Rolling(Order, 0 * ms.SECOND, aggregate.count())
    with pytest.raises(ms.TopologyError, match="is not an aggregate"):
        Rolling(Order, ms.SECOND, 3)  # type: ignore[arg-type]
