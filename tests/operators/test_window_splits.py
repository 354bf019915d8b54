"""What windows tell does not depend on the order of arrival, on where epochs are cut, or on crashes; and it is what plain Python says.

The oracles share nothing with the windows: they sort and group all records at once.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import millstream as ms
from millstream import aggregate
from millstream.testing import Driver
from millstream.window import Days, Every, Hopping, Session, Tumbling, Window, WindowTable
from tests.invariants import changes_join_up, changes_never_go_back
from tests.operators.shop import CUSTOMERS, NOON, Order, Sales, at, at_once, bit_by_bit, late_of, shop, some_orders, told, values, watch

Rows = dict[tuple[str, int, int], tuple[int, float]]  # key, start and end in seconds after noon: how many, and their sum


def both() -> aggregate.Aggregate[Order, Any, Sales]:
    return aggregate.combine(Sales, aggregate.count(), aggregate.sum(lambda order: order.price))


def summed(found: dict[tuple[str, int, int], list[Order]]) -> Rows:
    import math

    return {place: (len(orders), math.fsum(order.price for order in orders)) for place, orders in found.items()}


def hopped(orders: Sequence[Order], size: int, every: int) -> Rows:
    found: dict[tuple[str, int, int], list[Order]] = defaultdict(list)
    for order in orders:
        for start in range(-size, order.at + 1):
            if start % every == 0 and start <= order.at < start + size:
                found[order.customer, start, start + size].append(order)
    return summed(found)


def sessions(orders: Sequence[Order], gap: int) -> Rows:
    found: dict[tuple[str, int, int], list[Order]] = {}
    for customer in {order.customer for order in orders}:
        run: list[Order] = []
        for order in [*sorted((o for o in orders if o.customer == customer), key=lambda o: o.at), None]:
            if run and (order is None or order.at - run[-1].at >= gap):
                found[customer, run[0].at, run[-1].at + gap] = run
                run = []
            if order is not None:
                run.append(order)
    return summed(found)


ORACLES: dict[str, tuple[Any, Callable[[Sequence[Order]], Rows]]] = {
    "tumbling": (Tumbling(ms.MINUTE), lambda orders: hopped(orders, 60, 60)),
    "hopping": (Hopping(40 * ms.SECOND, every=10 * ms.SECOND), lambda orders: hopped(orders, 40, 10)),
    "session": (Session(12 * ms.SECOND), lambda orders: sessions(orders, 12)),
    "short session": (Session(3 * ms.SECOND), lambda orders: sessions(orders, 3)),
}


def rows_of(windows: Sequence[Any]) -> Rows:
    found = {(one.key, seconds(one.start), seconds(one.end)): (one.value.orders, one.value.revenue) for one in windows}
    assert len(found) == len(windows)  # each once
    return found


def seconds(moment: ms.Timestamp) -> int:
    return int(moment - NOON) // 1_000_000


def table_of(driver: Driver, table: WindowTable[Any, Any]) -> list[Any]:
    """The rows that its changes leave; the same by the times of the changes."""
    records = driver.read(table.changes)
    changes_join_up(records)
    changes_never_go_back(records)
    left: list[dict[str, Any]] = []
    for order in (records, sorted(records, key=lambda record: record.timestamp)):
        rows: dict[str, Any] = {}
        for record in order:
            rows.pop(record.key, None)
            if record.value.after is not None:
                rows[record.key] = record.value.after
        left.append(rows)
    assert left[0] == left[1]
    return list(left[0].values())


@pytest.mark.parametrize("seed", range(6))
def test_windows_in_any_order(seed: int) -> None:
    kinds = [Window(Order, windows, both()) for windows, _ in ORACLES.values()]
    filled = Window(Order, Tumbling(20 * ms.SECOND), aggregate.count(), fill=50 * ms.SECOND)
    mean = Window(Order, Hopping(30 * ms.SECOND, every=10 * ms.SECOND), aggregate.stddev(lambda order: order.price))
    tables = [WindowTable(Order, windows, both(), correct=ms.MINUTE) for windows, _ in ORACLES.values()]
    early = Every(7 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK)
    tables += [WindowTable(Order, windows, both(), correct=0 * ms.SECOND, early=early) for windows, _ in ORACLES.values()]
    topology, orders = shop(*kinds, filled, mean, *tables)
    outputs = [window.results for window in (*kinds, filled, mean)]
    watched = [*outputs, *(table.changes for table in tables)]
    watch(topology, watched)
    chance = random.Random(seed)
    for size in (30, 300):
        events = some_orders(chance, size, 300)
        whole, split = at_once(topology, orders, events), bit_by_bit(topology, orders, events, chance)
        for output in outputs:
            assert told(split, output) == told(whole, output), events
        for kind, (_, oracle) in zip(kinds, ORACLES.values(), strict=True):
            assert rows_of(values(split, kind.results)) == oracle(events), events
        for table, (_, oracle) in zip(tables, [*ORACLES.values()] * 2, strict=True):
            assert rows_of(table_of(split, table)) == oracle(events), events
        assert late_of(split, watched) == [0] * len(watched)
        for computation in (*kinds, filled, mean, *tables):
            assert split.keys(computation) == 0
            assert values(split, computation.late) == []


def anyhow(topology: ms.Topology, orders: Any, events: Sequence[Order], chance: random.Random) -> tuple[Driver, list[tuple[Order, int]]]:
    """In any order, with a low watermark that runs ahead of what is still to come; with each, the low watermark that it met."""
    driver, mark, met = Driver(topology, ship=False), -(10**6), []
    for order in chance.sample(events, len(events)):
        driver.send(orders, order)
        met.append((order, mark))
        if chance.random() < 0.2:
            mark = max(mark, order.at - chance.randrange(10, 150))
            driver.advance(low_watermark=at(mark))
        if chance.random() < 0.05:
            driver.crash()
    driver.finish()
    return driver, met


@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_right_in_the_end_however_late_its_records_come(seed: int) -> None:
    early = [None, Every(7 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK)]
    tables = [WindowTable(Order, windows, both(), correct=ms.DAY, early=e) for windows, _ in ORACLES.values() for e in early]
    topology, orders = shop(*tables)
    watch(topology, [table.changes for table in tables])
    chance = random.Random(seed)
    for size in (30, 250):
        events = some_orders(chance, size, 200)
        driver, _ = anyhow(topology, orders, events, chance)
        assert late_of(driver, tables) == [0] * len(tables)
        for place, table in enumerate(tables):
            oracle = list(ORACLES.values())[place // 2][1]
            assert rows_of(table_of(driver, table)) == oracle(events), events
            assert values(driver, table.late) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_record_counts_where_it_came_in_time_and_is_told_where_not(seed: int) -> None:
    tumbling, hopping = Window(Order, Tumbling(ms.MINUTE), both()), Window(Order, Hopping(40 * ms.SECOND, every=10 * ms.SECOND), both())
    table = WindowTable(Order, Hopping(40 * ms.SECOND, every=10 * ms.SECOND), both(), correct=30 * ms.SECOND)
    session = Window(Order, Session(12 * ms.SECOND), both())
    topology, orders = shop(tumbling, hopping, table, session)
    chance = random.Random(seed)
    lates = 0
    for count in (30, 300):
        driver, met = anyhow(topology, orders, some_orders(chance, count, 300), chance)
        for window, size, every, after in ((tumbling, 60, 60, 0), (hopping, 40, 10, 0), (table, 40, 10, 30)):
            counted: dict[tuple[str, int, int], list[Order]] = defaultdict(list)
            late = []
            for order, mark in met:
                spans = [(start, start + size) for start in range(-60, 300) if start % every == 0 and start <= order.at < start + size]
                open_ = [(start, end) for start, end in spans if end + after > mark]
                for start, end in open_:
                    counted[order.customer, start, end].append(order)
                if open_ != spans:
                    late.append(order)
            found = table_of(driver, window) if isinstance(window, WindowTable) else values(driver, window.results)
            assert rows_of(found) == summed(counted)
            assert sorted(map(repr, values(driver, window.late))) == sorted(map(repr, late))
            lates += len(late)
        assert sum(one.value.orders for one in values(driver, session.results)) + len(values(driver, session.late)) == count
    assert lates > 100


@pytest.mark.parametrize("seed", range(4))
def test_patience_loses_and_doubles_nothing(seed: int) -> None:
    windows = [Window(Order, windows, both(), patience=20 * ms.SECOND) for windows, _ in ORACLES.values()]
    topology, orders = shop(*windows)
    chance = random.Random(seed)
    impatient = 0
    for size in (30, 300):
        driver, now, mark = Driver(topology, now=at(0), ship=False), 0, -100
        events = some_orders(chance, size, 120)
        for order in events:
            now += chance.randrange(3)
            driver.advance(now=at(now))
            driver.send(orders, order)
            if chance.random() < 0.1:
                mark = max(mark, order.at - 30)
                driver.advance(low_watermark=at(mark))
            if chance.random() < 0.05:
                driver.crash()
        driver.advance(now=at(now + 20))
        for place, window in enumerate(windows):
            state = [driver.state(window, customer) for customer in CUSTOMERS]
            assert not any(kept.panes for kept in state)  # nothing has come for long enough: all is told
            impatient += sum(len(kept.told) for kept in state)
            found, late = rows_of(values(driver, window.results)), values(driver, window.late)
            if list(ORACLES)[place] != "hopping":
                assert sum(count for count, _ in found.values()) + len(late) == size
        driver.finish()
        for window in windows:
            assert driver.keys(window) == 0
            rows_of(values(driver, window.results))  # none has been told again
    assert impatient > 100


def test_days_in_any_order() -> None:
    zone = ZoneInfo("Europe/Berlin")
    days, per_hour = Window(Order, Days(zone), both()), WindowTable(Order, Days(zone), both(), correct=ms.HOUR)
    topology, orders = shop(days, per_hour)
    chance = random.Random(3)
    for _ in range(2):
        events = some_orders(chance, 200, 3 * 86_400)
        whole, split = at_once(topology, orders, events), bit_by_bit(topology, orders, events, chance)
        assert told(split, days.results) == told(whole, days.results)
        assert rows_of(table_of(split, per_hour)) == rows_of(values(split, days.results))
