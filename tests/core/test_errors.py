"""Code that raises, values that cannot be read and keys that cannot be found: stop, or set aside and go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject, tally

DEAD_LETTER = ms.Errors.DEAD_LETTER


class Picky(ms.Computation[list[str]]):
    """Does everything that a computation can do, then raises if it does not like the word."""

    words: ms.Output[str]

    def process_record(self, record: ms.Record[Event]) -> None:
        word = record.value.word
        self.state.append(word)
        self.set_timer(word, at=ms.Timestamp(100))
        self.cancel_timer("first")
        self.words.produce(word, timestamp=record.timestamp)
        if word.startswith("bad"):
            raise ValueError(f"I do not like {word}")

    def process_timer(self, timer: ms.Timer) -> None:
        self.state.append(f"fired {timer.tag}")
        self.set_timer("again", at=ms.Timestamp(200))
        self.words.produce(f"fired {timer.tag}", timestamp=timer.at)
        if timer.tag.startswith("sour"):
            raise KeyError(timer.tag)


def words(it: Alone, computation: Picky) -> list[str]:
    return [record.value for record in it.driver.read(computation.words)]


# Stop.


def test_fail_names_the_computation_the_key_the_record_and_its_stream() -> None:
    it = Alone(Picky())
    it.send(Event("clé", 0, "good"))
    with pytest.raises(ms.RecordError) as caught:
        it.send(Event("other", 0, "fine"), Event("clé", 1, "bad"))
    error = caught.value
    assert error.where == "computation 'it', key 'clé', record events/0/2 of stream 'events'"
    assert error.cause == "ValueError: I do not like bad"
    assert str(error).startswith(f"{error.where}: {error.cause}\n\nTraceback")
    assert isinstance(error.__cause__, ValueError)


def test_the_traceback_is_the_users_own() -> None:
    with pytest.raises(ms.RecordError) as caught:
        Alone(Picky()).send(Event(word="bad"))
    trace = caught.value.trace
    assert "process_record" in trace
    assert __file__ in trace
    assert "millstream/core" not in trace
    assert trace.endswith("ValueError: I do not like bad")


def test_fail_names_the_timer() -> None:
    it = Alone(Picky())
    it.send(Event(word="sour"))
    with pytest.raises(ms.RecordError) as caught:
        it.advance(100)
    assert caught.value.where == "computation 'it', key 'k', timer 'sour' at 1970-01-01T00:00:00.000100Z"
    assert caught.value.cause == "KeyError: 'sour'"
    assert "process_timer" in caught.value.trace


def test_an_error_is_kept_whole_when_it_travels() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(ms.RecordError("where", "cause", "trace")))
    assert (error.where, error.cause, error.trace) == ("where", "cause", "trace")
    assert str(error) == "where: cause\n\ntrace"
    assert str(ms.RecordError("where", "cause")) == "where: cause"


# Set aside and go on.


def test_a_dead_letter_says_where_why_and_what() -> None:
    it = Alone(Picky(), errors=DEAD_LETTER)
    it.send(Event(word="good"))
    it.send(Event(at=1, word="fine"), Event(at=2, word="bad"))
    (letter,) = it.driver.dead_letters()
    assert (letter.stream, letter.computation, letter.key, letter.id) == ("events", "it", "k", "events/0/2")
    assert letter.value == '{"key":"k","at":2,"word":"bad"}'
    assert letter.reason.startswith("ValueError: I do not like bad\nTraceback")
    assert "process_record" in letter.reason


def test_a_dead_letter_undoes_its_own_record_and_no_other() -> None:
    computation = Picky()
    it = Alone(computation, errors=DEAD_LETTER)
    it.send(Event(at=0, word="first"), Event("other", 0, "fine"))
    it.send(Event(at=1, word="bad"), Event(at=2, word="bad too"), Event("other", 1, "bad"))
    assert it.state() == ["first"]
    assert [timer.tag for timer in it.timers()] == []
    it.send(Event(at=3, word="good"), Event(at=4, word="bad"), Event(at=5, word="better"))
    assert it.state() == ["first", "good", "better"]
    assert [timer.tag for timer in it.timers()] == ["better", "good"]
    assert it.state("other") == ["fine"]
    assert sorted(words(it, computation)) == ["better", "fine", "first", "good"]
    assert len(it.driver.dead_letters()) == 4
    tally = it.tally
    assert (tally.received, tally.applied, tally.dead, tally.produced) == (8, 4, 4, 4)


def test_a_dead_letter_undoes_timers_that_were_set_replaced_or_cancelled() -> None:
    class Timed(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None:
            if record.value.word == "set":
                self.set_timer("kept", at=ms.Timestamp(100))
                self.set_timer("moved", at=ms.Timestamp(110))
                return
            self.cancel_timer("kept")
            self.set_timer("moved", at=ms.Timestamp(120))
            self.set_timer("new", at=ms.Timestamp(1))
            raise ValueError

        def process_timer(self, timer: ms.Timer) -> None:
            self.state += 1

    it = Alone(Timed(), errors=DEAD_LETTER)
    it.advance(5)
    it.send(Event(at=10, word="set"))
    it.send(Event(at=11, word="bad"))
    assert [(timer.tag, timer.at) for timer in it.timers()] == [("kept", 100), ("moved", 110)]
    assert it.state() == 0
    it.advance(100)
    assert it.state() == 1


def test_a_dead_letter_of_a_timer_undoes_what_the_timer_did() -> None:
    computation = Picky()
    it = Alone(computation, errors=DEAD_LETTER)
    it.send(Event(at=0, word="sour"), Event(at=1, word="sweet"))
    it.advance(100)
    assert it.state() == ["sour", "sweet", "fired sweet"]
    assert [timer.tag for timer in it.timers()] == ["again"]
    assert words(it, computation) == ["sour", "sweet", "fired sweet"]
    (letter,) = it.driver.dead_letters()
    assert (letter.stream, letter.computation, letter.key, letter.id, letter.value) == ("timers of it", "it", "k", "sour@100", "")
    assert letter.reason.startswith("KeyError: 'sour'")
    assert (it.tally.fired, it.tally.dead) == (2, 0)


def test_a_state_that_cannot_be_kept_is_an_error_of_the_record_that_made_it() -> None:
    class Keeps(ms.Computation[Any]):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.state = object() if record.value.word == "bad" else record.value.word

    it = Alone(Keeps(), errors=DEAD_LETTER)
    it.send(Event(at=0, word="good"), Event(at=1, word="bad"))
    assert it.state() == "good"
    assert [letter.id for letter in it.driver.dead_letters()] == ["events/0/1"]


def test_a_timer_whose_state_cannot_be_kept_is_a_dead_letter_too() -> None:
    class Keeps(ms.Computation[Any]):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.state = "good"
            self.set_timer("t", at=ms.Timestamp(1))

        def process_timer(self, timer: ms.Timer) -> None:
            self.state = object()

    it = Alone(Keeps(), errors=DEAD_LETTER)
    it.send(Event())
    it.advance(1)
    assert it.state() == "good"
    assert [letter.id for letter in it.driver.dead_letters()] == ["t@1"]


def test_dead_letters_can_be_read_like_any_stream() -> None:
    class Undertaker(ms.Computation[list[str]]):
        def process_record(self, record: ms.Record[ms.DeadLetter]) -> None:
            self.state.append(record.value.id)

    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("picky", Picky(), errors=DEAD_LETTER).reads(events)
    topology.compute("undertaker", Undertaker()).reads(topology.dead_letters.by(lambda letter: letter.stream))
    driver = Driver(topology)
    driver.send(events, Event(word="bad"), Event(word="good"))
    assert driver.state("undertaker", "events") == ["events/0/0"]
    assert [record.value.key for record in driver.read(topology.dead_letters)] == ["k"]


# What cannot be read.


class Count(ms.Computation[int]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1


def test_a_value_that_cannot_be_decoded_goes_by_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can make one; code that declared another type may have left it."""
    monkeypatch.setattr("millstream.testing.driver._check_type", lambda *_: None)
    it = Alone(Count())
    with pytest.raises(ms.RecordError, match=r"record events/0/0 of stream 'events': ValidationError: Expected `object`, got `int`"):
        it.driver.put(it.events, 5, key="k", timestamp=ms.Timestamp(0))  # type: ignore[arg-type]
    it = Alone(Count(), errors=DEAD_LETTER)
    it.driver.put(it.events, 5, key="k", timestamp=ms.Timestamp(0))  # type: ignore[arg-type]
    it.send(Event())
    assert [(letter.value, letter.reason.splitlines()[0]) for letter in it.driver.dead_letters()] == [
        ("5", "ValidationError: Expected `object`, got `int`")
    ]
    assert it.state() == 1


