"""Scenes written once, played by the driver and on Spark: both must say the same."""

from __future__ import annotations

import pytest

import millstream as ms
from tests.conformance.conftest import Play
from tests.conformance.scenes import Event, Obedient, Relay, at, inject, said


def alone(**told: object) -> tuple[ms.Topology, ms.Stream[Event], Obedient]:
    topology = ms.Topology("scene")
    errors = told.pop("errors", ms.Errors.FAIL)
    late = told.pop("late", None)
    events, it = inject(topology, **told), Obedient()
    policy = ms.Divert(it.late) if late == "divert" else late or ms.Late.PROCESS
    topology.compute("it", it, errors=errors).reads(events, late=policy)  # type: ignore[arg-type]
    return topology, events, it


def test_state_is_kept_from_epoch_to_epoch_and_given_up(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "x"), Event("b", 1, "y"))
    stage.send(events, Event("a", 2, "z"))
    assert said(stage, it.said) == [("a", "x 1"), ("a", "z 2"), ("b", "y 1")]
    assert stage.keys("it") == 2
    stage.send(events, Event("a", 3, "forget"), Event("b", 3, "forget"))
    assert stage.keys("it") == 0


def test_records_of_a_key_come_in_the_order_of_their_timestamps(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 3, "third"), Event("a", 1, "first"), Event("a", 2, "second"), Event("a", 2, "next"))
    assert [word for _, word in said(stage, it.said)] == ["first 1", "second 2", "next 3", "third 4"]


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
    stage.crash()
    stage.advance(now=ms.Timestamp(500_000_000))
    assert said(stage, it.said) == [("a", "soon@100"), ("a", "later@200")]


def test_overdue_timers_fire_after_a_crash(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:t:3"), Event("b", 1, "timer:t:4 x"))
    stage.crash()
    stage.advance(low_watermark=at(9))
    assert said(stage, it.said) == [("a", "t@3"), ("b", "x 1"), ("b", "t@4")]
    assert stage.tally("it").fired == 2


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


def test_each_reader_has_its_own_key(play: Play) -> None:
    topology = ms.Topology("scene")
    events, by_key, by_word = inject(topology), Obedient(), Obedient()
    topology.compute("by key", by_key).reads(events)
    topology.compute("by word", by_word).reads(events.by(lambda event: event.does[:1]))
    stage = play(topology)
    stage.send(events, Event("a", 1, "x1"), Event("b", 2, "x2"), Event("a", 3, "y"))
    assert said(stage, by_key.said) == [("a", "x1 1"), ("a", "y 2"), ("b", "x2 1")]
    assert said(stage, by_word.said) == [("x", "x1 1"), ("x", "x2 2"), ("y", "y 1")]


def test_a_chain_and_a_fan_in(play: Play) -> None:
    topology = ms.Topology("scene")
    events, first, second, relay = inject(topology), Obedient(), Obedient(), Relay()
    topology.compute("first", first).reads(events)
    topology.compute("second", second).reads(events)
    topology.compute("relay", relay).reads(first.said, second.said)
    stage = play(topology)
    stage.send(events, Event("a", 1, "x"))
    assert sorted(said(stage, relay.passed)) == [("a", "x 1#1"), ("a", "x 1#2")]
    stage.finish()
    assert stage.low_watermark("relay") == ms.END_OF_TIME


def test_a_cycle_comes_to_rest_and_its_low_watermark_moves(play: Play) -> None:
    class Countdown(ms.Computation[None]):
        left: ms.Output[int]

        def process_record(self, record: ms.Record[Event | int]) -> None:
            n = record.value if isinstance(record.value, int) else len(record.value.does)
            if n:
                self.left.produce(n - 1, timestamp=record.timestamp)

    topology = ms.Topology("scene")
    events, it = inject(topology), Countdown()
    topology.compute("it", it).reads(events, it.left)
    stage = play(topology)
    stage.send(events, Event("a", 1, "xxx"))
    assert [record.value for record in stage.read(it.left)] == [2, 1, 0]
    stage.advance(low_watermark=at(4))
    assert stage.low_watermark("it") == at(4)
    stage.finish()
    assert stage.low_watermark("it") == ms.END_OF_TIME


def test_dead_letters_leave_everything_else_as_it_was(play: Play) -> None:
    topology, events, it = alone(errors=ms.Errors.DEAD_LETTER)
    stage = play(topology)
    stage.send(events, Event("a", 1, "x"), Event("a", 2, "y timer:t:3 fail"), Event("a", 3, "z"))
    stage.finish()
    assert said(stage, it.said) == [("a", "x 1"), ("a", "z 2")]
    (letter,) = stage.dead_letters()
    assert (letter.computation, letter.key, letter.stream) == ("it", "a", "events")
    assert letter.reason.startswith("RuntimeError: told to fail")
    assert (stage.tally("it").dead, stage.tally("it").fired) == (1, 0)


def test_code_that_raises_stops_the_run_and_names_the_record(play: Play) -> None:
    topology, events, _ = alone()
    stage = play(topology)
    with pytest.raises(
        (ms.RecordError, ms.RunFailed), match=r"computation 'it', key 'a', record .* of stream 'events': RuntimeError: told to fail"
    ):
        stage.send(events, Event("a", 1, "fail"))


def test_keys_and_values_of_any_kind(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    keys = ["", " ", "ä", "日本", "🙂", "a/b", 'quote"', "new\nline", "x" * 2000]
    stage.send(events, *(Event(key, 1, "x") for key in keys))
    stage.send(events, *(Event(key, 2, "y") for key in keys))
    assert said(stage, it.said) == sorted(((key, word) for key in keys for word in ("x 1", "y 2")), key=lambda pair: pair[0])


def test_big_states_and_values(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    big = "x" * 300_000
    stage.send(events, Event("big", 1, big), Event("small", 1, "y"))
    stage.send(events, Event("big", 2, "z"), Event("small", 2, "w"))
    assert said(stage, it.said) == [("big", f"{big} 1"), ("big", "z 2"), ("small", "y 1"), ("small", "w 2")]


def test_a_far_future_promise_closes_everything_and_what_follows_is_late(play: Play) -> None:
    topology, events, it = alone(late=ms.Late.DROP)
    stage = play(topology)
    stage.send(events, Event("a", 1, "timer:t:3"))
    stage.advance(low_watermark=at(10**6))
    stage.send(events, Event("a", 2, "x"))
    assert said(stage, it.said) == [("a", "t@3")]
    assert stage.tally("it").dropped == 1


def test_many_keys_many_timers(play: Play) -> None:
    topology, events, _ = alone()
    stage = play(topology)
    stage.send(events, *(Event(f"k{n}", 1, f"timer:t:{n % 7 + 2}") for n in range(500)))
    stage.advance(low_watermark=at(4))
    assert stage.tally("it").fired == sum(n % 7 + 2 <= 4 for n in range(500))
    stage.finish()
    assert stage.tally("it").fired == 500
    assert stage.keys("it") == 0
