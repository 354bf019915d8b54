"""Operators over inputs without event time: old records are put in their place or told to be late, and nothing is kept for ever."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream import aggregate
from millstream.change import deleted, inserted
from millstream.join import AsOf, Direction, Join, Misses, Pair
from millstream.table import Grouped, Newest, TableJoin, View
from millstream.testing import Driver
from millstream.window import Compare, Rolling, Windowed
from tests.operators.arrival import records, second


@dataclass(frozen=True)
class Trade:
    symbol: str
    at: int


@dataclass(frozen=True)
class Quote:
    symbol: str
    at: int
    number: int = 0


class Market:
    """Trades have event time, and quotes have none."""

    def __init__(self) -> None:
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
            low_watermark=ms.Timeless(),
        )

    def as_of(self, **options: Any) -> AsOf[Trade, Quote]:
        join = AsOf(Trade, Quote, **options)
        self.topology.compute("join", join).reads(*join.of(self.trades, versions=self.quotes))
        return join


def found(driver: Driver, join: AsOf[Trade, Quote]) -> dict[tuple[str, int], int | None]:
    """The number of the quote for each trade."""
    pairs: dict[tuple[str, int], int | None] = {(p.left.symbol, p.left.at): p.right.number for _, _, p in records(driver, join.pairs)}
    return pairs | {(trade.symbol, trade.at): None for _, _, trade in records(driver, join.unmatched)}


# As of.


def test_an_old_version_that_comes_late_is_put_in_its_place() -> None:
    market = Market()
    join = market.as_of()
    driver = Driver(market.topology, ship=False)
    driver.send(market.quotes, Quote("a", 50, 1))
    driver.advance(low_watermark=second(60))
    driver.send(market.quotes, Quote("a", 20, 2), Quote("b", 5, 3))  # nobody has waited for them, and they are not late
    driver.send(market.trades, Trade("a", 70), Trade("b", 70))
    driver.finish()
    assert found(driver, join) == {("a", 70): 1, ("b", 70): 3}
    assert driver.read(join.late_versions) == []


def test_of_versions_at_one_time_the_last_to_come_stands() -> None:
    market = Market()
    join = market.as_of()
    driver = Driver(market.topology, ship=False)
    driver.advance(low_watermark=second(60))
    for quote in (Quote("a", 30, 1), Quote("a", 50, 2), Quote("a", 50, 3), Quote("a", 30, 4)):
        driver.send(market.quotes, quote)
    driver.send(market.trades, Trade("a", 70))
    driver.finish()
    assert found(driver, join) == {("a", 70): 3}


@pytest.mark.parametrize(("direction", "number"), [(Direction.BACKWARD, 1), (Direction.FORWARD, 2), (Direction.NEAREST, 2)])
def test_an_old_version_still_counts_for_who_waits(direction: Direction, number: int) -> None:
    market = Market()
    join = market.as_of(direction=direction, tolerance=20 * ms.SECOND)
    driver = Driver(market.topology, ship=False)
    driver.send(market.quotes, Quote("a", 60, 1), Quote("a", 90, 3))
    driver.send(market.trades, Trade("a", 70))
    driver.advance(low_watermark=second(75))
    driver.send(market.quotes, Quote("a", 72, 2))
    driver.finish()
    assert found(driver, join) == {("a", 70): number}
    assert driver.keys(join) == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_that_has_come_counts(seed: int) -> None:
    market, chance = Market(), random.Random(seed)
    join = market.as_of()
    driver, low, quotes, open_ = Driver(market.topology, ship=False), 0, list[Quote](), list[Trade]()
    wanted: dict[tuple[str, int], int | None] = {}
    symbols = [f"s{number}" for number in range(40)]
    for _ in range(30):
        now = [Quote(chance.choice(symbols), chance.randrange(100), len(quotes) + n) for n in range(chance.randrange(12))]
        trades = [Trade(chance.choice(symbols), at) for at in chance.sample(range(low, low + 30), chance.randrange(12))]
        trades = [trade for trade in trades if (trade.symbol, trade.at) not in wanted and trade not in open_]
        low += chance.randrange(5)
        with driver.together():
            driver.send(market.quotes, *now)
            driver.send(market.trades, *trades)
            driver.advance(low_watermark=second(low))
        quotes += now
        open_ += trades
        for trade in [trade for trade in open_ if trade.at < low]:
            open_.remove(trade)
            stood = [quote for quote in quotes if quote.symbol == trade.symbol and quote.at <= trade.at]
            wanted[trade.symbol, trade.at] = max(stood, key=lambda quote: (quote.at, quote.number)).number if stood else None
        assert found(driver, join) == wanted
    assert sum(number is not None for number in wanted.values()) > 20
    assert max(len(driver.state(join, symbol).versions) for symbol in symbols) == 1  # those that wait for their time are elsewhere


def test_records_without_event_time_are_refused() -> None:
    market = Market()
    join = AsOf(Quote, Trade)
    with pytest.raises(ms.TopologyError, match=r"'quotes' is injected with ms.Timeless\(\).*use Lookup for the row as it stands"):
        join.of(market.quotes.by(lambda quote: quote.symbol), versions=market.trades)


class Passed(ms.Computation):
    """What it passes on has no event time either."""

    quotes: ms.Output[Quote]

    def process_record(self, record: ms.Record[Quote]) -> None:
        self.quotes.produce(record.value, timestamp=record.timestamp)


def test_records_that_come_after_a_newer_version_are_told_to_be_late() -> None:
    market, passed = Market(), Passed()
    join = AsOf(Quote, Trade)
    market.topology.compute("passed", passed).reads(market.quotes)
    market.topology.compute("join", join).reads(*join.of(passed.quotes, versions=market.trades))
    driver = Driver(market.topology, ship=False)
    driver.send(market.trades, Trade("a", 10), Trade("a", 50))
    driver.advance(low_watermark=second(60))
    driver.send(market.quotes, Quote("a", 20, 1), Quote("a", 55, 2))
    driver.finish()
    assert [record.value.number for record in driver.read(join.late)] == [1]
    assert records(driver, join.pairs) == [("a", 55_000_000, Pair(Quote("a", 55, 2), Trade("a", 50)))]


# Other joins and windows.


def test_of_an_interval_join_what_is_older_than_the_low_watermark_is_late() -> None:
    market = Market()
    join = Join(Trade, Quote, before=5 * ms.SECOND, after=5 * ms.SECOND, misses=Misses.BOTH)
    market.topology.compute("join", join).reads(*join.of(market.trades, market.quotes))
    driver = Driver(market.topology, ship=False)
    driver.send(market.trades, Trade("a", 50))
    driver.advance(low_watermark=second(52))
    driver.send(market.quotes, Quote("a", 51, 1), Quote("a", 53, 2))
    driver.finish()
    assert [record.value.number for record in driver.read(join.late_right)] == [1]
    assert [pair.right.number for _, _, pair in records(driver, join.pairs)] == [2]
    assert records(driver, join.unmatched_left) == records(driver, join.unmatched_right) == []


@pytest.mark.parametrize("of", [aggregate.count(), aggregate.collect(Quote)])
def test_a_rolling_span_takes_nothing_older_than_what_it_has_told(of: Any) -> None:
    topology = ms.Topology("quotes")
    streams = [
        topology.inject(name, ms.values([], Quote), key=lambda q: q.symbol, timestamp=lambda q: second(q.at), low_watermark=promise)
        for name, promise in (("timed", ms.BoundedDisorder(ms.SECOND)), ("timeless", ms.Timeless()))
    ]
    recent = Rolling(Quote, ms.MINUTE, of)
    topology.compute("recent", recent).reads(*streams)
    driver = Driver(topology, ship=False)
    driver.send(streams[0], Quote("a", 30), Quote("a", 50))
    driver.advance(low_watermark=second(60))
    driver.send(streams[1], Quote("a", 40), Quote("a", 50), Quote("a", 70))
    driver.send(streams[0], Quote("a", 80))
    driver.finish()
    assert [record.value.at for record in driver.read(recent.late)] == [40]
    sizes = [one.value.value if isinstance(one.value.value, int) else len(one.value.value) for one in driver.read(recent.results)]
    assert sizes == [1, 2, 3, 4, 5]


def test_a_window_that_is_older_than_the_low_watermark_is_compared_with_none() -> None:
    topology = ms.Topology("windows")
    first, other = (
        topology.inject(name, ms.values([], Windowed[int]), key=lambda w: w.key, timestamp=lambda w: w.start, low_watermark=promise)
        for name, promise in (("timed", ms.BoundedDisorder(ms.SECOND)), ("timeless", ms.Timeless()))
    )
    compared = Compare(int, back=ms.MINUTE)
    topology.compute("compared", compared).reads(first, other)
    driver = Driver(topology, ship=False)
    driver.advance(low_watermark=second(100))
    driver.send(other, Windowed("a", second(60), second(120), 1), Windowed("a", second(120), second(180), 2))
    driver.finish()
    assert [(record.value.value, record.value.earlier) for record in driver.read(compared.compared)] == [(2, None)]
    assert [record.value.value for record in driver.read(compared.late)] == [1]


# Tables.


@dataclass(frozen=True)
class Booking:
    account: str
    amount: int
    at: int


class Balances(View[Booking, int]):
    def apply(self, row: int | None, record: ms.Record[Booking]) -> int | None:
        return (row or 0) + record.value.amount or None


class Bank:
    """All tables over one stream without event time, which tells rows apart by their accounts."""

    def __init__(self, *, timed: bool = False) -> None:
        self.topology = ms.Topology("bank")
        self.bookings = self.topology.inject(
            "bookings",
            ms.values([], Booking),
            key=lambda booking: booking.account,
            timestamp=lambda booking: second(booking.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND) if timed else ms.Timeless(),
        )
        newest = Newest(Booking, gone=lambda booking: booking.amount < 0, remember=ms.HOUR)
        balances, counts = Balances(), Grouped(Booking, lambda booking: booking.account, aggregate.count())
        joined = TableJoin(Booking, Booking, left_key=lambda b: b.account, reference=lambda b: b.account, right_key=lambda b: b.account)
        self.topology.compute("newest", newest).reads(self.bookings)
        self.topology.compute("balances", balances).reads(self.bookings)
        self.topology.compute("counts", counts).reads(*counts.of(newest.changes))
        self.topology.compute("joined", joined).reads(*joined.of(newest.changes, newest.changes))
        self.newest, self.balances = newest, balances
        self.driver = Driver(self.topology, now=second(0), ship=False)

    def kept(self) -> list[int]:
        return [self.driver.keys(name) for name in ("newest", "balances", "counts", "joined")]


def test_rows_that_are_gone_are_forgotten_by_the_wall_clock() -> None:
    bank = Bank()
    for account in "abc":
        bank.driver.send(bank.bookings, Booking(account, 1, 10), Booking(account, -1, 11))
    bank.driver.send(bank.bookings, Booking("stays", 2, 12))
    assert bank.kept() == [4, 4, 4, 8]
    bank.driver.advance(now=second(11) + ms.HOUR - ms.MICROSECOND)
    assert bank.kept() == [4, 4, 4, 8]
    bank.driver.advance(now=second(11) + ms.HOUR)
    assert bank.kept() == [1, 4, 4, 8]  # it was told for how long to remember
    bank.driver.advance(now=second(12) + ms.DAY)
    assert bank.kept() == [1, 1, 1, 2]
    assert all(bank.driver.timers(name, key) == [] for name in ("newest", "balances", "counts") for key in "abc")


def test_a_row_that_comes_back_in_time_is_not_forgotten() -> None:
    bank = Bank()
    bank.driver.send(bank.bookings, Booking("a", 1, 10), Booking("a", -1, 11))
    bank.driver.advance(now=second(100))
    bank.driver.send(bank.bookings, Booking("a", 5, 90))
    bank.driver.advance(now=second(0) + 3 * ms.DAY)
    assert bank.kept() == [1, 1, 1, 2]
    bank.driver.send(bank.bookings, Booking("a", -5, 91))
    bank.driver.advance(now=second(0) + 6 * ms.DAY)
    assert bank.kept() == [0, 0, 0, 0]
    bookings = [Booking("a", 1, 10), Booking("a", 5, 90)]
    assert [record.value for record in bank.driver.read(bank.newest.changes)] == [
        change for booking in bookings for change in (inserted(booking), deleted(booking))
    ]


def test_where_there_is_event_time_the_wall_clock_forgets_nothing() -> None:
    bank = Bank(timed=True)
    bank.driver.send(bank.bookings, Booking("a", 1, 10), Booking("a", -1, 11))
    bank.driver.advance(low_watermark=second(10))
    bank.driver.advance(now=second(0) + 3 * ms.DAY)
    assert bank.kept() == [1, 1, 1, 2]
    bank.driver.advance(low_watermark=second(12))
    assert bank.kept() == [1, 0, 0, 0]
    bank.driver.advance(low_watermark=second(11) + ms.HOUR)
    assert bank.kept() == [0, 0, 0, 0]
