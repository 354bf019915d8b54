"""Scenes of timers on both clocks, played on every stage: all must say the same."""

from __future__ import annotations

import millstream as ms
from tests.conformance.conftest import Play
from tests.conformance.scenes import Event, Obedient, alone, at, inject, said, seconds


def test_timers_fire_in_order_once_the_low_watermark_is_there(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:late:5 timer:early:3 timer:never:99"))
    stage.advance(low_watermark=at(2))
    assert said(stage, it.said) == []
    stage.advance(low_watermark=at(5))
    assert said(stage, it.said) == [("a", "early@3"), ("a", "late@5")]
    assert stage.timers("it") == 1
    stage.advance(low_watermark=at(6))
    assert stage.tally("it").fired == 2


def test_a_timer_is_replaced_and_cancelled_by_its_tag(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:t:3 timer:u:3"))
    stage.send(events, Event("a", 2, "timer:t:6 cancel:u"))
    stage.advance(low_watermark=at(4))
    assert said(stage, it.said) == []
    stage.advance(low_watermark=at(6))
    assert said(stage, it.said) == [("a", "t@6")]
    stage.send(events, Event("b", 7, "wall:t:30 wall:u:30 timer:v:30"))
    stage.send(events, Event("b", 8, "wall:t:60 cancel:u wall:v:60"))
    stage.advance(low_watermark=at(30), now=seconds(50))
    assert said(stage, it.said) == [("a", "t@6")]
    stage.advance(now=seconds(60))
    assert said(stage, it.said) == [("a", "t@6"), ("b", "t@60"), ("b", "v@60")]
    assert stage.timers("it") == 0


def test_a_timer_in_the_past_fires_in_the_same_epoch(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.advance(low_watermark=at(10))
    stage.send(events, Event("a", 11, "timer:past:4 x"))
    assert said(stage, it.said) == [("a", "x 1"), ("a", "past@4")]


def test_a_timer_sets_the_next_one(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:chain:2"))
    stage.advance(low_watermark=at(4))
    assert said(stage, it.said) == [("a", "chain@2"), ("a", "chain@3"), ("a", "chain@4")]
    stage.finish()
    assert said(stage, it.said)[-1] == ("a", "chain@5")
    assert stage.timers("it") == 0


def test_wall_clock_timers_wait_for_the_wall_clock_only(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "wall:soon:100 wall:later:200"))
    stage.advance(low_watermark=at(1000))
    assert said(stage, it.said) == []
    stage.advance(now=ms.Timestamp(100_000_000))
    assert said(stage, it.said) == [("a", "soon@100")]
    stage.crash(now=ms.Timestamp(500_000_000))
    assert said(stage, it.said) == [("a", "soon@100"), ("a", "later@200")]


def test_timers_that_are_overdue_at_a_restart_fire(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:t:3"), Event("b", 1, "timer:t:4 x"))
    stage.crash(low_watermark=at(9))
    assert said(stage, it.said) == [("a", "t@3"), ("b", "x 1"), ("b", "t@4")]
    assert stage.tally("it").fired == 2


def test_many_keys_many_timers(play: Play) -> None:
    topology, events, _ = alone()
    stage = play(topology)
    stage.send(events, *(Event(f"k{n}", 1, f"timer:t:{n % 7 + 2}") for n in range(500)))
    stage.advance(low_watermark=at(4))
    assert stage.tally("it").fired == sum(n % 7 + 2 <= 4 for n in range(500))
    stage.finish()
    assert stage.tally("it").fired == 500
    assert stage.keys("it") == 0


def test_timers_of_the_same_time_fire_by_their_tags(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:c:3 timer:a:3 timer:b:3 timer:z:2"))
    stage.send(events, Event("b", 1, "wall:c:3 wall:a:3"))
    stage.send(events, Event("b", 2, "wall:b:3"))
    stage.advance(low_watermark=at(3), now=seconds(3))
    assert said(stage, it.said) == [
        *(("a", timer) for timer in ("z@2", "a@3", "b@3", "c@3")),
        *(("b", timer) for timer in ("a@3", "b@3", "c@3")),
    ]


def test_a_timer_sets_the_next_one_on_the_other_clock(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:swap:3"))
    stage.advance(low_watermark=at(5))
    assert (said(stage, it.said), stage.timers("it")) == ([("a", "swap@3")], 1)
    stage.advance(now=seconds(50))
    assert (said(stage, it.said), stage.timers("it")) == ([("a", "swap@3"), ("a", "swap@50")], 1)
    stage.advance(low_watermark=at(7))
    assert said(stage, it.said) == [("a", "swap@3"), ("a", "swap@50"), ("a", "back@7")]
    # When both clocks are there already, all of it is one epoch's work.
    stage.send(events, Event("b", 8, "timer:swap:3"))
    assert [word for key, word in said(stage, it.said) if key == "b"] == ["swap@3", "swap@50", "back@7"]


def test_a_wall_clock_that_jumps_does_not_take_the_epochs_back(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "wall:soon:100 wall:later:200"))
    stage.jump(seconds(150))
    assert said(stage, it.said) == [("a", "soon@100")]
    stage.jump(seconds(10))
    stage.send(events, Event("a", 2, "x wall:between:120"))
    assert said(stage, it.said) == [("a", "soon@100"), ("a", "x 1"), ("a", "between@120")]
    stage.jump(seconds(199))
    assert stage.timers("it") == 1
    stage.jump(seconds(10**6))
    assert said(stage, it.said)[-1] == ("a", "later@200")
    stage.jump(seconds(1))
    assert stage.tally("it").fired == 3


def test_on_a_cycle_a_hold_before_its_timer_is_refused_where_it_is_set(play: Play) -> None:
    topology = ms.Topology("scene")
    events, it = inject(topology), Obedient()
    topology.compute("it", it, errors=ms.Errors.DEAD_LETTER).reads(events, it.late)
    stage = play(topology)
    stage.send(events, Event("a", 5, "hold:t:8:5"), Event("a", 6, "hold:u:8:8 timer:v:9"))
    (letter,) = stage.dead_letters()
    assert "'it' is on a cycle" in letter.reason
    assert "would wait for itself; leave out hold=" in letter.reason
    stage.finish()
    assert said(stage, it.said) == [("a", "u@8"), ("a", "v@9")]
