"""The example of orders and payments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import millstream as ms
from millstream.testing import Driver
from tests.examples import load_example

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def minute(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


def test_what_is_paid_what_is_not_and_what_nobody_ordered() -> None:
    example = load_example("payments")
    driver, paid = Driver(example.topology), example.paid
    driver.send(example.payments, example.Payment("1", 5, minute(1)))  # comes before its order
    driver.send(example.orders, example.Order("1", "ann", 5, minute(0)), example.Order("2", "bob", 7, minute(3)))
    driver.send(example.payments, example.Payment("3", 9, minute(5)), example.Payment("2", 7, minute(64)))  # a minute too late
    driver.advance(low_watermark=ms.to_timestamp(minute(65)))
    assert [(r.value.left.id, r.value.right.amount, r.timestamp) for r in driver.read(paid.pairs)] == [("1", 5, ms.to_timestamp(minute(1)))]
    assert [(r.key, r.timestamp) for r in driver.read(paid.unmatched_left)] == [("2", ms.to_timestamp(minute(63)) + ms.MICROSECOND)]
    assert [r.key for r in driver.read(paid.unmatched_right)] == ["3", "2"]
    driver.send(example.orders, example.Order("3", "cis", 9, minute(4)))
    assert [r.key for r in driver.read(paid.late_left)] == ["3"]
    assert driver.keys(paid) == 0
