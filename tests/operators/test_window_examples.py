"""The examples that stand on windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import millstream as ms
from millstream.testing import Driver
from tests.examples import load_example

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def minute(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


def test_visits_are_told_early_closed_and_put_right() -> None:
    example = load_example("clickstream")
    click, driver = example.Click, Driver(example.topology, now=ms.to_timestamp(NOON))
    visits, clicks = example.visits, example.clicks
    driver.send(clicks, click("ann", "/", minute(0)), click("ann", "/shoes", minute(5)), click("ann", "/", minute(70)))
    driver.advance(now=ms.to_timestamp(minute(1)))
    told = [(r.value.after.value.clicks, r.value.after.value.exit.page) for r in driver.read(visits.changes)]
    assert told == [(2, "/shoes"), (1, "/")]
    driver.advance(low_watermark=ms.to_timestamp(minute(200)))
    assert len(driver.read(visits.changes)) == 2  # nothing has changed since
    driver.send(clicks, click("ann", "/hats", minute(34)), click("ann", "/coats", minute(60)))  # from a phone that was off
    first, joined = driver.read(visits.changes)[2:][0].value, driver.read(visits.changes)[-1].value
    assert (first.after.value.clicks, first.after.end) == (3, ms.to_timestamp(minute(64)))
    assert joined.after.value == example.Visit(5, click("ann", "/", minute(0)), click("ann", "/", minute(70)))
    rows = {}
    for record in driver.read(visits.changes):
        assert rows.get(record.key) == record.value.before
        rows[record.key] = record.value.after
    assert [row.value.clicks for row in rows.values() if row is not None] == [5]
    driver.finish()
    assert driver.keys(visits) == 0


def test_the_best_of_the_last_ten_minutes() -> None:
    example = load_example("leaderboard")
    score, place = example.Score, example.Place
    driver = Driver(example.topology, now=ms.to_timestamp(NOON))
    driver.send(
        example.scores,
        score("ann", 5, minute(0.5)),
        score("bob", 3, minute(0.7)),
        score("cis", 4, minute(1.5)),
        score("dan", 1, minute(0.2)),
        score("bob", 9, minute(11.5)),
    )
    driver.advance(now=ms.to_timestamp(minute(1)))
    assert {(r.value.after.key, r.value.after.value) for r in driver.read(example.hour.changes)} == {
        ("ann", 5),
        ("bob", 12),
        ("cis", 4),
        ("dan", 1),
    }
    driver.finish()
    boards = {r.timestamp: r.value.value for r in driver.read(example.board.results)}
    assert boards[ms.to_timestamp(minute(1)) - ms.MICROSECOND] == [place("ann", 5), place("bob", 3), place("dan", 1)]
    assert boards[ms.to_timestamp(minute(2)) - ms.MICROSECOND] == [place("ann", 5), place("cis", 4), place("bob", 3)]
    assert boards[ms.to_timestamp(minute(11)) - ms.MICROSECOND] == [place("cis", 4)]
    assert boards[ms.to_timestamp(minute(12)) - ms.MICROSECOND] == [place("bob", 9)]
    assert driver.keys(example.points) == driver.keys(example.board) == driver.keys(example.hour) == 0