def missing(event: Event) -> str:
    return {"here": "found"}[event.word]


def number(event: Event) -> str:
    return 5 if event.word == "away" else "found"  # type: ignore[return-value]


@pytest.mark.parametrize(("key", "reason"), [(missing, "KeyError: 'away'"), (number, "by(...) returned 5; a key is text: return str(...)")])
def test_a_key_that_cannot_be_extracted_goes_by_the_policy(key: Callable[[Event], str], reason: str) -> None:
    it = Alone(Count(), read=lambda events: events.by(key))
    with pytest.raises(ms.RecordError) as caught:
        it.send(Event(word="away"))
    assert caught.value.where == "computation 'it', key 'k', record events/0/0 of stream 'events'"
    assert "its key cannot be extracted" in caught.value.cause
    assert reason in caught.value.cause
    it = Alone(Count(), read=lambda events: events.by(key), errors=DEAD_LETTER)
    it.send(Event(word="away"), Event(word="here"), Event(word="away", at=1))
    assert it.state("found") == 1
    assert it.state("k") == 0
    letters = it.driver.dead_letters()
    assert [(letter.key, letter.id) for letter in letters] == [("k", "events/0/0"), ("k", "events/0/2")]
    assert all(reason in letter.reason for letter in letters)
    assert (it.tally.received, it.tally.applied, it.tally.dead) == (3, 1, 2)


