"""The interval join: every pair once, misses when they are certain, what is late set aside."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.join import Join, Misses, Pair
from millstream.testing import Driver
from tests.operators.arrival import Event, arrive, at_once, notice, play, records, second

SECOND = 1_000_000
KEYS = [f"k{number}" for number in range(40)]


@dataclass(frozen=True)
class Order:
    id: str
    at: int
    number: int = 0


@dataclass(frozen=True)
class Payment:
    order: str
    at: int
    number: int = 0


class Shop:
    """Two streams and a join of them, in seconds."""

    def __init__(self, *, before: int, after: int, misses: Misses = Misses.BOTH) -> None:
        self.before, self.after = before, after
        self.topology = ms.Topology("shop")
        self.orders = self.topology.inject(
            "orders",
            ms.values([], Order),
            key=lambda order: order.id,
            timestamp=lambda order: second(order.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.payments = self.topology.inject(
            "payments",
            ms.values([], Payment),
            key=lambda payment: payment.order,
            timestamp=lambda payment: second(payment.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.join = Join(Order, Payment, before=before * ms.SECOND, after=after * ms.SECOND, misses=misses)
        self.topology.compute("paid", self.join).reads(*self.join.of(self.orders, self.payments))

    def driver(self) -> Driver:
        return Driver(self.topology, ship=False)

    def events(self, chance: random.Random) -> list[Event]:
        found: list[Event] = []
        span = chance.choice((15, 40))
        for number in range(300):
            key, at = chance.choice(KEYS), chance.randrange(span)
            if chance.random() < 0.5:
                found.append(Event(self.orders, Order(key, at, number), at))
            else:
                found.append(Event(self.payments, Payment(key, at, number), at))
        return found


def by_hand(shop: Shop, events: list[Event]) -> dict[str, list[Any]]:
    """What a loop over all left and all right records finds."""
    lefts = [event.value for event in events if isinstance(event.value, Order)]
    rights = [event.value for event in events if isinstance(event.value, Payment)]
    pairs = [
        (left.id, max(left.at, right.at) * SECOND, Pair(left, right))
        for left in lefts
        for right in rights
        if left.id == right.order and -shop.before <= right.at - left.at <= shop.after
    ]
    paired = {pair.left for _, _, pair in pairs} | {pair.right for _, _, pair in pairs}
    lone_lefts = [(one.id, one.at * SECOND + max(0, shop.after * SECOND + 1), one) for one in lefts if one not in paired]
    lone_rights = [(one.order, one.at * SECOND + max(0, shop.before * SECOND + 1), one) for one in rights if one not in paired]
    return {"pairs": sorted(pairs, key=repr), "left": sorted(lone_lefts, key=repr), "right": sorted(lone_rights, key=repr)}


def told(driver: Driver, join: Join[Order, Payment]) -> dict[str, list[Any]]:
    return {
        "pairs": records(driver, join.pairs),
        "left": records(driver, join.unmatched_left),
        "right": records(driver, join.unmatched_right),
    }


def test_a_pair_comes_whichever_side_is_first_and_carries_the_later_time() -> None:
    shop = Shop(before=0, after=10)
    driver = shop.driver()
    driver.send(shop.payments, Payment("x", 15))
    driver.send(shop.orders, Order("x", 10), Order("y", 10))
    driver.send(shop.payments, Payment("y", 20))
    assert records(driver, shop.join.pairs) == [
        ("x", 15 * SECOND, Pair(Order("x", 10), Payment("x", 15))),
        ("y", 20 * SECOND, Pair(Order("y", 10), Payment("y", 20))),
    ]


def test_both_ends_of_the_interval_belong_to_it() -> None:
    shop = Shop(before=5, after=10)
    driver = shop.driver()
    driver.send(shop.orders, Order("x", 100))
    driver.send(shop.payments, *(Payment("x", at) for at in (94, 95, 100, 110, 111)))
    assert sorted(pair.right.at for _, _, pair in records(driver, shop.join.pairs)) == [95, 100, 110]


def test_a_miss_is_told_when_no_partner_can_come() -> None:
    shop = Shop(before=3, after=10)
    driver = shop.driver()
    driver.send(shop.orders, Order("x", 10))
    driver.send(shop.payments, Payment("x", 21))
    driver.advance(low_watermark=second(20))  # a payment at 20 itself may still come
    assert told(driver, shop.join)["left"] == []
    driver.advance(low_watermark=second(20) + ms.MICROSECOND)
    assert told(driver, shop.join)["left"] == [("x", 20 * SECOND + 1, Order("x", 10))]
    driver.advance(low_watermark=second(24))
    assert told(driver, shop.join)["right"] == []
    driver.advance(low_watermark=second(25))
    assert told(driver, shop.join)["right"] == [("x", 24 * SECOND + 1, Payment("x", 21))]


@pytest.mark.parametrize(
    ("misses", "sides"), [(Misses.NONE, []), (Misses.LEFT, ["left"]), (Misses.RIGHT, ["right"]), (Misses.BOTH, ["left", "right"])]
)
def test_misses_are_told_of_the_sides_that_are_asked_for(misses: Misses, sides: list[str]) -> None:
    shop = Shop(before=0, after=1, misses=misses)
    driver = shop.driver()
    driver.send(shop.orders, Order("x", 10))
    driver.send(shop.payments, Payment("x", 5))
    driver.finish()
    assert [side for side in ("left", "right") if told(driver, shop.join)[side]] == sides


def test_what_is_late_is_set_aside_and_never_joined() -> None:
    shop = Shop(before=5, after=5)
    driver = shop.driver()
    driver.send(shop.orders, Order("x", 10))
    driver.advance(low_watermark=second(8))
    driver.send(shop.payments, Payment("x", 7))
    driver.send(shop.orders, Order("x", 6))
    driver.send(shop.payments, Payment("x", 8))  # at the low watermark itself: not late
    assert [record.value for record in driver.read(shop.join.late_right)] == [Payment("x", 7)]
    assert [record.value for record in driver.read(shop.join.late_left)] == [Order("x", 6)]
    assert [pair.right.at for _, _, pair in records(driver, shop.join.pairs)] == [8]


def test_a_side_of_one_stream_is_told_apart_from_the_other() -> None:
    topology = ms.Topology("self")
    orders = topology.inject(
        "orders",
        ms.values([], Order),
        key=lambda order: order.id,
        timestamp=lambda order: second(order.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    again = Join(Order, Order, before=-ms.SECOND, after=10 * ms.SECOND)
    topology.compute("again", again).reads(*again.of(orders, orders))
    driver = Driver(topology, ship=False)
    driver.send(orders, Order("x", 1), Order("x", 5), Order("x", 12))
    assert [(pair.left.at, pair.right.at) for _, _, pair in records(driver, again.pairs)] == [(5, 12), (1, 5)]


SHAPES = [(0, 0), (0, 10), (5, 3), (10, 0), (-2, 8), (8, -2), (-4, 4), (4, -4)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("before", "after"), SHAPES)
def test_the_same_is_told_however_it_comes(before: int, after: int, seed: int) -> None:
    shop = Shop(before=before, after=after)
    join = shop.join
    notice(shop.topology, join.pairs, join.unmatched_left, join.unmatched_right)
    chance = random.Random(f"{before} {after} {seed}")
    events = shop.events(chance)
    wanted = by_hand(shop, events)
    assert told(play(shop.topology, at_once(events)), join) == wanted
    driver = play(shop.topology, arrive(events, chance))
    assert told(driver, join) == wanted
    assert driver.keys(join) == 0
    arrival = arrive(events, chance, lateness=0.3)
    driver = play(shop.topology, arrival)
    assert told(driver, join) == by_hand(shop, list(arrival.on_time))
    late = [record.value for record in (*driver.read(join.late_left), *driver.read(join.late_right))]
    assert sorted(late, key=repr) == sorted((event.value for event in arrival.late), key=repr)
    assert driver.keys(join) == 0


def test_what_is_kept_is_bounded_by_the_interval() -> None:
    shop = Shop(before=5, after=10)
    driver = shop.driver()
    most = 0
    for at in range(500):
        driver.send(shop.orders, Order("x", at))
        driver.send(shop.payments, Payment("x", at))
        driver.advance(low_watermark=second(at))
        kept = driver.state(shop.join, "x")
        most = max(most, len(kept.left), len(kept.right))
    assert most == 11
    driver.finish()
    assert driver.keys(shop.join) == 0


def test_a_key_takes_no_row_when_nothing_of_it_can_find_a_partner() -> None:
    shop = Shop(before=0, after=1, misses=Misses.NONE)
    driver = shop.driver()
    most = 0
    for at in range(1_000):
        driver.send(shop.orders, Order(f"{at}", at))
        driver.advance(low_watermark=second(at))
        most = max(most, driver.keys(shop.join))
    assert most == 2


def given(**changed: Any) -> Join[Any, Any]:
    return Join(**{"left": Order, "right": Payment, "before": ms.SECOND, "after": ms.SECOND, **changed})


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"before": 0.5}, r"Join\(before=0.5\): give a ms.Duration, such as 5 \* ms.SECOND"),
        ({"after": None}, r"Join\(after=None\): give a ms.Duration"),
        ({"before": -2 * ms.SECOND}, r"no time lies between; both count away from the left record"),
        ({"misses": "left"}, r"Join\(misses='left'\): give Misses.NONE, Misses.LEFT, Misses.RIGHT or Misses.BOTH"),
        ({"left": "Order"}, r"Join: 'Order' is not a type; give the type of its values"),
    ],
)
def test_what_cannot_be_meant_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        given(**changed)
