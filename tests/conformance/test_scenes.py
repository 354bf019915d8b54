"""Scenes written once, played by the driver and on Spark: both must say the same."""

from __future__ import annotations

import operator

import pytest

import millstream as ms
from tests.conformance.conftest import Play
from tests.conformance.scenes import Event, Obedient, Relay, at, inject, said, seconds


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


class Aging(ms.Computation[dict[ms.Timestamp, int]]):
    """Counts events by the second for ten seconds, by ten seconds for a minute; says the counts that it has."""

    expiry = ms.Expiry(after=ms.MINUTE, roll_up={10 * ms.SECOND: 10 * ms.SECOND}, merge=operator.add)
    said: ms.Output[str]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state[record.timestamp] = self.state.get(record.timestamp, 0) + 1
        if record.value.does == "say":
            counts = sorted((int(when - at(0)) // 1_000_000, count) for when, count in self.state.items())
            self.said.produce(" ".join(f"{when}:{count}" for when, count in counts), timestamp=record.timestamp)


def test_state_entries_are_rolled_up_and_expire_also_where_nothing_comes(play: Play) -> None:
    topology, it = ms.Topology("aging"), Aging()
    events = inject(topology)
    topology.compute("it", it).reads(events)
    stage = play(topology)
    stage.send(events, *(Event(key, second) for key in ("a", "b") for second in (1, 2, 11)))
    stage.advance(low_watermark=at(20))
    stage.send(events, Event("a", 25, "say"))
    stage.crash(low_watermark=at(81))  # both become due while nothing runs
    assert (stage.keys("it"), stage.tally("it").fired) == (1, 0)
    stage.send(events, Event("a", 90, "say"))
    assert said(stage, it.said) == [("a", "0:2 11:1 25:1"), ("a", "20:1 90:1")]
    stage.advance(low_watermark=at(1000))
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


def test_two_computations_that_read_each_other_come_to_rest(play: Play) -> None:
    class Passes(ms.Computation[int]):
        """Takes one off and passes it on, under the key of the other."""

        left: ms.Output[int]

        def process_record(self, record: ms.Record[int]) -> None:
            self.state += 1
            if record.value:
                self.left.produce(record.value - 1, timestamp=record.timestamp, key=record.key.swapcase())

    topology = ms.Topology("scene")
    events, ping, pong = inject(topology), Passes(), Passes()
    topology.compute("ping", ping).reads(events.map(lambda event: len(event.does)), pong.left)
    topology.compute("pong", pong).reads(ping.left)
    stage = play(topology)
    stage.advance(low_watermark=at(1))
    stage.send(events, Event("a", 5, "xxxxx"))
    stage.crash(low_watermark=at(4))
    assert [(record.key, record.value) for record in stage.read(ping.left)] == [("A", 4), ("A", 2), ("A", 0)]
    assert [(record.key, record.value) for record in stage.read(pong.left)] == [("a", 3), ("a", 1)]
    assert (stage.tally("ping").received, stage.tally("pong").received) == (3, 3)
    assert (stage.low_watermark("ping"), stage.low_watermark("pong")) == (at(4), at(4))
    stage.finish()
    assert (stage.low_watermark("ping"), stage.low_watermark("pong")) == (ms.END_OF_TIME, ms.END_OF_TIME)


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


def test_the_same_value_again_is_a_record_in_its_own_right(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "x"), Event("a", 1, "x"))
    stage.send(events, Event("a", 1, "x"))
    assert said(stage, it.said) == [("a", "x 1"), ("a", "x 2"), ("a", "x 3")]
    assert stage.tally("it").received == 3


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


def test_a_computation_with_many_outputs(play: Play) -> None:
    class Sorts(ms.Computation[None]):
        words: ms.Output[str]
        lengths: ms.Output[int]
        letters: ms.Output[str]
        nothing: ms.Output[str]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.lengths.produce(len(record.value.does), timestamp=record.timestamp)
            for letter in record.value.does:
                self.letters.produce(letter, timestamp=record.timestamp, key=letter)
            self.words.produce(record.value.does, timestamp=record.timestamp)

    topology = ms.Topology("scene")
    events, it, relay = inject(topology), Sorts(), Relay()
    topology.compute("it", it).reads(events)
    topology.compute("relay", relay).reads(it.words, it.letters)
    stage = play(topology)
    stage.send(events, Event("a", 1, "ab"), Event("b", 2, "b"))
    assert {record.key: record.value for record in stage.read(it.lengths)} == {"a": 2, "b": 1}
    assert said(stage, it.letters) == [("a", "a"), ("b", "b"), ("b", "b")]
    assert stage.read(it.nothing) == []
    # Of one timestamp, in the order of production: the letter before the word.
    assert said(stage, relay.passed) == [("a", "a#1"), ("a", "ab#2"), ("b", "b#1"), ("b", "b#2"), ("b", "b#3")]


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


def test_one_record_becomes_thousands(play: Play) -> None:
    class Bursts(ms.Computation[None]):
        sparks: ms.Output[str]

        def process_record(self, record: ms.Record[Event]) -> None:
            for n in range(3000):
                self.sparks.produce(f"{n}", timestamp=record.timestamp, key=f"k{n % 1000}")

    topology = ms.Topology("scene")
    events, it, relay = inject(topology), Bursts(), Relay()
    topology.compute("it", it).reads(events)
    topology.compute("relay", relay).reads(it.sparks)
    stage = play(topology)
    stage.send(events, Event("a", 1))
    passed = stage.read(relay.passed)
    assert {record.value for record in passed} == {f"{n}#{n // 1000 + 1}" for n in range(3000)}
    assert (len(passed), stage.keys("relay"), stage.tally("relay").received) == (3000, 1000, 3000)
    stage.finish()
    assert stage.low_watermark("relay") == ms.END_OF_TIME


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