def test_a_late_record_without_a_key_is_a_dead_letter_not_a_late_one() -> None:
    it = Alone(Count(), read=lambda events: events.by(missing), errors=DEAD_LETTER, late=ms.Late.DROP)
    it.advance(10)
    it.send(Event(at=1, word="away"), Event(at=1, word="here"))
    assert len(it.driver.dead_letters()) == 1
    assert (it.tally.dead, it.tally.dropped, it.tally.late) == (1, 1, 1)


def test_a_map_that_raises_goes_by_the_policy() -> None:
    it = Alone(Count(), read=lambda events: events.map(lambda event: 1 // len(event.word)), errors=DEAD_LETTER)
    it.send(Event(word=""), Event(word="x"))
    assert [letter.reason.splitlines()[0] for letter in it.driver.dead_letters()] == [
        "ZeroDivisionError: integer division or modulo by zero"
    ]
    assert it.state() == 1


@pytest.mark.parametrize("errors", ms.Errors)
def test_a_late_record_that_cannot_be_diverted_goes_by_the_policy(errors: ms.Errors) -> None:
    class Diverts(ms.Computation[int]):
        late: ms.Output[int]

        def process_record(self, record: ms.Record[int]) -> None:
            self.state += 1

    computation = Diverts()
    read: Callable[[ms.Stream[Event]], ms.Stream[int]] = lambda events: events.map(lambda event: 1 // len(event.word))  # noqa: E731
    it = Alone(computation, errors=errors, late=ms.Divert(computation.late), read=read)
    it.advance(10)
    if errors is ms.Errors.FAIL:
        with pytest.raises(ms.RecordError, match=r"record events/0/0 of stream 'events': ZeroDivisionError"):
            it.send(Event(at=1))
        return
    it.send(Event(at=1), Event(at=2, word="x"))
    assert [record.value for record in it.driver.read(computation.late)] == [1]
    tally = it.tally
    assert (tally.received, tally.applied, tally.diverted, tally.dead, len(it.driver.dead_letters())) == (2, 0, 1, 1, 1)


def test_one_reader_may_fail_where_another_does_not() -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("picky", Picky(), errors=DEAD_LETTER).reads(events)
    topology.compute("count", Count()).reads(events)
    driver = Driver(topology)
    driver.send(events, Event(word="bad"), Event(word="good"))
    assert driver.state("picky", "k") == ["good"]
    assert driver.state("count", "k") == 2
    assert (tally(driver, "picky").dead, tally(driver, "count").dead) == (1, 0)
