"""What windows tell does not depend on the order of arrival, on where epochs are cut, or on crashes; and it is what plain Python says.

The oracles share nothing with the windows: they sort and group all records at once, or keep lists where records may be late.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import millstream as ms
from millstream import aggregate
from millstream.testing import Driver
from millstream.window import Days, Every, Hopping, Session, Tumbling, Window, WindowTable
from tests.operators.arrival import Arrival, arrive, at_once, notice, play, rows
from tests.operators.shop import CUSTOMERS, NOON, NOON_OF_DAY, Order, Sales, at, coming, shop, some_orders, told, values

Rows = dict[tuple[str, int, int], tuple[int, float]]  # key, start and end in seconds after noon: how many, and their sum
Places = dict[tuple[str, int, int], list[Order]]

BY_LOW_WATERMARK = Every(7 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK)
GAP = 4  # of sessions with late records, in seconds


def both() -> aggregate.Aggregate[Order, Any, Sales]:
    return aggregate.combine(Sales, aggregate.count(), aggregate.sum(lambda order: order.price))


def summed(found: Places) -> Rows:
    return {place: (len(orders), math.fsum(order.price for order in orders)) for place, orders in found.items()}


def spans(second: int, size: int, every: int) -> list[tuple[int, int]]:
    return [(start, start + size) for start in range(second - size + 1, second + 1) if start % every == 0]


def hopped(orders: Sequence[Order], size: int, every: int) -> Rows:
    found: Places = defaultdict(list)
    for order in orders:
        for start, end in spans(order.at, size, every):
            found[order.customer, start, end].append(order)
    return summed(found)


def sessions(orders: Sequence[Order], gap: int) -> Rows:
    found: Places = {}
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


def table_of(driver: Driver, table: WindowTable[Any, Any]) -> Rows:
    """The rows that its changes leave; both laws of tables hold."""
    return rows_of(list(rows(driver, table.changes).values()))


def seconds(moment: ms.Timestamp) -> int:
    return int(moment - NOON) // 1_000_000


@pytest.mark.parametrize("seed", range(4))
def test_windows_in_any_order(seed: int) -> None:
    kinds = [Window(Order, windows, both()) for windows, _ in ORACLES.values()]
    filled = Window(Order, Tumbling(20 * ms.SECOND), aggregate.count(), fill=50 * ms.SECOND)
    mean = Window(Order, Hopping(30 * ms.SECOND, every=10 * ms.SECOND), aggregate.stddev(lambda order: order.price))
    tables = [WindowTable(Order, windows, both(), correct=ms.MINUTE) for windows, _ in ORACLES.values()]
    tables += [WindowTable(Order, windows, both(), correct=0 * ms.SECOND, early=BY_LOW_WATERMARK) for windows, _ in ORACLES.values()]
    topology, orders = shop(*kinds, filled, mean, *tables)
    outputs = [window.results for window in (*kinds, filled, mean)]
    notice(topology, *outputs, *(table.changes for table in tables))
    chance = random.Random(seed)
    for size in (60, 300):
        events = some_orders(chance, size, 300)
        whole, split = play(topology, at_once(coming(orders, events))), play(topology, arrive(coming(orders, events), chance))
        for output in outputs:
            assert told(split, output) == told(whole, output), events
        for kind, (_, oracle) in zip(kinds, ORACLES.values(), strict=True):
            assert rows_of(values(split, kind.results)) == oracle(events), events
        for table, (_, oracle) in zip(tables, [*ORACLES.values()] * 2, strict=True):
            assert table_of(split, table) == oracle(events), events
        for computation in (*kinds, filled, mean, *tables):
            assert split.keys(computation) == 0
            assert values(split, computation.late) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_right_in_the_end_however_late_its_records_come(seed: int) -> None:
    early = [None, BY_LOW_WATERMARK]
    tables = [WindowTable(Order, windows, both(), correct=ms.DAY, early=e) for windows, _ in ORACLES.values() for e in early]
    topology, orders = shop(*tables)
    notice(topology, *(table.changes for table in tables))
    chance = random.Random(seed)
    for size in (60, 300):
        events = some_orders(chance, size, 200)
        driver = play(topology, arrive(coming(orders, events), chance, lateness=0.6))
        for place, table in enumerate(tables):
            oracle = list(ORACLES.values())[place // 2][1]
            assert table_of(driver, table) == oracle(events), events
            assert values(driver, table.late) == []


def met(arrival: Arrival) -> Iterator[tuple[list[Order], int, int]]:
    """The orders of each epoch by their times, the low watermark that they met, and the one after them."""
    low = -(10**6)
    for epoch in arrival.epochs:
        after = max(low, -(10**6) if epoch.low_watermark is None else epoch.low_watermark - NOON_OF_DAY)
        yield sorted((event.value for event in epoch.events), key=lambda order: order.at), low, after
        low = after


@pytest.mark.parametrize("seed", range(4))
def test_a_late_record_counts_wherever_it_can_and_is_told_if_it_missed_anything(seed: int) -> None:
    ways: list[tuple[Any, int, int, int]] = [
        (Window(Order, Tumbling(ms.MINUTE), both()), 60, 60, 0),
        (Window(Order, Hopping(40 * ms.SECOND, every=10 * ms.SECOND), both()), 40, 10, 0),
        (WindowTable(Order, Hopping(40 * ms.SECOND, every=10 * ms.SECOND), both(), correct=30 * ms.SECOND), 40, 10, 30),
        (WindowTable(Order, Tumbling(10 * ms.SECOND), both(), correct=0 * ms.SECOND, early=BY_LOW_WATERMARK), 10, 10, 0),
        (WindowTable(Order, Hopping(9 * ms.SECOND, every=3 * ms.SECOND), both(), correct=5 * ms.SECOND, early=Every(ms.DAY)), 9, 3, 5),
    ]
    topology, orders = shop(*(window for window, *_ in ways))
    notice(topology, *(window.changes if isinstance(window, WindowTable) else window.results for window, *_ in ways))
    chance = random.Random(seed)
    lates = 0
    for count in (60, 300):
        arrival = arrive(coming(orders, some_orders(chance, count, chance.choice((60, 300)))), chance, lateness=0.5)
        driver = play(topology, arrival)
        for window, size, every, after in ways:
            counted: Places = defaultdict(list)
            late = []
            for order, low in [(order, low) for epoch, low, _ in met(arrival) for order in epoch]:
                open_ = [(start, end) for start, end in spans(order.at, size, every) if end + after > low]
                for start, end in open_:
                    counted[order.customer, start, end].append(order)
                if open_ != spans(order.at, size, every):
                    late.append(order)
            found = table_of(driver, window) if isinstance(window, WindowTable) else rows_of(values(driver, window.results))
            assert found == summed(counted)
            assert sorted(map(repr, values(driver, window.late))) == sorted(map(repr, late))
            assert driver.keys(window) == 0
            lates += len(late)
    assert lates > 30


def sessions_by_hand(arrival: Arrival, correct: int | None) -> tuple[Rows, list[Order]]:
    """Epoch by epoch, with lists: what is told of sessions in the end, and what is late. Without `correct`, each is told once.

    A record goes to what it touches. It begins a session, or has one begin earlier, only if its own span is not over; but what
    is told once has no beginning that must not come again.
    """
    open_: dict[str, list[list[Order]]] = {customer: [] for customer in CUSTOMERS}
    done: Places = {}
    late: list[Order] = []
    for orders, low, after in met(arrival):
        for order in orders:
            near = [run for run in open_[order.customer] if run[0].at - GAP < order.at < run[-1].at + GAP]
            in_place = bool(near) and (correct is None or near[0][0].at <= order.at)
            if not in_place and order.at + GAP + (correct or 0) <= low:
                late.append(order)
                continue
            others = [run for run in open_[order.customer] if run not in near]
            joined = sorted([order, *(one for run in near for one in run)], key=lambda one: one.at)
            open_[order.customer] = sorted([*others, joined], key=lambda run: run[0].at)
        for customer, runs in open_.items():
            over = [run for run in runs if run[-1].at + GAP + (correct or 0) <= after]
            done |= {(customer, run[0].at, run[-1].at + GAP): run for run in over}
            open_[customer] = [run for run in runs if run not in over]
    done |= {(customer, run[0].at, run[-1].at + GAP): run for customer, runs in open_.items() for run in runs}
    return summed(done), late


@pytest.mark.parametrize("seed", range(8))
def test_sessions_with_late_records(seed: int) -> None:
    window, gap = Window(Order, Session(GAP * ms.SECOND), both()), GAP * ms.SECOND
    tables = {
        (correct, early): WindowTable(Order, Session(gap), both(), correct=correct * ms.SECOND, early=early)
        for correct in (0, 3, 7, 30)
        for early in (None, Every(3 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK), Every(ms.SECOND))
    }
    topology, orders = shop(window, *tables.values())
    notice(topology, window.results, *(table.changes for table in tables.values()))
    chance = random.Random(seed)
    for _ in range(2):
        arrival = arrive(coming(orders, some_orders(chance, 300, chance.choice((20, 60, 120)))), chance, lateness=0.5)
        driver = play(topology, arrival)
        told_once, late = sessions_by_hand(arrival, None)
        assert rows_of(values(driver, window.results)) == told_once
        assert sorted(map(repr, values(driver, window.late))) == sorted(map(repr, late))
        for (correct, _), table in tables.items():
            wanted, late = sessions_by_hand(arrival, correct)
            assert table_of(driver, table) == wanted, (correct, arrival)
            assert sorted(map(repr, values(driver, table.late))) == sorted(map(repr, late))
        assert [driver.keys(one) for one in (window, *tables.values())] == [0] * 13


@pytest.mark.parametrize("seed", range(4))
def test_a_few_records_one_by_one(seed: int) -> None:
    """What is late for a reader shows best where nothing older comes in the same epoch."""
    early = [None, Every(3 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK), Every(ms.SECOND)]
    tables = [WindowTable(Order, Session(GAP * ms.SECOND), both(), correct=ms.DAY, early=one) for one in early]
    topology, orders = shop(*tables)
    notice(topology, *(table.changes for table in tables))
    chance = random.Random(seed)
    for _ in range(25):
        events = some_orders(chance, 12, 16, CUSTOMERS[: chance.choice((1, 2))])
        driver = play(topology, arrive(coming(orders, events), chance, lateness=0.5))
        for table in tables:
            assert table_of(driver, table) == sessions(events, GAP), events


@pytest.mark.parametrize("seed", range(3))
def test_patience_loses_and_doubles_nothing(seed: int) -> None:
    windows = [Window(Order, windows, both(), patience=20 * ms.SECOND) for windows, _ in ORACLES.values()]
    topology, orders = shop(*windows)
    chance = random.Random(seed)
    impatient = 0
    for size in (60, 300):
        driver, now, mark = Driver(topology, now=at(0), ship=False), 0, -100
        left = some_orders(chance, size, 120)
        while left:
            now += chance.randrange(9)
            driver.advance(now=at(now))
            with driver.together():
                driver.send(orders, *(some := [left.pop() for _ in range(min(len(left), chance.choice((1, 3, size // 9))))]))
                if chance.random() < 0.2:
                    mark = max(mark, some[0].at - 30)
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


@pytest.mark.parametrize("seed", range(2))
def test_days_in_any_order(seed: int) -> None:
    zone = ZoneInfo("Europe/Berlin")
    days, table = Window(Order, Days(zone), both()), WindowTable(Order, Days(zone), both(), correct=ms.HOUR)
    topology, orders = shop(days, table)
    notice(topology, days.results, table.changes)
    chance = random.Random(seed)
    for _ in range(2):
        events = some_orders(chance, 300, 3 * 86_400)
        counted: Places = defaultdict(list)
        for order in events:
            day = ms.to_datetime(at(order.at)).astimezone(zone).date()
            start = seconds(ms.to_timestamp(ms.to_datetime(at(order.at)).astimezone(zone).replace(hour=0, minute=0, second=0)))
            assert ms.to_datetime(at(start)).astimezone(zone).date() == day
            counted[order.customer, start, start + 86_400].append(order)
        driver = play(topology, arrive(coming(orders, events), chance))
        assert rows_of(values(driver, days.results)) == table_of(driver, table) == summed(counted)
