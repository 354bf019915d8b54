"""Windows as a table: what a user sees."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream import aggregate
from millstream.testing import Driver
from millstream.window import Every, Hopping, Session, Tumbling, Windowed, WindowTable
from tests.invariants import changes_join_up, changes_never_go_back
from tests.operators.arrival import nothing_is_late, notice
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


def test_a_session_does_not_begin_again_where_one_was_forgotten() -> None:
    table = WindowTable(Order, Session(4 * ms.SECOND), aggregate.count(), correct=7 * ms.SECOND)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 9), Order("ann", 1, 10))
    driver.advance(low_watermark=at(21))  # the session of 9 to 14 is forgotten
    driver.send(orders, Order("ann", 1, 11))  # its own span can still be corrected
    driver.send(orders, Order("ann", 1, 9))  # would begin it earlier, where a row stands that nobody knows any more
    driver.send(orders, Order("ann", 1, 10), Order("ann", 1, 12))  # the first is too late for the same reason, the second inside
    driver.finish()
    changes_join_up(driver.read(table.changes))
    assert [(one.after.start, one.after.end, one.after.value) for one in values(driver, table.changes)] == [
        (at(9), at(14), 2),
        (at(11), at(15), 1),
        (at(11), at(16), 2),
    ]
    assert [order.at for order in values(driver, table.late)] == [9, 10]
    assert driver.keys(table) == 0


def test_a_record_inside_a_session_that_is_kept_counts_however_late_it_is() -> None:
    table = WindowTable(Order, Session(30 * ms.SECOND), aggregate.count(), correct=0 * ms.SECOND)
    topology, orders = shop(table)
    driver = Driver(topology)
    driver.send(orders, *(Order("ann", 1, second) for second in range(0, 200, 20)))
    driver.advance(low_watermark=at(180))
    driver.send(orders, Order("ann", 1, 5), Order("ann", 1, -5))
    driver.finish()
    assert steps(driver, table) == [(210, None, 11)]
    assert [order.at for order in values(driver, table.late)] == [-5]


def test_what_a_record_changes_is_not_dated_before_it() -> None:
    """Those who read the table may learn in the same epoch that all older ones have come."""
    table = WindowTable(Order, Session(4 * ms.SECOND), aggregate.count(), correct=ms.MINUTE, early=Every(ms.SECOND))
    topology, orders = shop(table)
    notice(topology, table.changes)
    driver = Driver(topology, now=at(0), ship=False)
    driver.send(orders, Order("ann", 1, 4), Order("ann", 1, 10))
    driver.advance(now=at(1), low_watermark=at(4))
    assert steps(driver, table) == [(4, None, 1), (10, None, 1)]
    with driver.together():
        driver.send(orders, Order("ann", 1, 7))
        driver.advance(low_watermark=at(15))
    driver.finish()
    assert steps(driver, table)[2:] == [(10, 1, None), (7, 1, 3)]
    nothing_is_late(topology, driver)
    changes_never_go_back(driver.read(table.changes))


def test_an_early_value_is_not_dated_before_a_change_that_was_ahead_of_the_low_watermark() -> None:
    early = Every(500 * ms.MILLISECOND, clock=ms.Clock.LOW_WATERMARK)
    table = WindowTable(Order, Session(4 * ms.SECOND), aggregate.count(), correct=ms.MINUTE, early=early)
    topology, orders = shop(table)
    driver = Driver(topology, ship=False)
    driver.send(orders, Order("ann", 1, 4), Order("ann", 1, 10))
    driver.advance(low_watermark=at(5))
    driver.send(orders, Order("ann", 1, 7))  # joins the two, and is told at once, with its time
    driver.send(orders, Order("ann", 1, 6))
    driver.advance(low_watermark=at(6.5))
    assert [(record.timestamp - at(0)) / ms.SECOND for record in driver.read(table.changes)] == [4.5, 10, 10, 7, 7]
    changes_never_go_back(driver.read(table.changes))


def test_many_hops_cost_as_much_each_as_few() -> None:
    """In steps of Python, not in seconds."""

    def work(hops: int) -> float:
        table = WindowTable(Order, Hopping(hops * ms.SECOND, every=ms.SECOND), aggregate.count(), correct=ms.MINUTE)
        topology, orders = shop(table)
        driver, calls = Driver(topology, ship=False), 0

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            driver.send(orders, Order("ann", 1, 0), Order("ann", 1, 5))
        finally:
            sys.setprofile(None)
        assert len(driver.state(table, "ann").rows) == hops + 5
        return calls / hops

    assert work(800) < 2 * work(100)


def test_windows_of_ones_own_that_say_nothing_leave_a_record_late() -> None:
    table = WindowTable(Order, Mornings(), aggregate.count(), correct=ms.MINUTE)
    topology, orders = shop(table)
    driver = Driver(topology, ship=False)
    driver.send(orders, Order("ann", 1, 0), Order("ann", 1, -1))
    driver.finish()
    assert [order.at for order in values(driver, table.late)] == [0]
    assert [one.after.value for one in values(driver, table.changes)] == [1]


class Mornings:
    """Up to noon, and nothing after it."""

    merges = False

    def spans(self, moment: ms.Timestamp, /) -> list[aggregate.Span]:
        return [aggregate.Span(at(-43_200), at(0))] if moment < at(0) else []


class HoursAndDays:
    merges = False

    def spans(self, moment: ms.Timestamp, /) -> list[aggregate.Span]:
        starts = [(ms.floor(moment, size), size) for size in (ms.HOUR, ms.DAY)]
        return [aggregate.Span(start, start + size) for start, size in starts]


def test_two_rows_that_begin_at_one_time_are_refused() -> None:
    table = WindowTable(Order, HoursAndDays(), aggregate.count(), correct=ms.MINUTE)
    topology, orders = shop(table)
    driver = Driver(topology, ship=False)
    driver.send(orders, Order("ann", 1, 5000))
    with pytest.raises(ms.RecordError, match=r"two windows begin at 2024-05-01T00:00:00Z.*let them begin at different times"):
        driver.send(orders, Order("ann", 1, -43_200))


@dataclass(frozen=True)
class Best:
    price: float
    orders: int


class Untyped(aggregate.Aggregate):  # type: ignore[type-arg]
    """Nobody says what it returns, so what was told comes back as plain types."""

    def zero(self) -> Any:
        return [0.0, 0]

    def add(self, so_far: Any, record: ms.Record[Any], /) -> Any:
        return [max(so_far[0], record.value.price), 1]

    def merge(self, one: Any, other: Any, /) -> Any:
        return [max(one[0], other[0]), 1]

    def result(self, so_far: Any, span: aggregate.Span, /) -> Any:
        return Best(*so_far)


def test_a_value_of_a_type_that_nobody_says_is_told_once_if_it_stays() -> None:
    table = WindowTable(Order, Tumbling(ms.MINUTE), Untyped(), correct=ms.HOUR, early=EARLY)
    topology, orders = shop(table)
    driver = Driver(topology, ship=False)
    driver.send(orders, Order("ann", 9, 1))
    driver.advance(low_watermark=at(10))
    driver.send(orders, Order("ann", 3, 11))
    driver.advance(low_watermark=at(20))
    driver.send(orders, Order("ann", 11, 21))
    driver.finish()
    assert [before and before["price"] for _, before, _ in steps(driver, table)] == [None, 9.0]


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
