"""Timers: one a tag, on two clocks, in order, and what they hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import millstream as ms
from millstream.core import turn
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject

LOW_WATERMARK, WALL = ms.Clock.LOW_WATERMARK, ms.Clock.WALL


class Timers(ms.Computation[list[str]]):
    """Does what the function says with each record; writes down what fires, and can go on from there."""

    def __init__(
        self, record: Callable[[ms.Computation, ms.Record[Event]], None], timer: Callable[[ms.Computation, ms.Timer], None] | None = None
    ) -> None:
        self.on_record, self.on_timer = record, timer

    def process_record(self, record: ms.Record[Event]) -> None:
        self.on_record(self, record)

    def process_timer(self, timer: ms.Timer) -> None:
        self.state.append(f"{timer.tag}@{timer.at}")
        if self.on_timer is not None:
            self.on_timer(self, timer)


def at(*timers: tuple[str, int], clock: ms.Clock = LOW_WATERMARK) -> Callable[[ms.Computation, ms.Record[Event]], None]:
    """Sets these timers with every record."""

    def on_record(it: ms.Computation, record: ms.Record[Event]) -> None:
        for tag, when in timers:
            it.set_timer(tag, at=ms.Timestamp(when), clock=clock)

    return on_record


def by_word(it: ms.Computation, record: ms.Record[Event]) -> None:
    """The record says: "set tag at", "cancel tag", "wall tag at"."""
    match record.value.word.split():
        case ["set", tag, when]:
            it.set_timer(tag, at=ms.Timestamp(int(when)))
        case ["wall", tag, when]:
            it.set_timer(tag, at=ms.Timestamp(int(when)), clock=WALL)
        case ["cancel", tag]:
            it.cancel_timer(tag)


# When they fire.


def test_a_timer_fires_when_its_low_watermark_comes_and_not_before() -> None:
    it = Alone(Timers(at(("a", 10))))
    it.send(Event())
    it.advance(9, now=1_000)
    assert it.state() == []
    it.advance(10)
    assert it.state() == ["a@10"]
    it.advance(11)
    assert it.state() == ["a@10"]
    assert it.timers() == []


def test_a_wall_clock_timer_fires_when_its_time_comes_and_not_before() -> None:
    it = Alone(Timers(at(("a", 10), clock=WALL)))
    it.send(Event())
    it.advance(1_000, now=9)
    assert it.state() == []
    it.advance(now=10)
    assert it.state() == ["a@10"]


def test_a_timer_keeps_what_it_was_set_with() -> None:
    def on_record(it: ms.Computation, record: ms.Record[Event]) -> None:
        it.set_timer("plain", at=ms.Timestamp(10))
        it.set_timer("holds", at=ms.Timestamp(20), hold=ms.Timestamp(15))
        it.set_timer("wall", at=ms.Timestamp(30), clock=WALL)
        it.set_timer("wall holds", at=ms.Timestamp(40), clock=WALL, hold=ms.Timestamp(50))

    fired: list[ms.Timer] = []
    it = Alone(Timers(on_record, lambda it, timer: fired.append(timer)))
    it.send(Event())
    expected = [
        ms.Timer("plain", ms.Timestamp(10), LOW_WATERMARK, ms.Timestamp(10)),
        ms.Timer("holds", ms.Timestamp(20), LOW_WATERMARK, ms.Timestamp(15)),
        ms.Timer("wall", ms.Timestamp(30), WALL, None),
        ms.Timer("wall holds", ms.Timestamp(40), WALL, ms.Timestamp(50)),
    ]
    assert it.timers() == expected
    it.advance(100, now=100)
    assert fired == expected


def test_timers_fire_in_the_order_of_their_times_then_clock_then_tag() -> None:
    def on_record(it: ms.Computation, record: ms.Record[Event]) -> None:
        it.set_timer("w", at=ms.Timestamp(5), clock=WALL)
        at(("b", 5), ("d", 3), ("a", 5), ("c", 7))(it, record)

    it = Alone(Timers(on_record))
    it.send(Event())
    it.advance(10, now=10)
    assert it.state() == ["d@3", "a@5", "b@5", "w@5", "c@7"]


def test_a_timer_in_the_past_fires_in_the_same_epoch_after_the_records() -> None:
    seen = []

    def on_record(it: ms.Computation, record: ms.Record[Event]) -> None:
        seen.append(record.value.word)
        it.set_timer(record.value.word, at=ms.Timestamp(4))

    it = Alone(Timers(on_record, lambda it, timer: seen.append(f"fired {timer.tag}")))
    it.advance(5)
    before = it.epoch
    it.send(Event(at=7, word="a"), Event(at=8, word="b"))
    assert seen == ["a", "b", "fired a", "fired b"]
    assert it.epoch == before + 1


def test_a_wall_clock_timer_in_the_past_fires_in_the_same_epoch() -> None:
    it = Alone(Timers(at(("a", 5), clock=WALL)), now=6)
    it.send(Event())
    assert it.state() == ["a@5"]


def test_overdue_timers_all_fire_at_the_first_epoch_that_finds_them() -> None:
    it = Alone(Timers(by_word))
    it.send(Event("x", word="set a 10"), Event("y", word="set b 20"), Event("z", word="wall c 30"), Event("z", word="set d 40"))
    it.advance(35, now=35)
    assert [it.state(key) for key in "xyz"] == [["a@10"], ["b@20"], ["c@30"]]
    assert it.tally.fired == 3


def test_all_timers_fire_when_the_input_ends() -> None:
    it = Alone(Timers(at(("a", 10**18), ("b", 5))))
    it.send(Event())
    it.driver.finish()
    assert it.state() == ["b@5", f"a@{10**18}"]


def test_nothing_fires_at_the_end_of_time_itself() -> None:
    it = Alone(Timers(at(("never", ms.END_OF_TIME), ("once", 5))))
    it.send(Event())
    it.driver.finish()
    assert it.state() == ["once@5"]
    assert [timer.tag for timer in it.timers()] == ["never"]
    assert it.driver.low_watermark("it") == ms.END_OF_TIME


def test_a_timer_sees_the_low_watermark_that_fired_it_a_record_the_one_before() -> None:
    seen: list[tuple[str, int]] = []

    def on_record(it: ms.Computation, record: ms.Record[Event]) -> None:
        seen.append(("record", it.low_watermark))
        it.set_timer("t", at=record.timestamp)

    it = Alone(Timers(on_record, lambda it, timer: seen.append(("timer", it.low_watermark))))
    it.send(Event(at=5))
    it.advance(8)
    it.send(Event(at=9))
    it.advance(9)
    assert seen == [("record", ms.START_OF_TIME), ("timer", 8), ("record", 8), ("timer", 9)]


def test_a_timer_without_process_timer_is_an_error_that_says_so() -> None:
    class Forgetful(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.set_timer("t", at=ms.Timestamp(1))

    it = Alone(Forgetful())
    it.send(Event())
    with pytest.raises(ms.RecordError, match=r"timer 't' at 1970.*Forgetful set the timer 't' but has no process_timer; define it"):
        it.advance(1)


# One a tag.


def test_setting_a_timer_again_replaces_it() -> None:
    it = Alone(Timers(by_word))
    it.send(Event(word="set a 10"))
    it.send(Event(at=1, word="set a 20"))
    assert [(timer.tag, timer.at) for timer in it.timers()] == [("a", 20)]
    it.advance(15)
    assert it.state() == []
    it.advance(20)
    assert it.state() == ["a@20"]


def test_setting_it_again_replaces_the_clock_too() -> None:
    it = Alone(Timers(by_word))
    it.send(Event(word="set a 10"), Event(at=1, word="wall a 10"))
    it.advance(100)
    assert it.state() == []
    it.advance(now=10)
    assert it.state() == ["a@10"]


def test_a_cancelled_timer_does_not_fire() -> None:
    it = Alone(Timers(by_word))
    it.send(Event(word="set a 10"), Event(word="set b 10"))
    it.send(Event(at=1, word="cancel a"), Event(at=1, word="cancel never set"))
    it.advance(10)
    assert it.state() == ["b@10"]


def test_a_key_whose_last_timer_is_cancelled_takes_no_room() -> None:
    it = Alone(Timers(by_word))
    it.send(Event(word="set a 10"))
    assert it.driver.keys("it") == 1
    it.send(Event(at=1, word="cancel a"))
    assert it.driver.keys("it") == 0


def test_a_timer_replaced_or_cancelled_by_one_that_fires_before_it_does_not_fire() -> None:
    def on_timer(it: ms.Computation, timer: ms.Timer) -> None:
        if timer.tag == "first":
            it.cancel_timer("second")
            it.set_timer("third", at=ms.Timestamp(100))

    it = Alone(Timers(at(("first", 1), ("second", 2), ("third", 3)), on_timer))
    it.send(Event())
    it.advance(10)
    assert it.state() == ["first@1"]
    assert [(timer.tag, timer.at) for timer in it.timers()] == [("third", 100)]


# Set from a timer.


def test_a_timer_set_from_a_timer_fires_in_its_turn() -> None:
    def on_timer(it: ms.Computation, timer: ms.Timer) -> None:
        if timer.tag == "a":
            it.set_timer("between", at=ms.Timestamp(2))
            it.set_timer("later", at=ms.Timestamp(9))

    it = Alone(Timers(at(("a", 1), ("b", 3)), on_timer))
    it.send(Event())
    it.advance(5)
    assert it.state() == ["a@1", "between@2", "b@3"]
    it.advance(9)
    assert it.state() == ["a@1", "between@2", "b@3", "later@9"]


def test_a_timer_may_set_itself_again_and_again() -> None:
    def on_timer(it: ms.Computation, timer: ms.Timer) -> None:
        if timer.at < 500:
            it.set_timer(timer.tag, at=timer.at + 1 * ms.MICROSECOND)

    it = Alone(Timers(at(("a", 1)), on_timer))
    it.send(Event())
    it.advance(400)
    assert it.state() == [f"a@{number}" for number in range(1, 401)]
    it.advance(600)
    assert len(it.state()) == 500


@pytest.mark.parametrize("clock", [LOW_WATERMARK, WALL])
def test_endless_timers_in_the_past_are_an_error_that_says_so(clock: ms.Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "MAX_OWN_PAST", 100)
    fired = []

    def on_timer(it: ms.Computation, timer: ms.Timer) -> None:
        fired.append(timer)
        it.set_timer("a", at=ms.Timestamp(1), clock=clock)

    it = Alone(Timers(at(("a", 1), clock=clock), on_timer))
    it.send(Event())
    with pytest.raises(
        ms.TopologyError, match=r"'it' sets timers for key 'k' in the past again and again .*set them after self.low_watermark"
    ):
        it.advance(5, now=5)
    assert len(fired) == 101


def test_as_many_timers_in_the_past_as_are_allowed_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "MAX_OWN_PAST", 100)

    def on_timer(it: ms.Computation, timer: ms.Timer) -> None:
        if timer.at < 101:
            it.set_timer("a", at=timer.at + 1 * ms.MICROSECOND)

    it = Alone(Timers(at(("a", 1)), on_timer))
    it.send(Event())
    it.advance(1_000)
    assert len(it.state()) == 101


# What is refused.


@pytest.mark.parametrize("when", [1.5, "10", None, True])
def test_a_time_that_is_no_timestamp_is_refused(when: object) -> None:
    it = Alone(Timers(lambda it, record: it.set_timer("a", at=when)))  # type: ignore[arg-type]
    with pytest.raises(ms.RecordError, match=r"set_timer\('a'\): at is .*; give a ms.Timestamp"):
        it.send(Event())


@pytest.mark.parametrize("hold", [1.5, "10", True])
def test_a_hold_that_is_no_timestamp_is_refused(hold: object) -> None:
    it = Alone(Timers(lambda it, record: it.set_timer("a", at=ms.Timestamp(20), hold=hold)))  # type: ignore[arg-type]
    with pytest.raises(ms.RecordError, match=r"set_timer\('a'\): hold is .*; give a ms.Timestamp"):
        it.send(Event())


@pytest.mark.parametrize("tag", [5, None, b"a"])
def test_a_tag_that_is_no_text_is_refused(tag: object) -> None:
    it = Alone(Timers(lambda it, record: it.set_timer(tag, at=ms.Timestamp(20))))  # type: ignore[arg-type]
    with pytest.raises(ms.RecordError, match=r"set_timer: tag is .*; a tag is text: use str\(...\)"):
        it.send(Event())


def test_a_hold_after_its_timer_is_refused() -> None:
    it = Alone(Timers(lambda it, record: it.set_timer("a", at=ms.Timestamp(5), hold=ms.Timestamp(6))))
    with pytest.raises(ms.RecordError, match=r"set_timer\('a'\): hold .*06Z is after at .*05Z; hold what the timer will produce"):
        it.send(Event())


def test_a_hold_at_its_timer_is_not_refused() -> None:
    it = Alone(Timers(lambda it, record: it.set_timer("a", at=ms.Timestamp(5), hold=ms.Timestamp(5))))
    it.send(Event())
    assert [timer.hold for timer in it.timers()] == [5]


class Round(ms.Computation[int]):
    """Reads what it sends itself."""

    again: ms.Output[Event]

    def __init__(self, hold: int | None, clock: ms.Clock = LOW_WATERMARK) -> None:
        self.hold, self.clock = hold, clock

    def process_record(self, record: ms.Record[Event]) -> None:
        self.set_timer("a", at=ms.Timestamp(10), hold=None if self.hold is None else ms.Timestamp(self.hold), clock=self.clock)

    def process_timer(self, timer: ms.Timer) -> None:
        self.state += 1


def round_trip(computation: Round) -> Driver:
    topology = ms.Topology("round")
    events = inject(topology)
    topology.compute("round", computation).reads(events, computation.again)
    driver = Driver(topology)
    driver.send(events, Event())
    return driver


def test_on_a_cycle_a_hold_before_its_timer_is_refused() -> None:
    with pytest.raises(ms.RecordError, match=r"'round' is on a cycle, .*would wait for itself; leave out hold="):
        round_trip(Round(9))


@pytest.mark.parametrize(("hold", "clock"), [(None, LOW_WATERMARK), (10, LOW_WATERMARK), (9, WALL)])
def test_on_a_cycle_other_timers_fire(hold: int | None, clock: ms.Clock) -> None:
    driver = round_trip(Round(hold, clock))
    driver.advance(low_watermark=ms.Timestamp(10), now=ms.Timestamp(10))
    assert driver.state("round", "k") == 1
