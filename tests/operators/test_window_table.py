"""Windows as a table: what a user sees."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream import aggregate
from millstream.testing import Driver
from millstream.window import Every, Hopping, Session, Tumbling, Windowed, WindowTable
from tests.operators.shop import Order, at, shop, values

EARLY = Every(10 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK)


def steps(driver: Driver, table: WindowTable[Any, Any]) -> list[tuple[int, Any, Any]]:
    """When a row changed, in seconds, and its value before and after."""
    found = []
    for record in driver.read(table.changes):
        before, after = record.value.before, record.value.after
        found.append((int(record.timestamp - at(0)) // 1_000_000, before and before.value, after and after.value))
    return found


def test_a_row_is_told_at_its_end_and_corrected_for_a_while() -> None:
    table = WindowTable(Order, Tumbling(ms.MINUTE), aggregate.count(), correct=ms.HOUR)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 1), Order("ann", 1, 2))
    driver.advance(low_watermark=at(59))
    assert steps(driver, table) == []
    driver.advance(low_watermark=at(100))
    driver.send(orders, Order("ann", 1, 3))
    driver.advance(low_watermark=at(200))
    driver.send(orders, Order("ann", 1, 4), Order("ann", 1, 5))
    assert steps(driver, table) == [(60, None, 2), (100, 2, 3), (200, 3, 4), (200, 4, 5)]
    assert {record.key for record in driver.read(table.changes)} == {ms.key("ann", int(at(0)))}
    assert values(driver, table.changes)[0] == ms.Change(None, Windowed("ann", at(0), at(60), 2))
    driver.advance(low_watermark=at(60) + ms.HOUR - ms.MICROSECOND)
    driver.send(orders, Order("ann", 1, 6))
    assert len(steps(driver, table)) == 5
    driver.advance(low_watermark=at(60) + ms.HOUR)
    assert driver.keys(table) == 0
    driver.send(orders, Order("ann", 1, 7))
    assert values(driver, table.late) == [Order("ann", 1, 7)]
    assert len(steps(driver, table)) == 5


def test_a_late_record_may_be_the_first_of_its_row() -> None:
    table = WindowTable(Order, Tumbling(ms.MINUTE), aggregate.count(), correct=ms.HOUR)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 500))
    driver.advance(low_watermark=at(400))
    driver.send(orders, Order("ann", 1, 3))
    assert steps(driver, table) == [(400, None, 1)]
    driver.finish()
    assert driver.keys(table) == 0


def test_early_by_the_low_watermark_and_only_what_changed() -> None:
    table = WindowTable(Order, Tumbling(ms.MINUTE), aggregate.count(), correct=ms.HOUR, early=EARLY)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 1))
    for second in (10, 20, 30):
        driver.advance(low_watermark=at(second))
    driver.send(orders, Order("ann", 1, 35))
    driver.advance(low_watermark=at(40))
    driver.send(orders, Order("ann", 1, 45))
    driver.advance(low_watermark=at(60))
    driver.send(orders, Order("ann", 1, 2))
    assert steps(driver, table) == [(10, None, 1), (40, 1, 2), (60, 2, 3), (60, 3, 4)]


def test_early_by_the_wall_clock() -> None:
    table = WindowTable(Order, Tumbling(ms.MINUTE), aggregate.count(), correct=ms.HOUR, early=Every(10 * ms.SECOND))
    topology, orders = shop(table)
    driver = Driver(topology, now=at(1000))
    driver.send(orders, Order("ann", 1, 1), Order("ann", 1, 70))
    driver.advance(now=at(1009))
    assert steps(driver, table) == []
    driver.advance(now=at(1010))
    assert steps(driver, table) == [(0, None, 1), (60, None, 1)]
    driver.advance(now=at(1030))
    assert len(steps(driver, table)) == 2
    driver.send(orders, Order("ann", 1, 71))
    driver.advance(now=at(1040), low_watermark=at(65))
    assert steps(driver, table)[2:] == [(65, 1, 2)]
    driver.finish()
    assert driver.keys(table) == 0


def test_an_early_value_that_stays_the_same_is_told_once() -> None:
    table = WindowTable(Order, Tumbling(ms.MINUTE), aggregate.max(lambda order: order.price), correct=ms.HOUR, early=EARLY)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 9, 1))
    driver.advance(low_watermark=at(10))
    driver.send(orders, Order("ann", 3, 11))
    driver.advance(low_watermark=at(20))
    driver.finish()
    assert steps(driver, table) == [(10, None, 9.0)]


def test_a_session_that_joins_two_keeps_one_row_and_deletes_the_other() -> None:
    table = WindowTable(Order, Session(30 * ms.SECOND), aggregate.mean(lambda order: order.price), correct=ms.HOUR)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 4, 0), Order("ann", 8, 40))
    driver.advance(low_watermark=at(100))
    first, second = Windowed("ann", at(0), at(30), 4.0), Windowed("ann", at(40), at(70), 8.0)
    assert values(driver, table.changes) == [ms.Change(None, first), ms.Change(None, second)]
    driver.send(orders, Order("ann", 6, 20))
    assert values(driver, table.changes)[2:] == [ms.Change(second, None), ms.Change(first, Windowed("ann", at(0), at(70), 6.0))]
    assert {record.timestamp for record in driver.read(table.changes)[2:]} == {at(100)}


def test_a_session_that_begins_earlier_moves_to_another_row() -> None:
    table = WindowTable(Order, Session(30 * ms.SECOND), aggregate.count(), correct=ms.HOUR)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 40))
    driver.advance(low_watermark=at(100))
    driver.send(orders, Order("ann", 1, 20))
    assert values(driver, table.changes) == [
        ms.Change(None, Windowed("ann", at(40), at(70), 1)),
        ms.Change(Windowed("ann", at(40), at(70), 1), None),
        ms.Change(None, Windowed("ann", at(20), at(70), 2)),
    ]


def test_a_closed_session_that_opens_again_is_corrected_at_once() -> None:
    table = WindowTable(Order, Session(30 * ms.SECOND), aggregate.count(), correct=ms.HOUR)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 0))
    driver.advance(low_watermark=at(40))
    driver.send(orders, Order("ann", 1, 25))  # late; it ends at 55, which is still to come
    assert steps(driver, table) == [(30, None, 1), (40, 1, 2)]
    driver.send(orders, Order("ann", 1, 50))
    assert steps(driver, table)[2:] == []  # open again: told at its end
    driver.advance(low_watermark=at(80))
    assert steps(driver, table)[2:] == [(80, 2, 3)]
    driver.finish()
    assert driver.keys(table) == 0


def test_a_late_record_corrects_every_hopping_window_that_it_is_in() -> None:
    table = WindowTable(Order, Hopping(3 * ms.MINUTE, every=ms.MINUTE), aggregate.count(), correct=ms.MINUTE)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 0))
    driver.advance(low_watermark=at(130))
    driver.send(orders, Order("ann", 1, 1))  # one window is past correction, one is corrected, one is open
    assert steps(driver, table) == [(60, None, 1), (120, None, 1), (130, 1, 2)]
    assert values(driver, table.late) == [Order("ann", 1, 1)]
    driver.finish()
    assert steps(driver, table)[3:] == [(180, None, 2)]
    assert driver.keys(table) == 0


class Names(aggregate.Aggregate[Order, list[str], list[str]]):
    """Returns the very list that it goes on to change."""

    def zero(self) -> list[str]:
        return []

    def add(self, so_far: list[str], record: ms.Record[Order], /) -> list[str]:
        so_far.append(f"{record.value.at}")
        return so_far

    def merge(self, one: list[str], other: list[str], /) -> list[str]:
        return one + other

    def result(self, so_far: list[str], span: aggregate.Span, /) -> list[str]:
        return so_far


def test_what_was_told_is_not_changed_by_what_comes() -> None:
    table = WindowTable(Order, Tumbling(ms.MINUTE), Names(), correct=ms.HOUR)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 100))
    driver.advance(low_watermark=at(100))
    driver.send(orders, Order("ann", 1, 1), Order("ann", 1, 2))
    assert steps(driver, table) == [(100, None, ["1"]), (100, ["1"], ["1", "2"])]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"correct": 3.0}, r"WindowTable\(correct=3.0\): give a ms.Duration"),
        ({"correct": ms.HOUR, "early": ms.SECOND}, r"WindowTable\(early=1000000\): give Every"),
    ],
)
def test_what_cannot_be_right_is_refused_while_building(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        WindowTable(Order, Tumbling(ms.MINUTE), aggregate.count(), **options)
    with pytest.raises(ms.TopologyError, match=r"Every\(span=0\)"):
        Every(0 * ms.SECOND)
    with pytest.raises(ms.TopologyError, match=r"Every\(clock='wall'\): give ms.Clock"):
        Every(ms.SECOND, clock="wall")  # type: ignore[arg-type]
