"""The driver that tests of users stand on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject


class Echo(ms.Computation[int]):
    words: ms.Output[str]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1
        self.words.produce(record.value.word, timestamp=record.timestamp)


NO_PRODUCER = r"^<output Echo.words> is not a stream of this topology; place its computation with topology.compute\(\.\.\.\)$"
ELSEWHERE = r"^the stream 'events' was injected into another topology; give what inject of this one returned$"


class Listen(ms.Computation[list[str]]):
    def process_record(self, record: ms.Record[str]) -> None:
        self.state.append(record.value)


def test_send_goes_to_injected_streams_only() -> None:
    echo = Echo()
    it = Alone(echo)
    with pytest.raises(ms.TopologyError, match=r"^send goes to a stream made by inject; put goes to any$"):
        it.driver.send(echo.words, "x")


@pytest.mark.parametrize("change", [lambda it: it.events.by(str), lambda it: it.events.map(str)], ids=["by", "map"])
def test_a_stream_is_read_itself(change: Any) -> None:
    it = Alone(Echo())
    with pytest.raises(ms.TopologyError, match=r"^by\(...\) and map\(...\) are how a computation reads a stream; name the stream itself$"):
        it.driver.read(change(it))


def test_a_stream_of_no_producer_cannot_be_read_or_put_to() -> None:
    it = Alone(Echo())
    with pytest.raises(ms.TopologyError, match=NO_PRODUCER):
        it.driver.read(Echo().words)
    with pytest.raises(ms.TopologyError, match=NO_PRODUCER):
        it.driver.put(Echo().words, "x", key="k", timestamp=ms.Timestamp(1))


def test_only_an_injected_stream_has_a_clock_of_its_own() -> None:
    echo = Echo()
    it = Alone(echo)
    with pytest.raises(ms.TopologyError, match=r"^only a stream made by inject has a clock of its own; the others follow$"):
        it.driver.advance(low_watermark=ms.Timestamp(5), of=echo.words)
    with pytest.raises(ms.TopologyError, match=r"^only a stream made by inject"):
        it.driver.finish(of=echo.words)
    assert it.driver.low_watermark("it") == ms.START_OF_TIME


def test_what_is_sent_can_be_read_back() -> None:
    it = Alone(Echo())
    it.send(Event("a", 2, "x"), Event("b", 1, "y"))
    assert it.driver.read(it.events) == [
        ms.Record("a", Event("a", 2, "x"), ms.Timestamp(2)),
        ms.Record("b", Event("b", 1, "y"), ms.Timestamp(1)),
    ]


def test_put_goes_to_any_stream_as_if_its_producer_had_made_it() -> None:
    topology = ms.Topology("test")
    events, echo = inject(topology), Echo()
    topology.compute("echo", echo).reads(events)
    topology.compute("listen", Listen()).reads(echo.words)
    driver = Driver(topology)
    driver.put(echo.words, "made up", key="a", timestamp=ms.Timestamp(1))
    driver.put(events, Event(word="x"), key="a", timestamp=ms.Timestamp(2))
    assert driver.state("listen", "a") == ["made up", "x"]
    assert driver.read(echo.words) == [ms.Record("a", "made up", ms.Timestamp(1)), ms.Record("a", "x", ms.Timestamp(2))]
    assert driver._ledger.produced == {"echo.words": 2}


def test_what_nobody_reads_is_committed_and_not_kept_waiting() -> None:
    echo = Echo()
    it = Alone(echo)
    before = it.epoch
    it.driver.put(echo.words, "x", key="a", timestamp=ms.Timestamp(1))
    assert it.epoch == before + 1
    assert it.driver._ledger.waiting == {}
    assert it.driver.epoch() is False
    assert [record.value for record in it.driver.read(echo.words)] == ["x"]


def test_nothing_sent_is_nothing_due() -> None:
    it = Alone(Echo())
    before = it.epoch
    it.send()
    assert it.epoch == before


def test_clocks_that_are_told_an_earlier_time_stay() -> None:
    it = Alone(Echo())
    assert it.driver.low_watermark("it") == ms.START_OF_TIME
    it.advance(10, now=10)
    it.advance(5, now=5)
    assert it.driver.low_watermark("it") == 10
    assert it.driver._ledger.now == 10


def test_keys_without_state_or_timers_are_not_counted() -> None:
    it = Alone(Echo())
    assert it.driver.keys("it") == 0
    it.send(Event("a"), Event("b"), Event("b"))
    assert it.driver.keys("it") == 2
    assert (it.state("a"), it.state("b"), it.state("c")) == (1, 2, 0)
    assert it.timers("a") == []


# What an injector refuses.


def refusing(**options: Any) -> tuple[ms.Topology, ms.Stream[Event]]:
    topology = ms.Topology("test")
    events = topology.inject(
        "events",
        ms.values([], Event),
        key=lambda event: event.key if event.word != "bad" else None,  # type: ignore[arg-type, return-value]
        timestamp=lambda event: ms.Timestamp(event.at),
        low_watermark=ms.BoundedDisorder(0 * ms.SECOND),
        **options,
    )
    topology.compute("it", Echo()).reads(events)
    return topology, events


def test_what_is_refused_raises_and_nothing_is_sent() -> None:
    topology, events = refusing()
    driver = Driver(topology)
    with pytest.raises(ms.RecordError, match=r"^injector 'events', Event\(.*\): its key is None; a key is text"):
        driver.send(events, Event("a"), Event(word="bad"))
    assert (driver.read(events), driver.dead_letters()) == ([], [])


def test_what_is_refused_goes_to_the_dead_letters_if_the_injector_was_told_so() -> None:
    topology, events = refusing(errors=ms.Errors.DEAD_LETTER)
    driver = Driver(topology)
    driver.send(events, Event("a"))
    driver.send(events, Event(word="bad"), Event("b"), Event(word="bad", at=5))
    assert [record.key for record in driver.read(events)] == ["a", "b"]
    assert driver.dead_letters() == [
        ms.DeadLetter(
            "events", None, None, "events/0/1", "its key is None; a key is text: return str(...)", '{"key":"k","at":0,"word":"bad"}'
        ),
        ms.DeadLetter(
            "events", None, None, "events/0/3", "its key is None; a key is text: return str(...)", '{"key":"k","at":5,"word":"bad"}'
        ),
    ]
    assert driver.tally("it").received == 2
    with pytest.raises(ms.TopologyError, match=r"^send: <object .*> cannot be kept: .*; give what the stream carries$"):
        driver.send(events, object())  # type: ignore[arg-type]


def test_the_dead_letters_of_an_injector_reach_who_reads_them() -> None:
    class Undertaker(ms.Computation[list[str]]):
        def process_record(self, record: ms.Record[ms.DeadLetter]) -> None:
            self.state.append(record.value.stream)

    topology, events = refusing(errors=ms.Errors.DEAD_LETTER)
    topology.compute("undertaker", Undertaker()).reads(topology.dead_letters)
    driver = Driver(topology)
    driver.send(events, Event(word="bad"))
    assert driver.state("undertaker", "") == ["events"]
    driver.advance(low_watermark=ms.Timestamp(10**15))
    driver.send(events, Event(word="bad"))
    assert driver.tally("undertaker").late == 0  # a letter is written when the value comes, and nobody has told the time


@pytest.mark.parametrize("errors", ms.Errors)
def test_a_far_future_is_set_aside_by_a_driver_that_was_told_the_time(errors: ms.Errors) -> None:
    topology, events = refusing(errors=errors, ahead=ms.MINUTE)
    driver = Driver(topology, now=ms.Timestamp(10))
    driver.send(events, Event("a", 60_000_010), Event("b", 60_000_011))
    (letter,) = driver.dead_letters()
    assert letter.reason.startswith("its timestamp 1970-01-01T00:01:00.000011Z is more than 60 s after the clock")
    driver.advance(now=ms.Timestamp(11))
    driver.send(events, Event("b", 60_000_011))
    assert [record.key for record in driver.read(events)] == ["a", "b"]


def test_a_driver_that_was_not_told_the_time_believes_any() -> None:
    topology, events = refusing()
    driver = Driver(topology)
    driver.advance(now=ms.Timestamp(10))
    driver.send(events, Event("a", 10**15))
    assert [record.key for record in driver.read(events)] == ["a"]


# What can be seen.


def test_a_tally_says_where_the_records_went() -> None:
    it = Alone(Echo(), late=ms.Late.DROP)
    assert it.driver.tally("it").received == 0
    it.advance(5)
    it.send(Event(at=4), Event(at=5))
    tally = it.driver.tally("it")
    assert (tally.received, tally.applied, tally.late, tally.dropped, tally.produced) == (2, 1, 1, 1, 1)


@pytest.mark.parametrize(
    "ask", [lambda d: d.tally("that"), lambda d: d.keys("that"), lambda d: d.state("that", "k"), lambda d: d.timers("that", "k")]
)
def test_a_computation_that_is_not_there_cannot_be_asked_for(ask: Callable[[Driver], object]) -> None:
    with pytest.raises(ms.TopologyError, match=r"^there is no computation called 'that'; there is 'it'$"):
        ask(Alone(Echo()).driver)


def test_a_computation_can_be_asked_for_by_itself() -> None:
    echo = Echo()
    it = Alone(echo)
    it.send(Event("a", 1))
    count: int = it.driver.state(echo, "a")
    assert (count, it.driver.keys(echo), it.driver.tally(echo).received, it.driver.timers(echo, "a")) == (1, 1, 1, [])
    with pytest.raises(ms.TopologyError, match=r"^this Echo is not in the topology; ask the one that was given to compute$"):
        it.driver.state(Echo(), "a")


@pytest.mark.parametrize(
    "ask", [lambda d, s: d.send(s, Event("a", 1)), lambda d, s: d.read(s), lambda d, s: d.finish(of=s)], ids=["send", "read", "finish"]
)
def test_a_stream_of_another_topology_is_refused(ask: Callable[[Driver, Any], object]) -> None:
    with pytest.raises(ms.TopologyError, match=ELSEWHERE):
        ask(Alone(Echo()).driver, Alone(Echo()).events)


def test_a_misspelt_output_has_no_low_watermark() -> None:
    driver = Alone(Echo()).driver
    assert driver.low_watermark("it.words") == ms.START_OF_TIME
    with pytest.raises(
        ms.TopologyError,
        match=r"^there is no computation and no stream called 'it.wrds'; there is 'it', 'events', 'it.words', 'dead letters'$",
    ):
        driver.low_watermark("it.wrds")


def test_low_watermarks_are_asked_for_by_name_or_by_what_has_them() -> None:
    echo = Echo()
    it = Alone(echo)
    it.advance(5)
    for of in ("it", echo, "it.words", echo.words, "events", it.events, "dead letters"):
        assert it.driver.low_watermark(of) == 5, of


def test_what_has_the_name_of_something_else_keeps_its_own_low_watermark() -> None:
    topology, one, other = ms.Topology("test"), Echo(), Listen()
    first, second = inject(topology, "a"), inject(topology, "b")
    topology.compute("a", one).reads(first, second)
    topology.compute("a.words", other).reads(first.map(lambda event: event.word))
    driver = Driver(topology)
    driver.advance(low_watermark=ms.Timestamp(50), of=first)
    driver.advance(low_watermark=ms.Timestamp(20), of=second)
    for of, want in [(one, 20), (other, 50), (first, 50), (second, 20), (one.words, 20), ("a", 20), ("a.words", 50), ("b", 20)]:
        assert driver.low_watermark(of) == want, of  # type: ignore[arg-type]


def test_a_cycle_that_never_comes_to_rest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Round(ms.Computation):
        again: ms.Output[Event]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.again.produce(record.value, timestamp=record.timestamp)

    topology, turning = ms.Topology("test"), Round()
    events = inject(topology)
    topology.compute("round", turning).reads(events, turning.again)
    monkeypatch.setattr("millstream.testing.driver.MAX_EPOCHS", 50)
    driver = Driver(topology)
    with pytest.raises(ms.TopologyError, match=r"^50 epochs in which no low watermark moved, .*: a cycle .*; let a computation on it end"):
        driver.send(events, Event())


def test_a_cycle_whose_low_watermark_moves_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clockwork(ms.Computation[int]):
        again: ms.Output[Event]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.set_timer("tick", at=record.timestamp + ms.SECOND)

        def process_timer(self, timer: ms.Timer) -> None:
            self.state += 1
            if timer.at < 100 * ms.SECOND:
                self.set_timer("tick", at=timer.at + ms.SECOND)

    topology, clockwork = ms.Topology("test"), Clockwork()
    events = inject(topology)
    topology.compute("clockwork", clockwork).reads(events, clockwork.again)
    monkeypatch.setattr("millstream.testing.driver.MAX_EPOCHS", 50)
    driver = Driver(topology)
    driver.send(events, Event())
    driver.advance(low_watermark=ms.Timestamp(100 * ms.SECOND))
    assert (driver.state(clockwork, "k"), driver._ledger.number > 50) == (100, True)


def test_an_injector_that_finds_its_key_in_a_column_is_put_to_not_sent_to() -> None:
    topology = ms.Topology("test")
    policy = ms.BoundedDisorder(ms.SECOND)
    events = topology.inject("events", ms.files("*.parquet", Event), key="who", timestamp=lambda event: event.at, low_watermark=policy)
    topology.compute("it", Echo()).reads(events)
    driver = Driver(topology)
    with pytest.raises(ms.TopologyError, match=r"^send: 'events' finds 'who' in a column, .*; use put\(stream, value"):
        driver.send(events, Event())
    driver.put(events, Event(), key="a", timestamp=ms.Timestamp(1))
    assert driver.state("it", "a") == 1


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda it, echo: it.driver.put(echo.words, object(), key="a", timestamp=ms.Timestamp(1)), "put: <object .*> cannot be kept: "),
        (lambda it, echo: Driver(it.topology, now=datetime.now(UTC)), "now is datetime"),
        (lambda it, echo: it.driver.advance(now=datetime.now(UTC)), "now is datetime"),
        (lambda it, echo: it.driver.advance(low_watermark=1.5), "low_watermark is 1.5; give a ms.Timestamp"),
        (lambda it, echo: it.driver.put(echo.words, "x", key="a", timestamp=datetime.now(UTC)), "timestamp is datetime"),
        (
            lambda it, echo: it.driver.put(echo.words, "x", key="a", timestamp=ms.END_OF_TIME),
            "put: timestamp is .*, out of range for a record",
        ),
        (
            lambda it, echo: it.driver.put(echo.words, "x", key=5, timestamp=ms.Timestamp(1)),
            r"put: key is 5; a key is text: use str\(...\)",
        ),
        (lambda it, echo: it.driver.read("it.words"), "'it.words' is not a stream; give what inject returned, or an output"),
    ],
)
def test_what_the_driver_cannot_take_is_said_and_changes_nothing(ask: Callable[[Any, Echo], object], message: str) -> None:
    echo = Echo()
    it = Alone(echo)
    with pytest.raises(ms.TopologyError, match=message):
        ask(it, echo)
    assert (it.driver.low_watermark("it"), it.driver.read(echo.words)) == (ms.START_OF_TIME, [])
    it.send(Event("a", 1))
    assert it.driver.tally("it").received == 1


def test_what_is_held_together_inside_is_held_until_the_outermost_ends() -> None:
    it = Alone(Echo())
    with it.driver.together():
        with it.driver.together():
            it.send(Event("a", 1))
        it.send(Event("a", 2))
        assert it.driver.tally("it").received == 0
    assert it.driver.tally("it").received == 2


def test_what_is_sent_together_comes_in_one_epoch() -> None:
    """So it is sorted, and nothing is late: what was promised together with it holds only afterwards."""
    it = Alone(Listen(), late=ms.Late.DROP, read=lambda events: events.map(lambda event: event.word))
    with it.driver.together():
        it.send(Event("a", 7, "later"))
        it.advance(5)
        it.send(Event("a", 3, "sooner"))
        assert it.driver.tally("it").received == 0
    assert it.driver.state("it", "a") == ["sooner", "later"]
    it.send(Event("a", 3, "late"))
    assert it.driver.tally("it").dropped == 1


def test_records_of_one_timestamp_come_in_the_order_of_production_over_all_streams() -> None:
    class Both(ms.Computation[None]):
        one: ms.Output[str]
        other: ms.Output[str]

        def process_record(self, record: ms.Record[Event]) -> None:
            for stream, word in ((self.one, "first"), (self.other, "second"), (self.one, "third")):
                stream.produce(word, timestamp=record.timestamp)

    topology, both = ms.Topology("test"), Both()
    events = inject(topology)
    topology.compute("both", both).reads(events)
    topology.compute("listen", Listen()).reads(both.other, both.one)
    driver = Driver(topology)
    driver.send(events, Event())
    assert driver.state("listen", "k") == ["first", "second", "third"]


def test_the_description_shows_the_end_of_each_stream_and_cuts_long_values() -> None:
    it = Alone(Echo())
    it.send(*(Event(at=n, word="x" * 500) for n in range(7)))
    lines = it.driver.describe().splitlines()
    assert lines[0] == "topology 'test' after epoch 2, wall clock 1970-01-01T00:00:00Z"
    words = lines.index("stream 'it.words': 7 records")
    assert lines[words + 1 :] == [f"    1970-01-01T00:00:00.{n:06d}Z 'k': \"{'x' * 199}…" for n in range(2, 7)]
