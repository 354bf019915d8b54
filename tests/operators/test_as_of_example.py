"""The example of trades and quotes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import millstream as ms
from millstream.testing import Driver
from tests.examples import load_example

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def test_a_trade_is_told_with_the_quote_that_was_valid_then() -> None:
    example = load_example("quotes")
    driver, quoted = Driver(example.topology), example.quoted
    second = timedelta(seconds=1)
    driver.send(example.trades, example.Trade("x", 10.2, NOON + 5 * second), example.Trade("x", 11, NOON + 90 * second))
    driver.send(example.quotes, example.Quote("x", 10, 10.5, NOON + 8 * second), example.Quote("x", 9, 9.5, NOON))
    driver.finish()
    assert [(r.value.left.price, r.value.right.bid) for r in driver.read(quoted.pairs)] == [(10.2, 9)]
    assert [(r.value.price, r.timestamp) for r in driver.read(quoted.unmatched)] == [(11, ms.to_timestamp(NOON + 90 * second))]
    assert driver.keys(quoted) == 0
