"""What windows keep: as much as is open, nothing for a key with nothing open, and over a change of the code what was begun."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

import millstream as ms
from millstream import aggregate
from millstream.testing import Driver
from millstream.window import Hopping, Session, Tumbling, Window, WindowTable
from tests.operators.shop import Order, at, shop, values

SECONDS = 1500

BOUNDS: list[tuple[Any, int, int]] = [  # what is read, the panes that it may keep for a key, and the rows
    (Window(Order, Tumbling(20 * ms.SECOND), aggregate.count()), 2, 0),
    (Window(Order, Tumbling(20 * ms.SECOND), aggregate.count(), fill=40 * ms.SECOND), 2, 0),
    (Window(Order, Hopping(60 * ms.SECOND, every=10 * ms.SECOND), aggregate.stddev(lambda order: order.price)), 8, 0),
    (Window(Order, Session(5 * ms.SECOND), aggregate.count()), 4, 0),
    (WindowTable(Order, Tumbling(20 * ms.SECOND), aggregate.count(), correct=60 * ms.SECOND), 5, 5),
    (WindowTable(Order, Hopping(60 * ms.SECOND, every=10 * ms.SECOND), aggregate.count(), correct=60 * ms.SECOND), 14, 14),
    (WindowTable(Order, Session(5 * ms.SECOND), aggregate.count(), correct=30 * ms.SECOND), 10, 10),
]


@pytest.mark.parametrize("place", range(len(BOUNDS)))
def test_a_long_stream_keeps_no_more_than_what_is_open(place: int) -> None:
    computation, panes, rows = BOUNDS[place]
    topology, orders = shop(computation)
    driver, chance, most, sizes = Driver(topology, ship=False), random.Random(place), [0, 0], []
    for second in range(0, SECONDS, 3):
        customers = "a" if chance.random() < 0.8 else f"once{second}"
        with driver.together():
            driver.send(orders, Order(customers, chance.uniform(0, 100), second))
            driver.advance(low_watermark=at(second - 10))
        state = driver.state(computation, "a")
        most = [max(most[0], len(state.panes)), max(most[1], len(getattr(state, "rows", ())))]
        sizes.append(len(computation.encode_state(state)))
        assert driver.keys(computation) <= 80  # those who came once are gone
    assert most[0] <= panes
    assert most[1] <= rows
    assert max(sizes[len(sizes) // 2 :]) <= 1.3 * max(sizes[: len(sizes) // 2])  # it does not grow
    driver.finish()
    assert driver.keys(computation) == 0
    assert driver.timers(computation, "a") == []


def restarted(computation: Any, *arguments: Any, **options: Any) -> None:
    """The same computation as other code has it, over what was kept."""
    computation.__dict__.pop("_decode", None)
    computation.__init__(*arguments, **options)


@pytest.mark.parametrize("other", [Tumbling(20 * ms.SECOND), Hopping(ms.MINUTE, every=20 * ms.SECOND), Session(5 * ms.SECOND)])
def test_other_windows_leave_what_is_open_as_it_began(other: Any) -> None:
    for first in (Tumbling(ms.MINUTE), Hopping(3 * ms.MINUTE, every=ms.MINUTE), Session(ms.MINUTE)):
        window: Window[Order, int] = Window(Order, first, aggregate.count())
        table = WindowTable(Order, first, aggregate.count(), correct=ms.MINUTE)
        topology, orders = shop(window, table)
        driver = Driver(topology, ship=False)
        driver.send(orders, Order("ann", 1, 5))
        restarted(window, Order, other, aggregate.count())
        restarted(table, Order, other, aggregate.count(), correct=ms.MINUTE)
        driver.send(orders, Order("ann", 1, 125))
        driver.finish()
        sizes = {(one.end - one.start) // ms.SECOND for one in values(driver, window.results)}
        begun = 180 if isinstance(first, Hopping) else 60
        after = 5 if isinstance(other, Session) else 60 if isinstance(other, Hopping) else 20
        assert sizes == {begun, after}
        rows = [one.after for one in values(driver, table.changes)]
        assert {(one.end - one.start) // ms.SECOND for one in rows} == {begun, after}
        assert driver.keys(window) == driver.keys(table) == 0


def test_a_session_that_is_open_takes_nothing_more_when_windows_are_no_sessions_any_more() -> None:
    window: Window[Order, int] = Window(Order, Session(ms.MINUTE), aggregate.count())
    table = WindowTable(Order, Session(ms.MINUTE), aggregate.count(), correct=ms.MINUTE)
    topology, orders = shop(window, table)
    driver = Driver(topology, ship=False)
    driver.send(orders, Order("ann", 1, 5))
    restarted(window, Order, Tumbling(20 * ms.SECOND), aggregate.count())
    restarted(table, Order, Tumbling(20 * ms.SECOND), aggregate.count(), correct=ms.MINUTE)
    driver.send(orders, Order("ann", 1, 30))
    driver.finish()
    wanted = [(at(20), at(40), 1), (at(5), at(65), 1)]
    assert [(one.start, one.end, one.value) for one in values(driver, window.results)] == wanted
    assert [(one.after.start, one.after.end, one.after.value) for one in values(driver, table.changes)] == wanted


def test_another_aggregate_is_refused_at_the_first_key() -> None:
    window: Window[Order, Any] = Window(Order, Tumbling(ms.MINUTE), aggregate.count())
    topology, orders = shop(window)
    driver = Driver(topology, ship=False)
    driver.send(orders, Order("ann", 1, 5))
    restarted(window, Order, Tumbling(ms.MINUTE), aggregate.sum(lambda order: 1, int))
    with pytest.raises(ms.RecordError, match=r"key 'ann'.*kept by another aggregate; give the computation a new name"):
        driver.send(orders, Order("ann", 1, 6))
    restarted(window, Order, Tumbling(ms.MINUTE), aggregate.collect(Order))
    with pytest.raises(ms.RecordError, match="does not fit"):
        driver.send(orders, Order("ann", 1, 6))


def test_another_format_is_refused() -> None:
    window = Window(Order, Tumbling(ms.MINUTE), aggregate.count())
    state = window.initial_state()
    state.format = 2
    with pytest.raises(ValueError, match="kept in format 2, and this Millstream knows 1"):
        window.decode_state(msgspec.msgpack.encode(state))


class Wrong(aggregate.Aggregate[Order, int, int]):
    """Says that it keeps an int, and keeps text."""

    def zero(self) -> int:
        return 0

    def add(self, so_far: int, record: ms.Record[Order], /) -> int:
        return "text"  # type: ignore[return-value]

    def merge(self, one: int, other: int, /) -> int:
        return one

    def result(self, so_far: int, span: aggregate.Span, /) -> int:
        return so_far


def test_what_could_not_be_read_back_is_refused_at_once() -> None:
    topology, orders = shop(Window(Order, Tumbling(ms.MINUTE), Wrong()))
    with pytest.raises(ms.RecordError, match="its state cannot be kept"):
        Driver(topology, ship=False).send(orders, Order("ann", 1, 5))


class Unkept(Wrong):
    def zero(self) -> Any:
        return object()


def test_what_cannot_be_kept_at_all_is_refused_while_building() -> None:
    with pytest.raises(ms.TopologyError, match=r"what Unkept keeps, .*cannot be kept.*define dump and load"):
        Window(Order, Tumbling(ms.MINUTE), Unkept())
