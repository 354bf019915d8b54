"""A window that cannot be told is an error of its own: one dead letter, and all others go on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream import aggregate
from millstream.testing import Driver
from millstream.window import Every, Hopping, Session, Tumbling, Window, WindowTable
from tests.operators.arrival import arrive, notice, play
from tests.operators.shop import Order, at, coming, some_orders, values

BAD = 13  # a sum that nobody believes


@dataclass(frozen=True)
class Sales:
    orders: int
    revenue: float

    def __post_init__(self) -> None:
        if self.revenue == BAD:
            raise ValueError("nobody sells so much")


def sales() -> aggregate.Aggregate[Order, Any, Sales]:
    return aggregate.combine(Sales, aggregate.count(), aggregate.sum(lambda order: order.price))


class Shop:
    def __init__(self, window: Any, errors: ms.Errors = ms.Errors.DEAD_LETTER) -> None:
        self.window, self.topology = window, ms.Topology("shop")
        self.orders = self.topology.inject(
            "orders",
            ms.values([], Order),
            key=lambda order: order.customer,
            timestamp=lambda order: at(order.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.topology.compute("it", window, errors=errors).reads(self.orders)
        self.driver = Driver(self.topology, now=at(0), ship=False)

    def send(self, *orders: tuple[float, int]) -> None:
        """Prices and times, all of one customer."""
        self.driver.send(self.orders, *(Order("ann", price, second) for price, second in orders))

    def reach(self, second: int) -> None:
        self.driver.advance(low_watermark=at(second))

    def told(self) -> list[tuple[int, int, float]]:
        """From when to when, and what was sold."""
        return [(seconds(one.start), seconds(one.end), one.value.revenue) for one in values(self.driver, self.window.results)]

    def letters(self) -> list[tuple[str, int]]:
        """Their ids, and where they stand in time."""
        found = self.driver.read(self.topology.dead_letters)
        for letter in found:
            assert letter.value.stream == "timers of it"
            assert letter.key == letter.value.key == "ann"
            assert "ValueError: nobody sells so much" in letter.value.reason
        return [(letter.value.id, int(letter.timestamp)) for letter in found]

    def is_empty(self) -> bool:
        self.driver.finish()
        return self.driver.keys(self.window) == 0 and self.driver.timers(self.window, "ann") == []


def seconds(moment: ms.Timestamp) -> int:
    return int(moment - at(0)) // 1_000_000


def letter_of(start: int, end: int) -> tuple[str, int]:
    """It names the window by its start and its end, and is dated as its result would have been."""
    return f"tell {ms.to_datetime(at(start)):%Y-%m-%dT%H:%M:%S}Z@{int(at(end))}", int(at(end)) - 1


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("fill", [None, 30 * ms.SECOND])
def test_a_tumbling_window_that_cannot_be_told(at_once: bool, fill: ms.Duration | None) -> None:
    shop = Shop(Window(Order, Tumbling(ms.MINUTE), sales(), fill=fill))
    for minute, price in enumerate((1, BAD, 3, BAD, 5)):
        shop.send((price, 60 * minute))
        if not at_once:
            shop.reach(60 * minute)
    shop.reach(300)
    assert shop.told() == [(0, 60, 1), (120, 180, 3), (240, 300, 5)]
    assert shop.letters() == [letter_of(60, 120), letter_of(180, 240)]
    shop.send((1, 70), (2, 310))  # what comes to a window that was forgotten is late, and others begin
    assert [order.at for order in values(shop.driver, shop.window.late)] == [70]
    assert shop.is_empty()
    assert shop.told()[3:] == [(300, 360, 2)]


def test_a_window_after_one_that_cannot_be_told_is_waited_for() -> None:
    shop = Shop(Window(Order, Tumbling(ms.MINUTE), sales()))
    shop.send((BAD, 0))
    shop.reach(60)
    shop.send((2, 70))
    shop.reach(120)
    assert shop.told() == [(60, 120, 2)]
    assert shop.letters() == [letter_of(0, 60)]
    assert shop.is_empty()


def test_sessions_that_cannot_be_told() -> None:
    shop = Shop(Window(Order, Session(10 * ms.SECOND), sales()))
    shop.send((6, 0), (7, 5), (1, 30), (BAD, 50), (2, 70))
    shop.reach(100)
    assert shop.told() == [(30, 40, 1), (70, 80, 2)]
    assert shop.letters() == [letter_of(0, 15), letter_of(50, 60)]
    assert shop.is_empty()


def test_of_hopping_windows_those_are_told_that_can_be() -> None:
    shop = Shop(Window(Order, Hopping(3 * ms.MINUTE, every=ms.MINUTE), sales()))
    shop.send((1, 0), (12, 60), (5, 120))  # 1, 13, 18, 17, 5
    shop.reach(110)
    shop.reach(240)
    assert shop.told() == [(-120, 60, 1), (0, 180, 18), (60, 240, 17)]
    assert shop.letters() == [letter_of(-60, 120)]
    assert shop.is_empty()
    assert shop.told()[3:] == [(120, 300, 5)]


def test_several_hopping_windows_of_one_pane() -> None:
    shop = Shop(Window(Order, Hopping(3 * ms.MINUTE, every=ms.MINUTE), sales()))
    shop.send((BAD, 0), (1, 60))  # 13, 14, 14, 1
    shop.send((BAD, 600))
    assert shop.is_empty()
    assert shop.told() == [(-60, 120, 14), (0, 180, 14), (60, 240, 1)]
    assert shop.letters() == [letter_of(-120, 60), letter_of(480, 660), letter_of(540, 720), letter_of(600, 780)]


@pytest.mark.parametrize(
    ("windows", "told"),
    [
        (Tumbling(ms.MINUTE), [(0, 60, 1), (120, 180, 3)]),
        (Session(20 * ms.SECOND), [(0, 20, 1), (130, 150, 3)]),
        (Hopping(2 * ms.MINUTE, every=ms.MINUTE), [(-60, 60, 1), (0, 120, 14), (60, 180, 16), (120, 240, 3)]),
    ],
)
def test_patience_with_one_that_cannot_be_told(windows: Any, told: list[tuple[int, int, float]]) -> None:
    shop = Shop(Window(Order, windows, sales(), patience=5 * ms.MINUTE))
    shop.send((1, 0), (BAD, 70), (3, 130))
    shop.driver.advance(now=at(299))
    assert shop.told() == []
    shop.driver.advance(now=at(300))
    assert shop.told() == told
    assert len(shop.letters()) == (not isinstance(windows, Hopping))
    shop.send((BAD, 75))  # it has had its letter
    assert [order.at for order in values(shop.driver, shop.window.late)] == [75]
    shop.driver.advance(now=at(900))
    assert len(shop.letters()) == (not isinstance(windows, Hopping))
    assert shop.is_empty()
    assert shop.told() == told


def test_a_sum_that_no_table_holds() -> None:
    window = Window(Order, Tumbling(ms.MINUTE), aggregate.sum(lambda order: int(order.price), int))
    shop = Shop(window)
    shop.send((2.0**62, 0), (2.0**62, 1), (5, 60), (2.0**62, 120))
    assert shop.is_empty()
    assert [one.value for one in values(shop.driver, window.results)] == [5, 2**62]
    (letter,) = shop.driver.dead_letters()
    assert f"{2**63} is an integer of more than 64 bits" in letter.reason


def test_without_dead_letters_the_run_fails_and_says_which_window() -> None:
    for window in (
        Window(Order, Tumbling(ms.MINUTE), sales()),
        WindowTable(Order, Tumbling(ms.MINUTE), sales(), correct=ms.MINUTE),
    ):
        shop = Shop(window, ms.Errors.FAIL)
        shop.send((BAD, 0))
        with pytest.raises(ms.RecordError, match=r"key 'ann', timer 'tell 2024-05-01T12:00:00Z'.*\n?.*nobody sells so much"):
            shop.reach(60)


@pytest.mark.parametrize("seed", range(4))
def test_all_that_can_be_told_is_told_however_it_comes(seed: int) -> None:
    """Every third sum or so is not believed."""
    windows = {
        "tumbling": Window(Order, Tumbling(10 * ms.SECOND), picky()),
        "hopping": Window(Order, Hopping(12 * ms.SECOND, every=4 * ms.SECOND), picky()),
        "session": Window(Order, Session(4 * ms.SECOND), picky()),
        "table": WindowTable(Order, Hopping(12 * ms.SECOND, every=4 * ms.SECOND), picky(), correct=5 * ms.SECOND),
    }
    topology = ms.Topology("shop")
    orders = topology.inject(
        "orders",
        ms.values([], Order),
        key=lambda order: order.customer,
        timestamp=lambda order: at(order.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    for name, window in windows.items():
        topology.compute(name, window, errors=ms.Errors.DEAD_LETTER).reads(orders)
    counts: dict[str, Any] = {}
    for name, window in windows.items():
        counts[name] = Window(Order, window.windows, aggregate.sum(lambda order: int(order.price), int))
        topology.compute(f"all {name}", counts[name]).reads(orders)
    notice(topology, *(window.changes if name == "table" else window.results for name, window in windows.items()))
    chance = random.Random(seed)
    driver = play(topology, arrive(coming(orders, some_orders(chance, 300, 60)), chance))
    for name, window in windows.items():
        told = driver.read(window.changes if name == "table" else window.results)
        found = [record.value.after if name == "table" else record.value for record in told]
        every = {(one.key, one.start, one.end, one.value) for one in values(driver, counts[name].results)}
        letters = [letter for letter in driver.dead_letters() if letter.computation == name]
        assert {(one.key, one.start, one.end, one.value) for one in found} == {one for one in every if one[3] % 3}
        assert len(found) + len(letters) == len(every)
        assert len(letters) > 20
        assert driver.keys(window) == 0


def picky() -> aggregate.Aggregate[Order, Any, int]:
    def believed(total: int, count: int) -> int:
        if total % 3 == 0:
            raise ValueError("nobody sells so much")
        return total

    return aggregate.combine(believed, aggregate.sum(lambda order: int(order.price), int), aggregate.count())


# Tables.


def changes(shop: Shop) -> list[tuple[int, int, Any, Any]]:
    """When, of which row, from what to what."""
    found = []
    for record in shop.driver.read(shop.window.changes):
        before, after = record.value.before, record.value.after
        row = before or after
        found.append((seconds(record.timestamp), seconds(row.start), before and before.value.revenue, after and after.value.revenue))
    return found


def test_a_row_that_cannot_be_told_leaves_the_others() -> None:
    shop = Shop(WindowTable(Order, Tumbling(ms.MINUTE), sales(), correct=10 * ms.MINUTE))
    shop.send((1, 0), (BAD, 60), (3, 120), (BAD, 180))
    shop.reach(300)
    assert changes(shop) == [(60, 0, None, 1), (180, 120, None, 3)]
    assert [id_ for id_, _ in shop.letters()] == [letter_of(60, 120)[0], letter_of(180, 240)[0]]
    shop.send((1, 61))  # puts it right
    assert changes(shop)[2:] == [(300, 60, None, 14)]
    shop.send((4, 310))
    assert shop.is_empty()
    assert changes(shop)[3:] == [(360, 300, None, 4)]
    assert len(shop.letters()) == 2


def test_a_row_that_was_told_stays_as_it_was() -> None:
    early = Every(10 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK)
    shop = Shop(WindowTable(Order, Tumbling(ms.MINUTE), sales(), correct=10 * ms.MINUTE, early=early))
    shop.send((6, 0), (1, 60))
    shop.reach(10)
    shop.send((7, 11))
    for second in range(12, 200, 3):
        shop.reach(second)
    assert changes(shop) == [(10, 0, None, 6), (60, 60, None, 1)]  # none is dated before its window
    assert len(shop.letters()) == 1
    shop.send((2, 12))
    assert changes(shop)[2:] == [(198, 0, 6, 15)]
    assert shop.is_empty()


def test_early_by_the_wall_clock() -> None:
    shop = Shop(WindowTable(Order, Session(20 * ms.SECOND), sales(), correct=10 * ms.MINUTE, early=Every(10 * ms.SECOND)))
    shop.send((BAD, 0), (1, 60), (BAD, 120))
    shop.driver.advance(now=at(10))
    assert changes(shop) == [(60, 60, None, 1)]
    assert len(shop.letters()) == 2
    shop.driver.advance(now=at(100))
    assert len(shop.letters()) == 2
    shop.send((1, 130))
    shop.driver.advance(now=at(110))
    assert changes(shop)[1:] == [(120, 120, None, 14)]
    shop.reach(60)
    assert len(shop.letters()) == 2  # nothing has come to it since
    assert shop.is_empty()


def test_a_late_record_that_makes_a_row_untold_is_set_aside_itself() -> None:
    shop = Shop(WindowTable(Order, Hopping(2 * ms.MINUTE, every=ms.MINUTE), sales(), correct=10 * ms.MINUTE))
    shop.send((1, 0))
    shop.reach(200)
    shop.send((12, 5), (2, 6))
    assert changes(shop) == [(60, -60, None, 1), (120, 0, None, 1), (200, -60, 1, 3), (200, 0, 1, 3)]
    (letter,) = shop.driver.dead_letters()
    assert letter.stream == "orders"
    assert shop.is_empty()
