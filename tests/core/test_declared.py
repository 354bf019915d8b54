"""State and productions of another type than declared are refused when they are made, not when they are next read."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

import millstream as ms
from tests.core.alone import Alone, Event


@dataclass
class Total:
    count: int = 0
    mean: float = 0.0
    words: list[str] = field(default_factory=list)


def keeping(kind: Any, value: Any) -> ms.Computation[Any]:
    class Keeps(ms.Computation[kind]):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.state = value if record.value.word == "odd" else self.initial_state()

    return Keeps()


def producing(kind: Any, value: Any) -> ms.Computation[Any]:
    class Produces(ms.Computation[int]):
        out: ms.Output[kind]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.state += 1
            self.out.produce(value if record.value.word == "odd" else kind(), timestamp=record.timestamp)

    return Produces()


ODD = [
    pytest.param(int, 0.5, "Expected `int`, got `float`", id="a float for an int"),
    pytest.param(int, None, "Expected `int`, got `", id="None"),
    pytest.param(str, 7, "Expected `str`, got `int`", id="a number for text"),
    pytest.param(bool, 1, "Expected `bool`, got `int`", id="a number for a truth"),
    pytest.param(Total, Total(count="3"), "Expected `int`, got `str` - at `$.count`", id="a field"),  # type: ignore[arg-type]
    pytest.param(Total, Total(words=["a", 1]), "Expected `str`, got `int` - at `$.words[1]`", id="within a field"),  # type: ignore[list-item]
    pytest.param(Total, {"count": "x"}, "Expected `int`, got `str` - at `$.count`", id="a dictionary"),
]


@pytest.mark.parametrize(("kind", "value", "why"), ODD)
def test_a_state_of_another_type_is_refused_and_leaves_nothing(kind: Any, value: Any, why: str) -> None:
    it = Alone(keeping(kind, value))
    with pytest.raises(ms.RecordError, match=rf"computation 'it', key 'k': its state is not the {kind.__name__} that .*{re.escape(why)}"):
        it.send(Event(word="odd"))
    assert it.state() == kind(), "as if the record had not come"


@pytest.mark.parametrize(("kind", "value", "why"), ODD)
def test_a_production_of_another_type_is_refused_and_leaves_nothing(kind: Any, value: Any, why: str) -> None:
    computation = producing(kind, value)
    it = Alone(computation)
    with pytest.raises(ms.RecordError, match=rf"(?s)out\.produce: the value, .* as {kind.__name__}, which .*{re.escape(why)}"):
        it.send(Event(word="odd"))
    assert it.driver.read(computation.out) == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [keeping, producing])
def test_it_is_an_error_of_its_record_where_dead_letters_are_sent(make: Any) -> None:
    computation = make(Total, Total(count="3"))  # type: ignore[arg-type]
    it = Alone(computation, errors=ms.Errors.DEAD_LETTER)
    it.send(Event(at=1, word="x"), Event(at=2, word="odd"), Event(at=3, word="x"))
    assert (it.tally.applied, it.tally.dead) == (2, 1)
    assert "Expected `int`, got `str` - at `$.count`" in it.driver.dead_letters()[0].reason


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_json_has_no_word_for_is_refused_with_what_it_would_become(number: float) -> None:
    it = Alone(producing(float, number))
    with pytest.raises(ms.RecordError, match="the value, null as JSON, could not be read back as float"):
        it.send(Event(word="odd"))


@pytest.mark.parametrize(
    ("kind", "value"),
    [(float, 3), (float, 0.5), (int, 2**63 - 1), (tuple[int, ...], (1, 2)), (set[str], {"a"}), (Total, Total(3, 1, ["x"]))],
)
def test_what_comes_back_as_declared_is_taken(kind: Any, value: Any) -> None:
    kept = Alone(keeping(kind, value))
    kept.send(Event(word="odd"))
    assert kept.state() == value
    made = producing(kind, value)
    it = Alone(made)
    it.send(Event(word="odd"))
    assert [record.value for record in it.driver.read(made.out)] == [value]  # type: ignore[attr-defined]


def test_bytes_of_a_codec_of_ones_own_are_ones_own() -> None:
    class Own(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.state += 1

        def encode_state(self, state: int) -> bytes:
            return b"\xff" * state

        def decode_state(self, kept: bytes) -> int:
            decoded.append(kept)
            return len(kept)

    decoded: list[bytes] = []
    it = Alone(Own())
    it.send(Event(at=1))
    assert decoded == []
    it.send(Event(at=2))
    assert decoded == [b"\xff"]
