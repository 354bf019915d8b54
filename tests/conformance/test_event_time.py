"""Scenes of computations in the order of event time, played on every stage: all must say the same."""

from __future__ import annotations

import millstream as ms
from tests.conformance.conftest import Play
from tests.conformance.scenes import Event, InOrder, Relay, alone, at, inject, said, seconds


def test_records_and_timers_come_in_one_sequence_whatever_came_when(play: Play) -> None:
    topology, events, it = alone(in_order=True)
    stage = play(topology)
    stage.send(events, Event("a", 9, "nine"), Event("a", 2, "timer:t:5 two"), Event("b", 4, "four"))
    assert said(stage, it.said) == []
    stage.send(events, Event("a", 5, "five"), Event("a", 3, "three timer:u:4"))
    stage.advance(low_watermark=at(5))
    # The timer of 5 is due with the low watermark, the record of 5 is not: another one of 5 may still come.
    wanted = ["two 1", "three 2", "u@4", "t@5"]
    assert said(stage, it.said) == [*(("a", word) for word in wanted), ("b", "four 1")]
    stage.send(events, Event("a", 5, "same"))
    stage.finish()
    wanted += ["five 3", "same 4", "nine 5"]
    assert said(stage, it.said) == [*(("a", word) for word in wanted), ("b", "four 1")]
    assert (stage.tally("it").received, stage.tally("it").applied, stage.tally("it").late) == (6, 6, 0)


def test_one_epoch_and_many_say_the_same(play: Play) -> None:
    topology, events, it = alone(in_order=True)
    stage = play(topology)
    sent = [Event("a", second, f"w{second} timer:t{second}:{second + 3}") for second in (7, 1, 4, 8, 2)]
    stage.send(events, *sent)
    stage.finish()
    whole = [word for _, word in said(stage, it.said)]
    assert whole == ["w1 1", "w2 2", "t1@4", "w4 3", "t2@5", "t4@7", "w7 4", "w8 5", "t7@10", "t8@11"]


def test_what_waits_holds_its_time_for_the_readers(play: Play) -> None:
    topology = ms.Topology("scene")
    events, it, relay = inject(topology), InOrder(), Relay()
    topology.compute("it", it).reads(events)
    topology.compute("relay", relay).reads(it.said)
    stage = play(topology)
    stage.send(events, Event("a", 7, "x"), Event("b", 9, "y"))
    stage.advance(low_watermark=at(6))
    assert (stage.low_watermark("it"), stage.low_watermark("relay")) == (at(6), at(6))
    stage.advance(low_watermark=at(8))
    assert said(stage, relay.passed) == [("a", "x 1#1")]
    assert stage.low_watermark("it") == at(8)
    assert stage.low_watermark("relay") <= at(8)
    stage.advance(low_watermark=at(20))
    stage.finish()
    assert said(stage, relay.passed) == [("a", "x 1#1"), ("b", "y 1#1")]
    assert stage.tally("relay").late == 0
    assert stage.low_watermark("relay") == ms.END_OF_TIME


def test_what_waits_survives_crashes_and_checkpoints(play: Play) -> None:
    topology, events, it = alone(in_order=True)
    stage = play(topology)
    for second in (30, 10, 20):
        stage.send(events, *(Event(f"k{number}", second + number, f"w{second}") for number in range(6)))
    stage.crash(low_watermark=at(14))
    stage.send(events, *(Event(f"k{number}", 25, "w25") for number in range(6)))
    stage.crash(low_watermark=at(27))
    stage.crash()
    stage.finish()
    assert said(stage, it.said) == [
        *((f"k{number}", word) for number in range(6) for word in ("w10 1", "w20 2", "w25 3", "w30 4")),
    ]
    assert stage.tally("it").applied == 24


def test_late_records_come_at_once_or_go_where_they_are_sent(play: Play) -> None:
    topology, events, it = alone(in_order=True)
    stage = play(topology)
    stage.send(events, Event("a", 20, "waits"))
    stage.advance(low_watermark=at(10))
    stage.send(events, Event("a", 4, "b"), Event("a", 3, "a timer:past:2"))
    assert said(stage, it.said) == [("a", "late a 1"), ("a", "past@2"), ("a", "late b 2")]
    stage.finish()
    assert said(stage, it.said)[3:] == [("a", "waits 3")]
    assert (stage.tally("it").late, stage.tally("it").applied) == (2, 3)


def test_late_records_are_diverted_at_once(play: Play) -> None:
    topology, events, it = alone(in_order=True, late="divert")
    stage = play(topology)
    stage.send(events, Event("a", 20, "waits"))
    stage.advance(low_watermark=at(10))
    stage.send(events, Event("a", 4, "late"), Event("a", 10, "not"))
    assert [record.value.does for record in stage.read(it.late)] == ["late"]
    stage.finish()
    assert said(stage, it.said) == [("a", "not 1"), ("a", "waits 2")]


def test_wall_clock_timers_do_not_wait_for_records(play: Play) -> None:
    topology, events, it = alone(in_order=True)
    stage = play(topology)
    stage.send(events, Event("a", 1, "wall:t:100 x"), Event("a", 50, "y"))
    stage.advance(low_watermark=at(2))
    stage.advance(now=seconds(100))
    assert said(stage, it.said) == [("a", "x 1"), ("a", "t@100")]
    stage.finish()
    assert said(stage, it.said)[2:] == [("a", "y 2")]


def test_an_error_undoes_its_own_record_and_the_sequence_goes_on(play: Play) -> None:
    topology, events, it = alone(in_order=True, errors=ms.Errors.DEAD_LETTER)
    stage = play(topology)
    stage.send(events, Event("a", 3, "c"), Event("a", 2, "lost timer:t:9 fail"), Event("a", 1, "a"))
    stage.finish()
    assert said(stage, it.said) == [("a", "a 1"), ("a", "c 2")]
    (letter,) = stage.dead_letters()
    assert (letter.computation, letter.stream, letter.key) == ("it", "events", "a")
    assert (stage.tally("it").dead, stage.timers("it")) == (1, 0)


def test_a_silent_input_holds_up_the_other(play: Play) -> None:
    topology = ms.Topology("scene")
    left, right, it = inject(topology, "left"), inject(topology, "right"), InOrder()
    topology.compute("it", it).reads(left, right)
    stage = play(topology)
    stage.send(left, Event("a", 5, "left"))
    stage.advance(low_watermark=at(10), of=left)
    assert said(stage, it.said) == []
    stage.send(right, Event("a", 4, "right"))
    stage.advance(low_watermark=at(6), of=right)
    assert said(stage, it.said) == [("a", "right 1"), ("a", "left 2")]
    stage.finish()
