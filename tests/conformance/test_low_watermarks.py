"""Scenes of promises, late records and idle sources, played on every stage: all must say the same."""

from __future__ import annotations

import pytest

import millstream as ms
from tests.conformance.conftest import Play
from tests.conformance.scenes import Event, Obedient, Relay, alone, at, inject, said, seconds


@pytest.mark.parametrize(
    ("late", "want"), [(None, [("a", "x 1"), ("a", "late y 2")]), (ms.Late.DROP, [("a", "x 1")]), ("divert", [("a", "x 1")])]
)
def test_late_records(play: Play, late: object, want: list[tuple[str, str]]) -> None:
    topology, events, it = alone(late=late)
    stage = play(topology)
    stage.send(events, Event("a", 10, "x"))
    stage.advance(low_watermark=at(9))
    stage.send(events, Event("a", 5, "y"))
    assert said(stage, it.said) == want
    tally = stage.tally("it")
    assert (tally.received, tally.late) == (2, 1)
    assert tally.received == tally.applied + tally.dropped + tally.diverted + tally.dead
    assert [record.value.does for record in stage.read(it.late)] == (["y"] if late == "divert" else [])


def test_a_record_at_the_low_watermark_is_not_late(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.advance(low_watermark=at(5))
    stage.send(events, Event("a", 5, "x"))
    assert said(stage, it.said) == [("a", "x 1")]


def test_the_low_watermark_is_the_least_of_all_inputs(play: Play) -> None:
    topology = ms.Topology("scene")
    left, right, it = inject(topology, "left"), inject(topology, "right"), Obedient()
    topology.compute("it", it).reads(left, right)
    stage = play(topology)
    stage.send(left, Event("a", 1, "timer:t:3"))
    stage.advance(low_watermark=at(9), of=left)
    assert stage.low_watermark("it") == ms.START_OF_TIME
    assert said(stage, it.said) == []
    stage.advance(low_watermark=at(2), of=right)
    assert stage.low_watermark("it") == at(2)
    stage.finish(of=right)
    assert stage.low_watermark("it") == at(9)
    assert said(stage, it.said) == [("a", "t@3")]


def test_a_hold_keeps_the_readers_back_until_its_timer_has_fired(play: Play) -> None:
    topology = ms.Topology("scene")
    events, it, relay = inject(topology), Obedient(), Relay()
    topology.compute("it", it).reads(events)
    topology.compute("relay", relay).reads(it.said)
    stage = play(topology)
    stage.send(events, Event("a", 5, "hold:t:8:5"))
    stage.advance(low_watermark=at(7))
    stage.send(events, Event("b", 7, "x"))
    assert stage.low_watermark("it") == at(7)
    assert stage.low_watermark("relay") == at(5)
    stage.finish()
    assert stage.low_watermark("relay") == ms.END_OF_TIME
    assert said(stage, relay.passed) == [("a", "t@8#1"), ("b", "x 1#1")]


def test_a_hold_set_late_takes_the_output_back_but_no_reader(play: Play) -> None:
    topology = ms.Topology("scene")
    events, others, it, other, relay = inject(topology), inject(topology, "others"), Obedient(), Obedient(), Relay()
    topology.compute("it", it).reads(events)
    topology.compute("other", other).reads(others)
    topology.compute("relay", relay).reads(it.said, other.said)
    stage = play(topology)
    stage.send(events, Event("a", 10, "x"))
    stage.advance(low_watermark=at(9), of=events)
    stage.advance(low_watermark=at(3), of=others)
    assert (stage.low_watermark("it.said"), stage.low_watermark("relay")) == (at(9), at(3))
    stage.send(events, Event("a", 10, "hold:t:20:5"))
    stage.advance(low_watermark=at(12), of=others)
    assert (stage.low_watermark("it.said"), stage.low_watermark("relay")) == (at(5), at(5)), "what it will say is waited for"
    stage.send(events, Event("a", 10, "cancel:t hold:u:20:1"))
    stage.advance(low_watermark=at(13), of=others)
    assert (stage.low_watermark("it.said"), stage.low_watermark("relay")) == (at(1), at(5)), "a reader never goes back"
    stage.finish()
    assert stage.tally("relay").late == 0


def test_a_far_future_promise_closes_everything_and_what_follows_is_late(play: Play) -> None:
    topology, events, it = alone(late=ms.Late.DROP)
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:t:3"))
    stage.advance(low_watermark=at(10**6))
    stage.send(events, Event("a", 2, "x"))
    assert said(stage, it.said) == [("a", "t@3")]
    assert stage.tally("it").dropped == 1


def test_an_idle_partition_is_left_out_until_it_speaks_again(play: Play) -> None:
    topology, events, it = alone(low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=10 * ms.SECOND))
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:t:3"))
    stage.advance(low_watermark=at(1), partition="quiet")
    stage.advance(low_watermark=at(5), partition="busy")
    assert stage.low_watermark("it") == at(1)
    stage.advance(low_watermark=at(9), now=seconds(60), partition="busy")
    assert stage.low_watermark("it") == at(9)
    assert said(stage, it.said) == [("a", "t@3")]
    stage.advance(low_watermark=at(4), partition="quiet")
    stage.advance(low_watermark=at(20), partition="busy")
    assert stage.low_watermark("it") == at(9)
    stage.advance(low_watermark=at(12), partition="quiet")
    assert stage.low_watermark("it") == at(12)


