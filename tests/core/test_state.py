"""What is kept for a key: how it begins, what may be kept, and how it goes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import millstream as ms
from tests.core.alone import Alone, Event


@dataclass
class Seen:
    words: list[str] = field(default_factory=list)
    last: ms.Timestamp | None = None


class Sum(msgspec.Struct):
    total: int = 0


class Nothing(ms.Computation):
    def process_record(self, record: ms.Record[Event]) -> None:
        assert self.state is None


class Last(ms.Computation[str | None]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state = record.value.word + (self.state or "")


class Length(ms.Computation[int]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += len(record.value.word)


class Words(ms.Computation[dict[str, int]]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state[record.value.word] = self.state.get(record.value.word, 0) + 1


class At(ms.Computation[dict[ms.Timestamp, list[str]]]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state.setdefault(record.timestamp, []).append(record.value.word)


class Listed(ms.Computation[list[str]]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state.append(record.value.word)


class Distinct(ms.Computation[set[str]]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state.add(record.value.word)


class Fields(ms.Computation[Seen]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state.words.append(record.value.word)
        self.state.last = record.timestamp


class Struct(ms.Computation[Sum]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state.total += len(record.value.word)


class Instant(ms.Computation[ms.Timestamp]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state = max(self.state, record.timestamp)


class Begun(ms.Computation[int]):
    """Begins elsewhere than its type does."""

    def initial_state(self) -> int:
        return 100

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += int(record.value.word)


class Own(ms.Computation[complex]):
    """A state that msgspec does not know, with a codec of its own."""

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += complex(record.value.word)

    def encode_state(self, state: complex) -> bytes:
        return json.dumps([state.real, state.imag]).encode()

    def decode_state(self, stored: bytes) -> complex:
        return complex(*json.loads(stored))


@pytest.mark.parametrize(
    ("computation", "words", "begins", "ends"),
    [
        (Nothing(), "xy", None, None),
        (Last(), "xyz", None, "zyx"),
        (Length(), ["a", "bc", "def"], 0, 6),
        (Words(), "xyx", {}, {"x": 2, "y": 1}),
        (At(), "xy", {}, {0: ["x"], 1: ["y"]}),
        (Listed(), "xyx", [], ["x", "y", "x"]),
        (Distinct(), "xyx", set(), {"x", "y"}),
        (Fields(), "xy", Seen(), Seen(["x", "y"], ms.Timestamp(1))),
        (Struct(), ["a", "bc"], Sum(), Sum(3)),
        (Instant(), "xyz", 0, 2),
        (Begun(), ["1", "20"], 100, 121),
        (Own(), ["1", "2j", "3+4j"], 0j, 4 + 6j),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ms.Computation) else "",
)
@pytest.mark.parametrize("together", [True, False], ids=["in one epoch", "an epoch each"])
def test_state_is_kept_from_record_to_record_and_from_epoch_to_epoch(
    computation: ms.Computation[Any], words: list[str], begins: object, ends: object, together: bool
) -> None:
    it = Alone(computation)
    assert it.state() == begins
    events = [Event(at=number, word=word) for number, word in enumerate(words)]
    if together:
        it.send(*events)
    else:
        for event in events:
            it.send(event)
    assert it.state() == ends
    assert type(it.state()) is type(ends)
    assert it.state("another key") == begins


def test_every_key_begins_with_a_state_of_its_own() -> None:
    it = Alone(Listed())
    it.send(Event("a", 0, "x"), Event("b", 0, "y"))
    it.send(Event("a", 1, "z"))
    assert (it.state("a"), it.state("b"), it.state("c")) == (["x", "z"], ["y"], [])


class Commanded(ms.Computation[dict[str, int]]):
    """Does with its state what the record says."""

    def process_record(self, record: ms.Record[Event]) -> None:
        match record.value.word:
            case "delete":
                del self.state
                assert self.state == {}
            case "clear":
                self.state.clear()
            case "replace":
                self.state = {"replaced": 1}
            case "timer":
                self.set_timer("t", at=record.timestamp + ms.SECOND)
            case word:
                self.state[word] = 1

    def process_timer(self, timer: ms.Timer) -> None:
        self.state["fired"] = 1


@pytest.mark.parametrize("word", ["delete", "clear"])
def test_a_state_equal_to_the_initial_one_takes_no_room(word: str) -> None:
    it = Alone(Commanded())
    it.send(Event(word="x"))
    assert it.driver.keys("it") == 1
    it.send(Event(word=word))
    assert it.driver.keys("it") == 0
    assert it.state() == {}


def test_a_key_that_never_left_its_initial_state_takes_no_room() -> None:
    it = Alone(Begun())
    it.send(Event(word="0"), Event("other", word="7"))
    assert it.driver.keys("it") == 1


def test_a_deleted_state_begins_again_in_the_same_epoch() -> None:
    it = Alone(Commanded())
    it.send(Event(at=0, word="x"), Event(at=1, word="delete"), Event(at=2, word="y"))
    assert it.state() == {"y": 1}


def test_a_replaced_state_is_kept() -> None:
    it = Alone(Commanded())
    it.send(Event(word="x"), Event(at=1, word="replace"))
    assert it.state() == {"replaced": 1}


def test_a_pending_timer_keeps_the_row_of_a_key_without_a_state() -> None:
    it = Alone(Commanded())
    it.send(Event(word="timer"))
    assert it.driver.keys("it") == 1
    assert it.state() == {}
    it.advance(ms.SECOND)
    assert it.state() == {"fired": 1}


def test_an_unchanged_row_is_not_written() -> None:
    it = Alone(Commanded())
    it.send(Event(word="x"))
    changed = list(it.driver._run._changed_rows)
    it.send(Event(at=1, word="x"))
    assert it.driver._run._changed_rows == changed != []
    assert it.tally.applied == 2


def test_a_state_larger_than_a_page_is_kept_too() -> None:
    it = Alone(Listed())
    for number in range(3):
        it.send(Event(at=number, word="x" * 20_000), Event("small", number, "y"))
    assert [len(word) for word in it.state()] == [20_000] * 3
    assert it.state("small") == ["y"] * 3


def test_what_cannot_be_kept_is_an_error_that_names_the_key() -> None:
    class Keeps(ms.Computation[Any]):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.state = object()

    with pytest.raises(ms.RecordError, match=r"computation 'it', key 'k', its state cannot be kept: TypeError: .*object"):
        Alone(Keeps()).send(Event())


def test_a_kept_state_that_no_longer_fits_is_an_error_that_says_how_to_fix_it() -> None:
    it = Alone(Listed())
    it.send(Event(word="x"))
    newer = Alone(Length())
    newer.take_over(it)
    with pytest.raises(
        ms.RecordError, match=r"computation 'it', key 'k': the state kept for it does not fit .*int.*give new fields defaults"
    ):
        newer.send(Event(word="x"))


def test_new_fields_with_defaults_fit_what_was_kept() -> None:
    @dataclass
    class Older:
        words: list[str] = field(default_factory=list)

    class Before(ms.Computation[Older]):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.state.words.append(record.value.word)

    it = Alone(Before())
    it.send(Event(word="x"))
    newer = Alone(Fields())
    newer.take_over(it)
    newer.send(Event(at=1, word="y"))
    assert newer.state() == Seen(["x", "y"], ms.Timestamp(1))


@dataclass
class Kept:
    total: int = 0
    last: str = ""


@dataclass
class Shorter:
    last: str = ""


@dataclass
class Renamed:
    total: int = 0
    newest: str = ""


class RenamedHere(msgspec.Struct):
    total: int = 0
    newest: str = msgspec.field(default="", name="last")


@dataclass
class Wider:
    total: float = 0.0
    last: str | None = None


@dataclass
class Other:
    total: str = ""
    last: str = ""


class Exact(msgspec.Struct, forbid_unknown_fields=True):
    total: int = 0


class Keeping(ms.Computation[Kept]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state = Kept(7, record.value.word)


def reading(kind: type) -> ms.Computation[Any]:
    """Code that keeps its state as this type now, and leaves it alone."""

    class Reading(ms.Computation[kind]):  # type: ignore[valid-type]
        def process_record(self, record: ms.Record[Event]) -> None:
            pass

    return Reading()


@pytest.mark.parametrize(
    ("kind", "becomes"),
    [
        (Shorter, Shorter("x")),
        (Renamed, Renamed(7, "")),
        (RenamedHere, RenamedHere(7, "x")),
        (Wider, Wider(7.0, "x")),
        (Other, "Expected `str`, got `int` - at `$.total`"),
        (Exact, "unknown field `last`"),
    ],
)
@pytest.mark.parametrize("errors", ms.Errors)
def test_what_kept_state_becomes_under_another_type(kind: type, becomes: object, errors: ms.Errors) -> None:
    """The table in the guide, row by row."""
    it = Alone(Keeping())
    it.send(Event(word="x"))
    newer = Alone(reading(kind), errors=errors)
    newer.take_over(it)
    if isinstance(becomes, str):
        with pytest.raises(ms.RecordError, match=re.escape(becomes)):
            newer.send(Event(at=1, word="y"))
    else:
        newer.send(Event(at=1, word="y"))
        assert newer.state() == becomes


@pytest.mark.parametrize("key", ["", "ключ", "鍵", "🗝", "é", "e\u0301", "a/b", "\x00", " ", "directories"])
def test_any_text_is_a_key_of_its_own(key: str) -> None:
    it = Alone(Listed())
    it.send(Event(key, 0, "x"), Event("plain", 0, "y"))
    it.send(Event(key, 1, "z"))
    assert it.state(key) == ["x", "z"]
    assert it.state("plain") == ["y"]
    assert it.driver.keys("it") == 2
