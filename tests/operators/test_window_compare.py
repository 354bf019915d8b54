"""A window beside an earlier one."""

from __future__ import annotations

import random
from typing import Any

import pytest

import millstream as ms
from millstream import aggregate
from millstream.testing import Driver
from millstream.window import Compare, Compared, Tumbling, Window, Windowed
from tests.operators.arrival import Event, arrive, at_once, nothing_is_late, notice, play
from tests.operators.shop import CUSTOMERS, NOON, NOON_OF_DAY, Order, at, coming, shop, some_orders, told, values


def compared_shop(back: ms.Duration) -> tuple[ms.Topology, Any, Compare[int]]:
    per_minute, compared = Window(Order, Tumbling(ms.MINUTE), aggregate.count()), Compare(int, back=back)
    topology, orders = shop(per_minute)
    topology.compute("compared", compared).reads(per_minute.results)
    notice(topology, compared.compared)
    return topology, orders, compared


def test_a_minute_beside_the_minute_before() -> None:
    topology, orders, compared = compared_shop(ms.MINUTE)
    driver = Driver(topology)
    driver.send(orders, *(Order("ann", 1, second) for second in (0, 10, 20, 70, 200)))
    driver.finish()
    assert values(driver, compared.compared) == [
        Compared("ann", at(0), at(60), 3, None),
        Compared("ann", at(60), at(120), 1, 3),
        Compared("ann", at(180), at(240), 1, None),
    ]
    assert [record.timestamp for record in driver.read(compared.compared)] == [at(end) - ms.MICROSECOND for end in (60, 120, 240)]
    assert driver.keys(compared) == 0


@pytest.mark.parametrize("seed", range(6))
def test_the_same_in_any_order(seed: int) -> None:
    topology, orders, compared = compared_shop(2 * ms.MINUTE)
    chance = random.Random(seed)
    for size in (60, 400):
        events = some_orders(chance, size, 900)
        whole, split = play(topology, at_once(coming(orders, events))), play(topology, arrive(coming(orders, events), chance))
        assert told(split, compared.compared) == told(whole, compared.compared)
        counts: dict[tuple[str, int], int] = {}
        for order in events:
            counts[order.customer, order.at // 60] = counts.get((order.customer, order.at // 60), 0) + 1
        found = {(one.key, int(one.start - NOON) // 60_000_000): (one.value, one.earlier) for one in values(split, compared.compared)}
        assert found == {(key, minute): (count, counts.get((key, minute - 2))) for (key, minute), count in counts.items()}
        assert split.keys(compared) == 0


def test_windows_that_come_in_another_order_find_each_other() -> None:
    compared = Compare(int, back=ms.MINUTE)
    topology, _ = shop()
    windows = topology.inject(
        "windows",
        ms.values([], Windowed[int]),
        key=lambda window: "all",
        timestamp=lambda window: window.end - ms.MICROSECOND,
        low_watermark=ms.BoundedDisorder(ms.MINUTE),
    )
    topology.compute("compared", compared).reads(windows)
    driver = Driver(topology)
    driver.send(windows, Windowed("ann", at(60), at(120), 2), Windowed("bob", at(0), at(60), 5), Windowed("cis", at(60), at(120), 7))
    driver.send(windows, Windowed("ann", at(120), at(180), 3))
    driver.advance(low_watermark=at(60) - ms.MICROSECOND)
    assert values(driver, compared.compared) == []  # one that ends there may still come
    driver.send(windows, Windowed("ann", at(0), at(60), 1))
    driver.advance(low_watermark=at(60))
    assert [(one.key, one.value, one.earlier) for one in values(driver, compared.compared)] == [("bob", 5, None), ("ann", 1, None)]
    driver.finish()
    found = [(one.key, one.value, one.earlier) for one in values(driver, compared.compared)]
    assert found[2:] == [("ann", 2, 1), ("cis", 7, None), ("ann", 3, 2)]


def test_a_window_that_comes_late_is_told_to_be_and_beside_none() -> None:
    compared = Compare(int, back=ms.MINUTE)
    topology, _ = shop()
    windows = topology.inject(
        "windows",
        ms.values([], Windowed[int]),
        key=lambda window: "all",
        timestamp=lambda window: window.end - ms.MICROSECOND,
        low_watermark=ms.BoundedDisorder(ms.MINUTE),
    )
    topology.compute("compared", compared).reads(windows)
    notice(topology, compared.compared)
    driver = Driver(topology)
    first, late, third = (Windowed("ann", at(start), at(start + 60), value) for value, start in enumerate((0, 60, 120)))
    driver.send(windows, first, third)
    driver.advance(low_watermark=at(180) - ms.MICROSECOND)
    driver.send(windows, late)
    driver.finish()
    assert [(one.value, one.earlier) for one in values(driver, compared.compared)] == [(0, None), (2, None)]
    assert values(driver, compared.late) == [late]
    nothing_is_late(topology, driver)
    assert driver.keys(compared) == 0


@pytest.mark.parametrize("seed", range(6))
def test_windows_are_beside_those_that_came_in_time(seed: int) -> None:
    compared = Compare(int, back=2 * ms.SECOND)
    topology, _ = shop()
    windows = topology.inject(
        "windows",
        ms.values([], Windowed[int]),
        key=lambda window: window.key,
        timestamp=lambda window: window.start,
        low_watermark=ms.BoundedDisorder(ms.MINUTE),
    )
    topology.compute("compared", compared).reads(windows)
    notice(topology, compared.compared)
    chance = random.Random(seed)
    for _ in range(2):
        places = chance.sample([(customer, start) for customer in CUSTOMERS for start in range(12)], 300)
        events = [
            Event(windows, Windowed(customer, at(start), at(start + 1), number), NOON_OF_DAY + start)
            for number, (customer, start) in enumerate(places)
        ]
        arrival = arrive(events, chance, lateness=0.4)
        driver = play(topology, arrival)
        in_time = {(event.value.key, int(event.value.start)): event.value.value for event in arrival.on_time}
        wanted = {(key, start, value, in_time.get((key, start - 2_000_000))) for (key, start), value in in_time.items()}
        found = values(driver, compared.compared)
        assert {(one.key, int(one.start), one.value, one.earlier) for one in found} == wanted
        assert len(found) == len(wanted)
        assert sorted(map(repr, values(driver, compared.late))) == sorted(repr(event.value) for event in arrival.late)
        assert driver.keys(compared) == 0


def test_a_long_stream_keeps_what_is_within_reach() -> None:
    topology, orders, compared = compared_shop(5 * ms.MINUTE)
    driver, most = Driver(topology, ship=False), 0
    for minute in range(60):
        with driver.together():
            driver.send(orders, Order("a", 1, minute * 60))
            driver.advance(low_watermark=at(minute * 60))
        most = max(most, len(driver.state(compared, "a").windows))
    assert most == 5
    driver.finish()
    assert driver.keys(compared) == 0


def test_what_cannot_be_right_is_refused_while_building() -> None:
    with pytest.raises(ms.TopologyError, match=r"Compare\(back=0\)"):
        Compare(int, back=0 * ms.SECOND)
    with pytest.raises(ms.TopologyError, match="is not a type"):
        Compare(3, back=ms.SECOND)  # type: ignore[arg-type]
