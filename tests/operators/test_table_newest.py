"""The newest record of each key as a table."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.change import deleted, inserted, updated
from millstream.table import Newest
from millstream.testing import Driver
from tests.operators.arrival import Event, arrive, at_once, notice, play, records, rows, second

IDS = [f"i{number}" for number in range(50)]


@dataclass(frozen=True)
class Customer:
    id: str
    country: str
    at: int


class Registry:
    def __init__(self, remember: ms.Duration = ms.DAY) -> None:
        self.topology = ms.Topology("registry")
        self.customers = self.topology.inject(
            "customers",
            ms.values([], Customer),
            key=lambda customer: customer.id,
            timestamp=lambda customer: second(customer.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.newest = Newest(Customer, gone=lambda customer: customer.country == "", remember=remember)
        self.topology.compute("newest", self.newest).reads(self.customers)

    def driver(self) -> Driver:
        return Driver(self.topology, ship=False)

    def events(self, chance: random.Random) -> list[Event]:
        """No two of one at one time: of these, the last to come counts."""
        places = [(id_, at) for id_ in IDS for at in range(chance.choice((10, 60)))]
        found = [Customer(id_, chance.choice(["", "NL", "DE"]), at) for id_, at in chance.sample(places, 250)]
        return [Event(self.customers, customer, customer.at) for customer in found]


def by_hand(events: list[Event]) -> dict[str, Customer]:
    found = {event.value.id: event.value for event in sorted(events, key=lambda event: event.at)}
    return {key: customer for key, customer in found.items() if customer.country}


def test_a_row_comes_changes_and_goes() -> None:
    registry = Registry()
    driver = registry.driver()
    first, second_, last = Customer("a", "NL", 1), Customer("a", "DE", 2), Customer("a", "", 3)
    driver.send(registry.customers, first, second_, last)
    assert [record.value for record in driver.read(registry.newest.changes)] == [inserted(first), updated(first, second_), deleted(second_)]
    assert [record.timestamp for record in driver.read(registry.newest.changes)] == [second(1), second(2), second(3)]


def test_an_older_record_is_passed_over_and_one_of_the_same_time_is_not() -> None:
    registry = Registry()
    driver = registry.driver()
    for customer in (Customer("a", "NL", 5), Customer("a", "DE", 4), Customer("a", "FR", 5)):
        driver.send(registry.customers, customer)
    assert rows(driver, registry.newest.changes) == {"a": Customer("a", "FR", 5)}
    assert records(driver, registry.newest.older) == [("a", 4_000_000, Customer("a", "DE", 4))]


def test_a_value_that_stays_the_same_is_no_change_but_makes_the_row_newer() -> None:
    topology = ms.Topology("words")
    words = topology.inject(
        "words",
        ms.values([], str),
        key=lambda word: "k",
        timestamp=lambda word: second(0),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    newest = Newest(str)
    topology.compute("newest", newest).reads(words)
    driver = Driver(topology, ship=False)
    for at, word in ((1, "a"), (5, "a"), (4, "b")):
        driver.put(words, word, key="k", timestamp=second(at))
    assert [record.value for record in driver.read(newest.changes)] == [inserted("a")]
    assert [record.value for record in driver.read(newest.older)] == ["b"]


def test_a_deletion_is_remembered_for_a_while() -> None:
    registry = Registry(remember=10 * ms.SECOND)
    driver = registry.driver()
    driver.send(registry.customers, Customer("a", "NL", 1), Customer("a", "", 20))
    driver.advance(low_watermark=second(29))
    driver.send(registry.customers, Customer("a", "DE", 19))
    assert rows(driver, registry.newest.changes) == {}
    driver.advance(low_watermark=second(30))
    assert driver.keys(registry.newest) == 0
    driver.send(registry.customers, Customer("a", "FR", 18))  # nobody remembers; the change is dated when it happened
    assert rows(driver, registry.newest.changes) == {"a": Customer("a", "FR", 18)}
    assert [record.timestamp for record in driver.read(registry.newest.changes)] == [second(1), second(20), second(30)]


def test_a_row_that_comes_back_is_not_forgotten() -> None:
    registry = Registry(remember=10 * ms.SECOND)
    driver = registry.driver()
    driver.send(registry.customers, Customer("a", "NL", 1), Customer("a", "", 2), Customer("a", "DE", 3))
    driver.finish()
    assert driver.keys(registry.newest) == 1
    assert rows(driver, registry.newest.changes) == {"a": Customer("a", "DE", 3)}


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_are_the_same_however_they_come(seed: int) -> None:
    registry = Registry()
    notice(registry.topology, registry.newest.changes)
    chance = random.Random(seed)
    for _ in range(3):
        events = registry.events(chance)
        for arrival in (at_once(events), arrive(events, chance), arrive(events, chance, lateness=0.3)):
            driver = play(registry.topology, arrival)
            assert rows(driver, registry.newest.changes) == by_hand(events)


@pytest.mark.parametrize("seed", range(5))
def test_the_laws_hold_where_deletions_are_soon_forgotten(seed: int) -> None:
    registry = Registry(remember=ms.SECOND)
    notice(registry.topology, registry.newest.changes)
    chance = random.Random(seed)
    for _ in range(4):
        driver = play(registry.topology, arrive(registry.events(chance), chance, lateness=0.4))
        assert driver.keys(registry.newest) == len(rows(driver, registry.newest.changes))


def test_keys_that_are_gone_take_no_rows() -> None:
    registry = Registry(remember=3 * ms.SECOND)
    driver = registry.driver()
    most = 0
    for at in range(0, 1_000, 2):
        driver.send(registry.customers, Customer(f"{at}", "NL", at), Customer(f"{at}", "", at + 1))
        driver.advance(low_watermark=second(at))
        most = max(most, driver.keys(registry.newest))
    assert most == 2


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"gone": lambda: True}, "Newest: gone is .* which cannot be called with the value alone"),
        ({"remember": -ms.SECOND}, r"Newest\(remember=-1000000\): give a ms.Duration"),
        ({"value": 3}, "Newest: 3 is not a type"),
    ],
)
def test_what_cannot_be_meant_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        Newest(**{"value": Customer, **changed})
