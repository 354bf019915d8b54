"""Windows that are told once: what a user sees."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import millstream as ms
from millstream import aggregate
from millstream.testing import Driver
from millstream.window import Hopping, Session, Tumbling, Window, Windowed
from tests.operators.shop import Order, Sales, at, shop, values


def test_each_window_once_when_it_is_over() -> None:
    per_minute = Window(Order, Tumbling(ms.MINUTE), aggregate.count())
    topology, orders = shop(per_minute)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 5, 3), Order("ann", 7, 50), Order("ann", 1, 61), Order("bob", 1, 2))
    driver.advance(low_watermark=at(60) - ms.MICROSECOND)
    assert values(driver, per_minute.results) == []
    driver.advance(low_watermark=at(60))
    assert values(driver, per_minute.results) == [Windowed("ann", at(0), at(60), 2), Windowed("bob", at(0), at(60), 1)]
    assert {record.timestamp for record in driver.read(per_minute.results)} == {at(60) - ms.MICROSECOND}
    driver.finish()
    assert values(driver, per_minute.results)[2:] == [Windowed("ann", at(60), at(120), 1)]
    assert driver.keys(per_minute) == 0


def test_an_offset_moves_them() -> None:
    window = Window(Order, Tumbling(ms.HOUR, offset=20 * ms.MINUTE), aggregate.count())
    topology, orders = shop(window)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 0), Order("ann", 1, 1200), Order("ann", 1, 4799), Order("ann", 1, 4800))
    driver.finish()
    assert [(found.start, found.value) for found in values(driver, window.results)] == [(at(-2400), 1), (at(1200), 2), (at(4800), 1)]


def test_hopping_windows_overlap() -> None:
    window = Window(
        Order,
        Hopping(3 * ms.MINUTE, every=ms.MINUTE),
        aggregate.combine(Sales, aggregate.count(), aggregate.sum(lambda order: order.price)),
    )
    topology, orders = shop(window)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 0), Order("ann", 2, 65), Order("ann", 4, 600))
    driver.advance(low_watermark=at(60))
    assert values(driver, window.results) == [Windowed("ann", at(-120), at(60), Sales(1, 1))]
    driver.finish()
    found = [(int(one.start - at(0)) // 1_000_000, one.value.orders, one.value.revenue) for one in values(driver, window.results)]
    assert found == [(-120, 1, 1), (-60, 2, 3), (0, 2, 3), (60, 1, 2), (480, 1, 4), (540, 1, 4), (600, 1, 4)]
    assert driver.keys(window) == 0


def test_sessions_join_and_close_a_gap_after_the_last() -> None:
    window = Window(Order, Session(30 * ms.SECOND), aggregate.count())
    topology, orders = shop(window)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 0), Order("ann", 1, 58), Order("ann", 1, 100))
    driver.send(orders, Order("ann", 1, 29))  # joins the first two
    driver.send(orders, Order("ann", 1, 130))  # the gap itself: apart
    driver.finish()
    assert [(one.start, one.end, one.value) for one in values(driver, window.results)] == [
        (at(0), at(88), 3),
        (at(100), at(130), 1),
        (at(130), at(160), 1),
    ]


def test_what_comes_after_the_end_is_told_never_dropped() -> None:
    tumbling, hopping = (
        Window(Order, Tumbling(ms.MINUTE), aggregate.count()),
        Window(Order, Hopping(ms.HOUR, every=ms.MINUTE), aggregate.count()),
    )
    topology, orders = shop(tumbling, hopping)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 5, 3))
    driver.advance(low_watermark=at(70))
    driver.send(orders, Order("ann", 6, 65))  # late, but its window is open
    driver.send(orders, Order("ann", 9, 4))  # its window has closed
    driver.finish()
    assert values(driver, tumbling.late) == [Order("ann", 9, 4)]
    assert [one.value for one in values(driver, tumbling.results)] == [1, 1]
    assert values(driver, hopping.late) == [Order("ann", 9, 4)]  # missed by one of its sixty windows, counted in the others
    assert [one.value for one in values(driver, hopping.results)] == [1, *[3] * 59, 1]
    assert driver.tally(tumbling).dropped == driver.tally(hopping).dropped == 0


def test_a_late_record_that_touches_an_open_session_joins_it() -> None:
    window = Window(Order, Session(ms.MINUTE), aggregate.count())
    topology, orders = shop(window)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 100))
    driver.advance(low_watermark=at(150))
    driver.send(orders, Order("ann", 1, 45), Order("ann", 1, 20), Order("bob", 1, 45))
    driver.finish()
    assert [(one.start, one.value) for one in values(driver, window.results)] == [(at(45), 2)]
    assert sorted(order.at for order in values(driver, window.late)) == [20, 45]


def test_empty_windows_on_request() -> None:
    filled = Window(Order, Tumbling(ms.MINUTE), aggregate.count(), fill=3 * ms.MINUTE)
    topology, orders = shop(filled)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 0), Order("ann", 1, 130), Order("ann", 1, 900))
    driver.advance(low_watermark=at(60))
    driver.advance(low_watermark=at(3600))
    found = [(int(one.start - at(0)) // 60_000_000, one.value) for one in values(driver, filled.results)]
    assert found == [(0, 1), (1, 0), (2, 1), (3, 0), (4, 0), (5, 0), (15, 1), (16, 0), (17, 0), (18, 0)]
    assert driver.keys(filled) == 0


def test_a_silent_input_does_not_keep_a_patient_window_open() -> None:
    patient = Window(Order, Tumbling(ms.MINUTE), aggregate.count(), patience=5 * ms.MINUTE)
    topology, orders = shop(patient)
    driver = Driver(topology, now=at(0))
    driver.send(orders, Order("ann", 1, 0))
    driver.advance(now=at(200))
    driver.send(orders, Order("ann", 1, 70), Order("ann", 1, 2))
    driver.advance(now=at(499))
    assert values(driver, patient.results) == []  # something came at 200
    driver.advance(now=at(500))
    assert [(one.start, one.value) for one in values(driver, patient.results)] == [(at(0), 2), (at(60), 1)]
    driver.send(orders, Order("ann", 2, 1), Order("ann", 2, 130))  # not late by the low watermark, but its window has been told
    assert [order.at for order in values(driver, patient.late)] == [1]
    driver.advance(low_watermark=at(125))
    driver.finish()
    assert [(one.start, one.value) for one in values(driver, patient.results)][2:] == [(at(120), 1)]
    assert driver.keys(patient) == 0


def test_patience_is_for_each_window() -> None:
    patient = Window(Order, Tumbling(ms.MINUTE), aggregate.count(), patience=5 * ms.MINUTE)
    topology, orders = shop(patient)
    driver = Driver(topology, now=at(0))
    for minute in range(10):
        driver.advance(now=at(60 * minute))
        driver.send(orders, Order("ann", 1, 60 * minute))
    assert [one.start for one in values(driver, patient.results)] == [at(60 * minute) for minute in range(5)]


def test_windows_of_windows_fall_into_the_right_hour() -> None:
    per_minute = Window(Order, Tumbling(ms.MINUTE), aggregate.count())
    busiest = Window(Windowed[int], Tumbling(ms.HOUR), aggregate.max(lambda minute: minute.value, int))
    topology, orders = shop(per_minute)
    topology.compute("busiest", busiest).reads(per_minute.results)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 3599), Order("ann", 1, 3598), Order("ann", 1, 3600))
    driver.finish()
    assert [(one.start, one.value) for one in values(driver, busiest.results)] == [(at(0), 2), (at(3600), 1)]


def test_windows_of_ones_own() -> None:
    class UpToNoon:
        """Two that overlap: a record's own hour, and the day up to its hour."""

        merges = False

        def spans(self, at: ms.Timestamp, /) -> list[aggregate.Span]:
            hour, day = ms.floor(at, ms.HOUR), ms.floor(at, ms.DAY)
            return [aggregate.Span(hour, hour + ms.HOUR), aggregate.Span(day, day + ms.DAY)]

    window = Window(Order, UpToNoon(), aggregate.count())
    topology, orders = shop(window)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 1, 0), Order("ann", 1, 7200))
    driver.advance(low_watermark=at(3600))
    driver.send(orders, Order("ann", 1, 1))  # too late for its hour, in time for its day
    driver.finish()
    assert [(int(one.end - one.start) // 3_600_000_000, one.value) for one in values(driver, window.results)] == [(1, 1), (1, 1), (24, 3)]
    assert [order.at for order in values(driver, window.late)] == [1]


def test_windows_of_ones_own_that_say_nothing_leave_a_record_late() -> None:
    class Afternoons:
        merges = False

        def spans(self, moment: ms.Timestamp, /) -> list[aggregate.Span]:
            return [aggregate.Span(at(0), at(43_200))] if moment >= at(0) else []

    window = Window(Order, Afternoons(), aggregate.count())
    topology, orders = shop(window)
    driver = Driver(topology, ship=False)
    driver.send(orders, Order("ann", 1, 0), Order("ann", 1, -1))
    driver.finish()
    assert [order.at for order in values(driver, window.late)] == [-1]
    assert [one.value for one in values(driver, window.results)] == [1]


def test_an_error_sets_a_record_aside_and_leaves_the_window_as_it_was() -> None:
    window = Window(Order, Tumbling(ms.MINUTE), aggregate.sum(lambda order: 1 / order.price))
    topology = ms.Topology("shop")
    orders = topology.inject(
        "orders",
        ms.values([], Order),
        key=lambda order: order.customer,
        timestamp=lambda order: datetime.fromtimestamp(order.at, UTC),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("sums", window, errors=ms.Errors.DEAD_LETTER).reads(orders)
    driver = Driver(topology)
    driver.send(orders, Order("ann", 2, 1), Order("ann", 0, 2), Order("ann", 4, 3))
    driver.finish()
    assert [one.value for one in values(driver, window.results)] == [0.75]
    assert "ZeroDivisionError" in driver.dead_letters()[0].reason


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Window(Order, ms.MINUTE, aggregate.count()), "does not say which windows; give Tumbling"),  # type: ignore[arg-type]
        (lambda: Window(Order, Tumbling, aggregate.count()), "does not say which windows"),  # type: ignore[arg-type]
        (lambda: Window(Order, Tumbling(60.0), aggregate.count()), r"Tumbling\(size=60.0\): give a positive ms.Duration"),  # type: ignore[arg-type]
        (lambda: Window(Order, Tumbling(ms.MINUTE, offset=0.5), aggregate.count()), r"Tumbling\(offset=0.5\)"),  # type: ignore[arg-type]
        (lambda: Window(Order, Hopping(ms.MINUTE, every=7 * ms.SECOND), aggregate.count()), "no whole number of every"),
        (lambda: Window(Order, Hopping(ms.DAY, every=ms.SECOND), aggregate.count()), "in 86,400 windows"),
        (lambda: Window(Order, Session(0 * ms.SECOND), aggregate.count()), r"Session\(gap=0\)"),
        (lambda: Window(Order, Tumbling(ms.MINUTE), aggregate.count), "is a function that makes one: call it"),  # type: ignore[arg-type]
        (lambda: Window(3, Tumbling(ms.MINUTE), aggregate.count()), "is not a type"),  # type: ignore[arg-type]
        (
            lambda: Window(Order, Tumbling(ms.MINUTE), aggregate.mean(lambda o: o.price), fill=ms.HOUR),
            "no mean of nothing; give an aggregate",
        ),
        (lambda: Window(Order, Session(ms.MINUTE), aggregate.count(), fill=ms.HOUR), "only tumbling windows follow one another"),
        (lambda: Window(Order, Tumbling(ms.MINUTE), aggregate.count(), fill=ms.HOUR, patience=ms.HOUR), "give one"),
        (lambda: Window(Order, Tumbling(ms.MINUTE), aggregate.count(), patience=3.0), r"Window\(patience=3.0\)"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_right_is_refused_while_building(make: object, why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        make()  # type: ignore[operator]