def test_a_wall_clock_that_is_set_back_makes_nobody_idle_who_speaks(play: Play) -> None:
    topology, events, it = alone(low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=10 * ms.SECOND), late=ms.Late.DROP)
    stage = play(topology)
    stage.jump(seconds(1000))
    stage.advance(low_watermark=at(1), partition="slow")
    stage.advance(low_watermark=at(100), partition="fast")
    stage.jump(seconds(940))
    stage.advance(low_watermark=at(2), partition="slow")
    assert stage.low_watermark("it") == at(2)
    stage.send(events, Event("a", 3, "x"))
    assert (said(stage, it.said), stage.tally("it").late) == ([("a", "x 1")], 0)
    stage.jump(seconds(1009))  # the slow one spoke at 940, by the clock as it was then; the fast one at 1000
    assert stage.low_watermark("it") == at(100)


def test_the_last_promise_stays_when_all_partitions_are_idle(play: Play) -> None:
    topology, _, _ = alone(low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=10 * ms.SECOND))
    stage = play(topology)
    stage.advance(low_watermark=at(1), partition="one")
    stage.advance(low_watermark=at(5), partition="other")
    stage.advance(now=seconds(60))
    assert stage.low_watermark("it") == at(1)


def test_one_input_ends_and_the_other_goes_on(play: Play) -> None:
    topology = ms.Topology("scene")
    left, right, it = inject(topology, "left"), inject(topology, "right"), Obedient()
    topology.compute("it", it).reads(left, right, late=ms.Late.DROP)
    stage = play(topology)
    stage.send(left, Event("a", 1, "x timer:t:3"))
    stage.finish(of=left)
    assert stage.low_watermark("it") == ms.START_OF_TIME
    stage.advance(low_watermark=at(2), of=right)
    stage.send(right, Event("a", 2, "y"))
    assert said(stage, it.said) == [("a", "x 1"), ("a", "y 2")]
    stage.finish(of=right)
    assert said(stage, it.said) == [("a", "x 1"), ("a", "y 2"), ("a", "t@3")]
    assert stage.low_watermark("it") == ms.END_OF_TIME


def test_to_say_again_what_is_known_changes_nothing(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "x timer:t:3 wall:w:5"))
    for _ in range(3):
        stage.advance(low_watermark=at(4), now=seconds(5))
        stage.advance(low_watermark=at(2), now=seconds(1))
        stage.send(events)
    assert said(stage, it.said) == [("a", "x 1"), ("a", "w@5"), ("a", "t@3")]
    assert (stage.tally("it").fired, stage.timers("it"), stage.low_watermark("it")) == (2, 0, at(4))
    for _ in range(2):
        stage.finish()
    assert stage.tally("it").fired == 2


def test_records_in_reverse_order_over_epochs_are_not_late_while_the_promise_is_kept(play: Play) -> None:
    topology, events, it = alone(late=ms.Late.DROP)
    stage = play(topology)
    stage.advance(low_watermark=at(3))
    for second in (9, 7, 5, 3):
        stage.send(events, Event("a", second, f"x timer:t{second}:{second + 1}"))
    assert said(stage, it.said) == [("a", f"x {n}") for n in (1, 2, 3, 4)]
    assert (stage.tally("it").late, stage.low_watermark("it")) == (0, at(3))
    stage.advance(low_watermark=at(20))
    assert said(stage, it.said)[4:] == [("a", f"t{second}@{second + 1}") for second in (3, 5, 7, 9)]
