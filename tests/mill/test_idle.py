"""Partitions of a source that fall silent: left out of the promise, forgotten once others speak, and not while nobody listened."""

from __future__ import annotations

import msgspec
import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.mill.actions import Fed
from millstream.timestamp import START_OF_TIME, Timestamp
from tests.conformance.scenes import Obedient, Relay, at, inject
from tests.mill.desk import Desk, graph_of
from tests.mill.parted import deafen, offer, piece, read, unread

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


# The injector as a whole, and those that read others too.


def two() -> Desk:
    """`it` reads what may be idle, and what may not."""
    topology = ms.Topology("desk")
    events, busy, it = inject(topology, low_watermark=IDLE), inject(topology, "busy"), Obedient()
    topology.compute("it", it).reads(events, busy)
    desk = Desk(compile_topology(topology))
    desk.join(0)
    desk.join(1)
    desk.act(desk.planner.on_fed(Fed("busy", [], {"": at(90)}, 0), desk.now))
    return desk


def settled(desk: Desk) -> Timestamp:
    desk.tick(0.02)  # an epoch that only moves low watermarks waits for its time
    return desk.planner.ledger.low_watermarks["it"].input


def test_an_injector_that_is_idle_is_left_out_and_the_commit_says_so_and_so_does_the_next() -> None:
    desk = two()
    speak(desk, a=5, b=50)
    assert settled(desk) == at(5)
    assert 9.9 < (desk.planner.next_tick(desk.now) or 0) < 10.1, "it wakes by itself"
    desk.tick(10.1)
    assert settled(desk) == at(90)
    assert [commit.idle for commit in desk.commits if commit.idle is not None] == [["events"]]
    assert desk.ledger.promises["events"] == at(5)
    speak(desk, a=6)
    assert settled(desk) == at(90)
    assert desk.ledger.idle == []


def test_one_of_which_nobody_has_heard_in_this_run_is_not_idle() -> None:
    """Its query may take long to start, or its thread to open."""
    desk = two()
    desk.tick(3_600.0)
    assert settled(desk) == START_OF_TIME
    unread(desk)  # now somebody listens, and there is nothing
    desk.tick(9.0)
    assert settled(desk) == START_OF_TIME
    assert 0.9 < (desk.planner.next_tick(desk.now) or 0) < 1.1, "it wakes by itself"
    desk.tick(1.1)
    assert settled(desk) == at(90)


def test_a_start_begins_to_listen_anew_and_its_first_commit_says_so() -> None:
    desk = two()
    speak(desk, a=5)
    desk.tick(11.0)
    assert (settled(desk), desk.ledger.idle) == (at(90), ["events"])
    again = Desk(desk.graph, ledger=desk.ledger, clock=Timestamp(desk.clock + ms.HOUR))
    again.join(0)
    again.join(1)
    assert again.ledger.idle == []
    again.act(again.planner.on_fed(Fed("busy", [], {"": at(99)}, 0), again.now))
    again.tick(60.0)
    assert settled(again) == at(90)
    unread(again)
    again.tick(11.0)
    assert settled(again) == at(99)


@pytest.mark.parametrize("what", ["unread", "out of reach", "offered", "no room"])
def test_while_something_is_unread_or_nobody_hears_no_injector_is_idle(what: str) -> None:
    desk = two()
    unread(desk)
    speak(desk, a=5)
    match what:
        case "unread":
            unread(desk, "a")
        case "out of reach":
            deafen(desk)
        case "offered":
            desk.lose(0)
            desk.lose(1)
            offer(desk, piece("a", "a0"))
        case "no room":
            desk.planner.settings = msgspec.structs.replace(desk.planner.settings, backlog_records=0)
            desk.tick()  # as what fills it makes one
    desk.tick(60.0)
    desk.tick(60.0)
    assert settled(desk) == at(5)
    assert desk.ledger.idle == []


def test_what_a_long_epoch_reads_was_not_silent_meanwhile() -> None:
    desk = two()
    unread(desk)
    speak(desk, a=5)
    offer(desk, piece("a", "a0"))
    desk.tick(60.0)
    desk.report(0, read=[read("a", 1, upto=7)])
    assert settled(desk) == at(7)
    desk.tick(10.1)
    assert settled(desk) == at(90)


def test_silence_far_from_the_injectors_makes_an_epoch_due() -> None:
    topology = ms.Topology("desk")
    quiet, busy = inject(topology, low_watermark=IDLE), inject(topology, "busy")
    near, other, relay = Obedient(), Obedient(), Relay()
    topology.compute("near", near).reads(quiet)
    topology.compute("other", other).reads(busy)
    topology.compute("relay", relay).reads(near.said, other.said)
    desk = Desk(compile_topology(topology))
    desk.join(0)
    desk.join(1)
    desk.act(desk.planner.on_fed(Fed("busy", [], {"": at(90)}, 0), desk.now))
    speak(desk, a=5)
    desk.tick(10.1)
    desk.tick(0.02)
    lows = desk.planner.ledger.low_watermarks
    assert (lows["near"].input, lows["relay"].input) == (at(5), at(90))
