"""Each record with the version that was valid then: against pandas, in every direction, and however it comes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

import millstream as ms
from millstream.join import AsOf, Direction, Pair
from millstream.table import Newest
from millstream.testing import Driver
from tests.operators.arrival import Event, arrive, at_once, notice, play, records, second

SECOND = 1_000_000
SYMBOLS = [f"s{number}" for number in range(30)]


@dataclass(frozen=True)
class Trade:
    symbol: str
    at: int
    number: int = 0


@dataclass(frozen=True)
class Quote:
    symbol: str
    at: int
    number: int = 0


class Passed(ms.Computation):
    """Both streams from one computation: of one time, they come as it produced them."""

    trades: ms.Output[Trade]
    quotes: ms.Output[Quote]

    def process_record(self, record: ms.Record[Trade | Quote]) -> None:
        if isinstance(record.value, Trade):
            self.trades.produce(record.value, timestamp=record.timestamp)
        else:
            self.quotes.produce(record.value, timestamp=record.timestamp)


class Market:
    def __init__(self, direction: Direction = Direction.BACKWARD, tolerance: int | None = None, *, passed: bool = False) -> None:
        self.direction, self.tolerance = direction, tolerance
        self.topology = ms.Topology("market")
        self.trades = self.topology.inject(
            "trades",
            ms.values([], Trade),
            key=lambda trade: trade.symbol,
            timestamp=lambda trade: second(trade.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.quotes = self.topology.inject(
            "quotes",
            ms.values([], Quote),
            key=lambda quote: quote.symbol,
            timestamp=lambda quote: second(quote.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        self.join = AsOf(Trade, Quote, direction=direction, tolerance=None if tolerance is None else tolerance * ms.SECOND)
        if passed:
            both = Passed()
            self.topology.compute("passed", both).reads(self.trades, self.quotes)
            self.topology.compute("join", self.join).reads(*self.join.of(both.trades, versions=both.quotes))
        else:
            self.topology.compute("join", self.join).reads(*self.join.of(self.trades, versions=self.quotes))

    def driver(self) -> Driver:
        return Driver(self.topology, ship=False)

    def events(self, chance: random.Random) -> list[Event]:
        """Many at the same times; in the order of their numbers, as their sources have them."""
        span = chance.choice((12, 40))
        trades = [Trade(chance.choice(SYMBOLS), at, n) for n, at in enumerate(sorted(chance.choices(range(span), k=160)))]
        quotes = [Quote(chance.choice(SYMBOLS), at, n) for n, at in enumerate(sorted(chance.choices(range(span), k=120)))]
        return [*(Event(self.trades, t, t.at) for t in trades), *(Event(self.quotes, q, q.at) for q in quotes)]


def by_pandas(market: Market, events: Sequence[Event]) -> dict[int, int | None]:
    """The number of the quote for each trade's number. Of quotes at one time the last to come stands; pandas looks ahead to the
    first of them."""
    trades = pd.DataFrame([vars(e.value) for e in events if isinstance(e.value, Trade)], columns=["symbol", "at", "number"])
    quotes = pd.DataFrame([vars(e.value) for e in events if isinstance(e.value, Quote)], columns=["symbol", "at", "number"])
    trades, quotes = (frame.astype({"at": "int64", "symbol": "object"}).sort_values("at", kind="stable") for frame in (trades, quotes))
    if market.direction is not Direction.BACKWARD:
        quotes = quotes.drop_duplicates(["symbol", "at"], keep="last")
    found = pd.merge_asof(
        trades, quotes, on="at", by="symbol", direction=market.direction.value, tolerance=market.tolerance, suffixes=("", "_of_quote")
    )
    return {int(row.number): None if pd.isna(row.number_of_quote) else int(row.number_of_quote) for row in found.itertuples()}


def joined(driver: Driver, join: AsOf[Trade, Quote]) -> dict[int, int | None]:
    found: dict[int, int | None] = {pair.left.number: pair.right.number for _, _, pair in records(driver, join.pairs)}
    lone = {trade.number: None for _, _, trade in records(driver, join.unmatched)}
    assert not found.keys() & lone.keys()
    return found | lone


def test_the_version_counts_that_was_valid_then_whatever_comes_first() -> None:
    market = Market()
    driver = market.driver()
    driver.send(market.trades, Trade("a", 100, 1), Trade("a", 200, 2), Trade("a", 50, 3))
    driver.send(market.quotes, Quote("a", 200, 1))
    driver.send(market.quotes, Quote("a", 60, 2))  # older, and last to come
    assert driver.read(market.join.pairs) == []
    driver.finish()
    assert joined(driver, market.join) == {1: 2, 2: 1, 3: None}


def test_what_is_told_is_dated_when_it_is_certain() -> None:
    quotes = [Quote("a", 20, 1), Quote("a", 30, 2)]
    trades = [Trade("a", at, at) for at in (5, 20, 25, 28, 30, 45)]
    wanted = {
        Direction.BACKWARD: ({20: (1, 20), 25: (1, 25), 28: (1, 28), 30: (2, 30)}, {5: 5.0, 45: 45.0}),
        Direction.FORWARD: ({20: (1, 20), 25: (2, 30), 28: (2, 30), 30: (2, 30)}, {5: 15.000001, 45: 55.000001}),
        Direction.NEAREST: ({20: (1, 20), 25: (1, 30), 28: (2, 30), 30: (2, 30)}, {5: 15.000001, 45: 55.000001}),
    }
    for direction, (pairs, lone) in wanted.items():
        market = Market(direction, 10)
        driver = market.driver()
        driver.send(market.trades, *trades)
        driver.send(market.quotes, *quotes)
        driver.finish()
        told = records(driver, market.join.pairs)
        assert {pair.left.at: (pair.right.number, at / SECOND) for _, at, pair in told} == pairs
        assert {trade.at: at / SECOND for _, at, trade in records(driver, market.join.unmatched)} == lone
        assert driver.keys(market.join) == 0


def test_a_record_waits_no_longer_than_it_must() -> None:
    """A nearer version than the one nine seconds back can only come within nine seconds."""
    market = Market(Direction.NEAREST, 100)
    driver = market.driver()
    driver.send(market.quotes, Quote("a", 1, 1))
    driver.send(market.trades, Trade("a", 10, 1))
    driver.advance(low_watermark=second(19) - ms.MICROSECOND)
    assert driver.read(market.join.pairs) == []
    driver.advance(low_watermark=second(19))
    assert records(driver, market.join.pairs) == [("a", 19 * SECOND, Pair(Trade("a", 10, 1), Quote("a", 1, 1)))]


def test_what_is_late_is_set_aside_and_never_joined() -> None:
    market = Market()
    driver = market.driver()
    driver.send(market.quotes, Quote("a", 5, 1))
    driver.advance(low_watermark=second(10))
    driver.send(market.quotes, Quote("a", 8, 2))
    driver.send(market.trades, Trade("a", 9, 1), Trade("a", 12, 2))
    driver.finish()
    assert [r.value for r in driver.read(market.join.late_versions)] == [Quote("a", 8, 2)]
    assert [r.value for r in driver.read(market.join.late)] == [Trade("a", 9, 1)]
    assert joined(driver, market.join) == {2: 1}


WAYS = [
    (Direction.BACKWARD, None),
    *((direction, tolerance) for direction in Direction for tolerance in (0, 1, 5, 100)),
]


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("passed", [False, True], ids=["two sources", "one computation"])
@pytest.mark.parametrize(("direction", "tolerance"), WAYS)
def test_it_says_what_pandas_says_however_it_comes(direction: Direction, tolerance: int | None, passed: bool, seed: int) -> None:
    market = Market(direction, tolerance, passed=passed)
    join = market.join
    notice(market.topology, join.pairs, join.unmatched)
    chance = random.Random(f"{direction} {tolerance} {seed}")
    events = market.events(chance)
    whole = play(market.topology, at_once(events))
    assert joined(whole, join) == by_pandas(market, events)
    arrival = arrive(events, chance)
    parted = play(market.topology, arrival)
    assert joined(parted, join) == by_pandas(market, arrival.on_time)
    assert when(parted, join) == when(whole, join)
    arrival = arrive(events, chance, lateness=0.3)
    some = play(market.topology, arrival)
    assert joined(some, join) == by_pandas(market, arrival.on_time)
    late = [record.value for output in (join.late, join.late_versions) for record in some.read(output)]
    assert sorted(map(repr, late)) == sorted(repr(event.value) for event in arrival.late)
    assert join.versions_first is not passed
    if tolerance is not None:
        assert whole.keys(join) == parted.keys(join) == some.keys(join) == 0


def when(driver: Driver, join: AsOf[Trade, Quote]) -> list[tuple[int, int]]:
    """The numbers of the trades, and when they were told."""
    pairs = [(pair.left.number, at) for _, at, pair in records(driver, join.pairs)]
    return sorted(pairs + [(trade.number, at) for _, at, trade in records(driver, join.unmatched)])


def rows_of(market: Market) -> tuple[ms.Topology, Any, AsOf[Trade, Quote]]:
    """The same market, whose quotes are a table."""
    topology = ms.Topology("table")
    trades = topology.inject(
        "trades",
        ms.values([], Trade),
        key=lambda trade: trade.symbol,
        timestamp=lambda trade: second(trade.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    newest = Newest(Quote, gone=lambda quote: quote.number < 0)
    quotes = topology.inject(
        "quotes",
        ms.values([], Quote),
        key=lambda quote: quote.symbol,
        timestamp=lambda quote: second(quote.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("newest", newest).reads(quotes)
    join = AsOf(
        Trade,
        Quote,
        direction=market.direction,
        tolerance=None if market.tolerance is None else market.tolerance * ms.SECOND,
    )
    topology.compute("join", join).reads(*join.of(trades, table=newest.changes))
    return topology, (trades, quotes), join


@pytest.mark.parametrize(
    ("direction", "wanted"),
    [
        (Direction.BACKWARD, {1: 1, 2: None, 3: None, 4: 2}),
        (Direction.FORWARD, {1: 2, 2: 2, 3: 2, 4: None}),
        (Direction.NEAREST, {1: 1, 2: 2, 3: 2, 4: 2}),
    ],
)
def test_a_row_that_was_deleted_is_no_version(direction: Direction, wanted: dict[int, int | None]) -> None:
    topology, (trades, quotes), join = rows_of(Market(direction, 100))
    driver = Driver(topology)
    driver.send(quotes, Quote("a", 10, 1), Quote("a", 20, -1), Quote("a", 30, 2))
    driver.send(trades, Trade("a", 19, 1), Trade("a", 20, 2), Trade("a", 22, 3), Trade("a", 31, 4))
    driver.finish()
    assert joined(driver, join) == wanted


def test_of_a_table_without_tolerance_one_version_a_key_is_kept_and_none_of_a_row_that_is_gone() -> None:
    topology, (trades, quotes), join = rows_of(Market())
    driver, most = Driver(topology, ship=False), 0
    for at in range(300):
        driver.send(quotes, Quote("a", at, at), Quote("b", at, -1 if at % 2 else at))
        driver.send(trades, Trade("a", at, at))
        driver.advance(low_watermark=second(at))
        kept = driver.state(join, "a")
        most = max(most, len(kept.versions), len(kept.looking))
    assert most <= 1
    driver.send(quotes, Quote("a", 300, -1))
    driver.finish()
    assert driver.keys(join) == 0


@pytest.mark.parametrize("direction", Direction)
def test_what_is_kept_is_bounded_by_the_tolerance(direction: Direction) -> None:
    market = Market(direction, 5)
    driver, most = market.driver(), 0
    for at in range(0, 900, 3):
        driver.send(market.trades, Trade("a", at, at))
        if at % 9 == 0:
            driver.send(market.quotes, Quote("a", at + 1, at))
        driver.send(market.quotes, Quote(f"{at}", at, at))
        driver.advance(low_watermark=second(at))
        kept = driver.state(market.join, "a")
        most = max(most, len(kept.versions), len(kept.looking), driver.keys(market.join))
    assert most <= 4
    driver.finish()
    assert driver.keys(market.join) == 0


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"direction": "backward"}, r"give Direction.BACKWARD, Direction.FORWARD or Direction.NEAREST"),
        ({"direction": Direction.FORWARD}, r"waits for what comes after a record; say for how long, with tolerance="),
        ({"tolerance": -ms.SECOND}, r"AsOf\(tolerance=-1000000\): give a ms.Duration"),
        ({"version": 3}, "AsOf: 3 is not a type"),
    ],
)
def test_what_cannot_be_meant_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        AsOf(**{"value": Trade, "version": Quote, **changed})


def test_either_a_table_or_versions() -> None:
    market = Market()
    given: dict[str, Any] = {"table": market.quotes, "versions": market.quotes}
    for wrong in ({}, given):
        with pytest.raises(ms.TopologyError, match="give either table=, a stream of changes, or versions=, a stream of rows"):
            market.join.of(market.trades, **wrong)  # type: ignore[call-overload]
