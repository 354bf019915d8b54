"""Sketches: nearly right, in a bounded room, and aggregates like any other."""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream import aggregate, sketch
from millstream.aggregate.live import alive
from millstream.testing import Driver
from millstream.window import Hopping, Session, Tumbling, Window, WindowTable
from tests.operators.arrival import arrive, at_once, play
from tests.operators.shop import Order, coming, shop, some_orders, told, values
from tests.operators.test_aggregates import SPAN, kept_again


@dataclass(frozen=True)
class Traffic:
    requests: int
    users: int
    slow: float
    favourites: list[tuple[str, int]]


def records(*words: str) -> list[ms.Record[str]]:
    return [ms.Record("k", word, ms.Timestamp(n)) for n, word in enumerate(words)]


def added(of: aggregate.Aggregate[Any, Any, Any], of_all: list[ms.Record[Any]], chance: random.Random) -> Any:
    """In some order, to several parts that are kept in between and merged."""
    of = alive(of)
    parts = [of.zero() for _ in range(chance.randrange(1, 4))]
    for record in chance.sample(of_all, len(of_all)):
        place = chance.randrange(len(parts))
        parts[place] = of.add(parts[place], record)
        if chance.random() < 0.01:
            parts[place] = kept_again(of, parts[place])
    whole = of.zero()
    for part in parts:
        whole = of.merge(whole, part)
    return kept_again(of, whole)


@pytest.mark.parametrize("count", [0, 1, 50, 700, 20_000])
def test_distinct_is_near_and_the_same_in_any_order(count: int) -> None:
    of, chance = sketch.distinct(lambda word: word), random.Random(count)
    words = records(*(f"w{n}" for n in range(count)), *(f"w{n}" for n in range(min(count, 300))))
    found = set()
    for _ in range(4):
        kept = added(of, words, chance)
        assert len(kept) < 2200
        found.add(alive(of).result(kept, SPAN))
    (estimate,) = found
    assert abs(estimate - count) <= 0.05 * count
    assert count > 100 or estimate == count


def test_a_quantile_is_near() -> None:
    of, chance = sketch.quantile(0.99, lambda number: float(number)), random.Random(1)
    kept = added(of, [ms.Record("k", chance.random(), ms.Timestamp(n)) for n in range(20_000)], chance)
    assert abs(alive(of).result(kept, SPAN) - 0.99) < 0.005
    assert len(kept) < 6000
    with pytest.raises(aggregate.EmptySpan):
        of.result(of.zero(), SPAN)


def test_the_frequent_are_found() -> None:
    of, chance = sketch.frequent(3, lambda word: word), random.Random(1)
    words = [*["ann"] * 900, *["bob"] * 700, *["cay"] * 500, *(f"w{n}" for n in range(600))]
    kept = added(of, records(*words), chance)
    assert alive(of).result(kept, SPAN) == [("ann", 900), ("bob", 700), ("cay", 500)]
    many = [*words, *(f"x{n}" for n in range(20_000))]
    kept = added(of, records(*many), chance)
    assert {word for word, _ in alive(of).result(kept, SPAN)} == {"ann", "bob", "cay"}
    assert all(least <= Counter(many)[word] for word, least in alive(of).result(kept, SPAN))
    assert len(kept) < 20_000


def test_members_are_never_missed_and_others_seldom_taken_for_one() -> None:
    of, chance = sketch.membership(lambda word: word, expected=1000, error=0.01), random.Random(1)
    kept = added(of, records(*(f"w{n}" for n in range(1000))), chance)
    members = alive(of).result(kept, SPAN)
    assert len(kept) == 1199
    assert all(f"w{n}" in members for n in range(1000))
    assert sum(f"x{n}" in members for n in range(10_000)) < 200
    assert "" not in of.result(of.zero(), SPAN)
    assert kept == added(of, records(*(f"w{n}" for n in range(1000))), chance)


def test_sketches_are_aggregates_like_any_other() -> None:
    traffic = Window(
        Order,
        Tumbling(ms.MINUTE),
        aggregate.combine(
            Traffic,
            aggregate.count(),
            sketch.distinct(lambda order: f"{order.price}"),
            sketch.quantile(0.5, lambda order: order.price),
            sketch.frequent(1, lambda order: f"{order.at}"),
        ),
    )
    topology, orders = shop(traffic)
    driver = Driver(topology)
    for part in range(5):
        driver.send(orders, *(Order("ann", n % 100, part) for n in range(100)))
        driver.crash()
    driver.finish()
    (found,) = values(driver, traffic.results)
    assert found.value.requests == 500
    assert found.value.users == 100
    assert abs(found.value.slow - 49.5) < 1.5
    assert found.value.favourites[0] == ("0", 100)


@pytest.mark.parametrize("seed", range(2))
def test_windows_of_sketches_in_any_order(seed: int) -> None:
    def price(order: Order) -> str:
        return f"{order.price}"

    windows = [
        Window(Order, Hopping(30 * ms.SECOND, every=10 * ms.SECOND), sketch.distinct(price)),
        Window(Order, Session(10 * ms.SECOND), sketch.membership(price, expected=20)),
        Window(Order, Tumbling(ms.MINUTE), sketch.frequent(2, lambda order: order.customer)),
    ]
    table = WindowTable(Order, Session(10 * ms.SECOND), sketch.distinct(price), correct=ms.MINUTE)
    topology, orders = shop(*windows, table)
    chance = random.Random(seed)
    events = coming(orders, some_orders(chance, 300, 300))
    whole, split = play(topology, at_once(events)), play(topology, arrive(events, chance))
    for window in windows:
        assert told(split, window.results) == told(whole, window.results)
    assert sorted(repr(one.after) for one in values(split, table.changes)) == sorted(
        repr(one.after) for one in values(whole, table.changes)
    )


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(ms.TopologyError, match=r"pip install 'millstream\[sketches\]'"):
        sketch.distinct(lambda word: word)
    sketch.membership(lambda word: word)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: sketch.distinct(3), "give a function of the value"),  # type: ignore[arg-type]
        (lambda: sketch.quantile(99, lambda n: n), "give a share from 0 to 1"),
        (lambda: sketch.frequent(0, lambda n: n), "at least 1"),
        (lambda: sketch.frequent(1000, lambda n: n), "at most 100"),
        (lambda: sketch.membership(lambda n: n, expected=0), "at least 1"),
        (lambda: sketch.membership(lambda n: n, error=1), "give a share between 0 and 1"),
    ],
)
def test_what_cannot_be_right_is_refused_while_building(make: Any, why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        make()
