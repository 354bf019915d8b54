"""Partitions of a source that fall silent: left out of the promise, forgotten once others speak, and not while nobody listened."""

from __future__ import annotations

import millstream as ms
from millstream.mill.actions import Fed
from millstream.timestamp import Timestamp
from tests.conformance.scenes import at
from tests.mill.desk import Desk, graph_of

IDLE = ms.BoundedDisorder(ms.SECOND, idle_after=10 * ms.SECOND)


def house(**more: object) -> Desk:
    desk = Desk(graph_of(low_watermark=IDLE), **more)  # type: ignore[arg-type]
    desk.join(0)
    desk.join(1)
    return desk


def speak(desk: Desk, **marks: int) -> None:
    desk.act(desk.planner.on_fed(Fed("events", [], {name: at(second) for name, second in marks.items()}, 0), desk.now))


def low_watermark(desk: Desk) -> Timestamp:
    return desk.ledger.low_watermarks["it"].input


def test_a_silent_partition_holds_the_promise_until_it_is_idle_and_is_then_left_out() -> None:
    desk = house()
    speak(desk, a=5, b=50)
    assert low_watermark(desk) == at(5)
    desk.tick(9.0)
    speak(desk, b=60)
    assert low_watermark(desk) == at(5)
    assert 0 < (desk.planner.next_tick(desk.now) or 0) <= 1.1, "it wakes by itself when `a` falls idle"
    desk.tick(1.1)
    assert low_watermark(desk) == at(60)
    assert set(desk.ledger.sources["events"].marks) == {"a", "b"}, "left out, and still known"


def test_it_is_forgotten_by_the_commit_that_brings_what_others_say_and_a_start_does_not_know_it() -> None:
    desk = house()
    speak(desk, a=5, b=50)
    desk.tick(11.0)
    speak(desk, b=60)
    assert desk.commits[-1].sources["events"].forgotten == ["a"]
    assert set(desk.ledger.sources["events"].marks) == {"b"}
    again = house(ledger=desk.ledger)
    speak(again, b=70)
    assert low_watermark(again) == at(70)


def test_one_that_comes_back_holds_the_promise_again_which_does_not_move_back() -> None:
    desk = house()
    speak(desk, a=5, b=50)
    desk.tick(11.0)
    speak(desk, b=60)
    speak(desk, a=20, b=80)
    assert low_watermark(desk) == at(60)
    speak(desk, a=70)
    assert low_watermark(desk) == at(70)


def test_if_all_are_silent_the_promise_stays() -> None:
    desk = house()
    speak(desk, a=5, b=50)
    for _ in range(10):
        desk.tick(11.0)
    assert low_watermark(desk) == at(5)


def test_after_a_start_silence_counts_anew() -> None:
    """Nobody listened for an hour."""
    desk = house()
    speak(desk, a=5, b=50)
    again = house(ledger=desk.ledger, clock=Timestamp(desk.clock + ms.HOUR))
    speak(again, b=60)
    assert low_watermark(again) == at(5)
    again.tick(9.0)
    speak(again, b=70)
    assert low_watermark(again) == at(5)
    again.tick(1.1)
    assert low_watermark(again) == at(70)


def test_while_sources_are_not_read_nobody_is_idle() -> None:
    """What waits holds them back, so a partition cannot speak."""
    desk = house(backlog_records=2)
    speak(desk, a=50, b=50)
    desk.lose(0)
    desk.feed(2, second=90)
    assert not desk.planner.has_room
    desk.tick(30.0)
    desk.join(0)
    desk.report(0)
    speak(desk, b=80)
    desk.tick(9.0)
    speak(desk, b=85)
    assert low_watermark(desk) == at(50)
    desk.tick(1.1)
    assert low_watermark(desk) == at(85)
