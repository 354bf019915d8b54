"""Scenes of records, state, streams and failures, played on every stage: all must say the same."""

from __future__ import annotations

import operator

import pytest

import millstream as ms
from tests.conformance.conftest import Play
from tests.conformance.scenes import Event, Obedient, Relay, alone, at, inject, said


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


def test_each_reader_has_its_own_key(play: Play) -> None:
    topology = ms.Topology("scene")
    events, by_key, by_word = inject(topology), Obedient(), Obedient()
    topology.compute("by key", by_key).reads(events)
    topology.compute("by word", by_word).reads(events.by(lambda event: event.does[:1]))
    stage = play(topology)
    stage.send(events, Event("a", 1, "x1"), Event("b", 2, "x2"), Event("a", 3, "y"))
    assert said(stage, by_key.said) == [("a", "x1 1"), ("a", "y 2"), ("b", "x2 1")]
    assert said(stage, by_word.said) == [("x", "x1 1"), ("x", "x2 2"), ("y", "y 1")]


def test_a_record_comes_under_each_of_its_keys_and_under_none(play: Play) -> None:
    topology = ms.Topology("scene")
    events, it, again = inject(topology), Obedient(), Relay()
    topology.compute("it", it).reads(events.by_each(lambda event: sorted(event.does)))
    topology.compute("again", again).reads(it.said.by_each(lambda word: [word[0], "all"] if word[0] != "z" else []))
    stage = play(topology)
    stage.send(events, Event("a", 1, "xyx"), Event("b", 2, ""), Event("a", 3, "y"))
    stage.crash()
    stage.send(events, Event("a", 4, "z"))
    assert said(stage, it.said) == [("x", "xyx 1"), ("y", "xyx 1"), ("y", "y 2"), ("z", "z 1")]
    assert [key for key, _ in said(stage, again.passed)] == ["all", "all", "all", "x", "x", "y"]
    first, second = stage.tally("it"), stage.tally("again")
    assert (first.received, first.applied, first.unkeyed) == (5, 4, 1)
    assert (second.received, second.applied, second.unkeyed) == (7, 6, 1)
    assert len(stage.read(events)) == 4


class Witness(ms.Computation[int]):
    """Says under which key each record was produced, and numbers them."""

    said: ms.Output[str]

    def process_record(self, record: ms.Record[ms.Record[str]]) -> None:
        whole = record.value
        assert (whole.id, whole.timestamp, whole.late) == (record.id, record.timestamp, False)
        self.state += 1
        self.said.produce(f"{whole.key} {whole.value} {self.state}", timestamp=whole.timestamp)


class WitnessInOrder(Witness):
    order = ms.Order.EVENT_TIME


def test_a_reader_sees_the_own_keys_of_records_whatever_key_it_has_them_under(play: Play) -> None:
    topology = ms.Topology("scene")
    events, it, by, each, mapped = inject(topology), Obedient(), Witness(), WitnessInOrder(), Relay()
    topology.compute("it", it).reads(events)
    topology.compute("by", by).reads(events.map(lambda event: event.does).records.by(lambda record: record.key[:1]))
    topology.compute("each", each).reads(it.said.records.by_each(lambda record: [record.key[:1], record.value[:1]]))
    topology.compute("mapped", mapped).reads(it.said.records.map(lambda record: f"{record.key}:{record.value}").by(lambda word: word[-1]))
    stage = play(topology)
    stage.send(events, Event("a1", 3, "x"), Event("a2", 1, "y"), Event("b/1", 2, "x"))
    stage.crash()
    stage.send(events, Event("a1", 4, "y"), Event("", 5, "x"))
    stage.crash(low_watermark=at(4))
    stage.finish()
    assert said(stage, by.said) == [("", " x 1"), ("a", "a2 y 1"), ("a", "a1 x 2"), ("a", "a1 y 3"), ("b", "b/1 x 1")]
    assert said(stage, each.said) == [
        ("", " x 1 1"),
        *(("a", word) for word in ("a2 y 1 1", "a1 x 1 2", "a1 y 2 3")),
        ("b", "b/1 x 1 1"),
        *(("x", word) for word in ("b/1 x 1 1", "a1 x 1 2", " x 1 3")),
        *(("y", word) for word in ("a2 y 1 1", "a1 y 2 2")),
    ]
    assert said(stage, mapped.passed) == [
        *(("1", word) for word in ("a2:y 1#1", "b/1:x 1#2", "a1:x 1#3", ":x 1#4")),
        ("2", "a1:y 2#1"),
    ]
    assert len(stage.read(events)) == len(stage.read(it.said)) == 5


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


def test_the_same_value_again_is_a_record_in_its_own_right(play: Play) -> None:
    topology, events, it = alone()
    stage = play(topology)
    stage.send(events, Event("a", 1, "x"), Event("a", 1, "x"))
    stage.send(events, Event("a", 1, "x"))
    assert said(stage, it.said) == [("a", "x 1"), ("a", "x 2"), ("a", "x 3")]
    assert stage.tally("it").received == 3


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


class Sequence(ms.Computation[list[str]]):
    """Says what it has had so far, in the order in which it came."""

    said: ms.Output[str]

    def process_record(self, record: ms.Record[str]) -> None:
        self.state.append(record.value)
        self.said.produce(" ".join(self.state), timestamp=record.timestamp)


class SequenceInOrder(Sequence):
    order = ms.Order.EVENT_TIME


@pytest.mark.parametrize("reader", [Sequence, SequenceInOrder])
@pytest.mark.parametrize("swapped", [False, True])
def test_of_one_time_the_stream_that_is_read_first_comes_first(play: Play, swapped: bool, reader: type[Sequence]) -> None:
    topology = ms.Topology("scene")
    events, first, second, it = inject(topology), Obedient(), Obedient(), reader()
    topology.compute("first", first).reads(events)
    topology.compute("second", second).reads(events)
    streams = [first.said.map(lambda word: f"1{word[0]}"), second.said.map(lambda word: f"2{word[0]}")]
    topology.compute("it", it).reads(*(reversed(streams) if swapped else streams))
    stage = play(topology)
    stage.send(events, Event("a", 1, "x"), Event("a", 1, "y"), Event("a", 2, "z"))
    stage.advance(low_watermark=at(10))
    last = [word for _, word in said(stage, it.said)][-1]
    assert last == ("2x 2y 1x 1y 2z 1z" if swapped else "1x 1y 2x 2y 1z 2z")
