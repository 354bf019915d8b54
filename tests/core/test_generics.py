"""Computations with type parameters: what windows and joins stand on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import millstream as ms
from tests.core.alone import Alone, Event

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Pair(Generic[T, U]):
    left: T
    right: U


class Keeps(ms.Computation[list[T]], Generic[T]):
    """Keeps values, and says what their type is when told."""

    same: ms.Output[T]
    pairs: ms.Output[Pair[T, int]]

    def __init__(self, **types: Any) -> None:
        self.types = types

    def type_arguments(self) -> dict[str, Any]:
        return self.types

    def process_record(self, record: ms.Record[T]) -> None:
        self.state.append(record.value)
        self.same.produce(record.value, timestamp=record.timestamp)
        self.pairs.produce(Pair(record.value, len(self.state)), timestamp=record.timestamp)


def test_type_arguments_stand_for_the_variables() -> None:
    keeps = Keeps(T=Event)
    assert keeps.state_type() == list[Event]
    assert keeps.same.value_type is Event
    assert keeps.pairs.value_type == Pair[Event, int]


def test_state_and_outputs_come_back_as_the_types_that_were_told() -> None:
    keeps = Keeps(T=Event)
    it = Alone(keeps)
    event = Event(word="x")
    it.send(event)
    assert it.state() == [event]
    assert [record.value for record in it.driver.read(keeps.same)] == [event]
    assert [record.value for record in it.driver.read(keeps.pairs)] == [Pair(event, 1)]


def test_a_variable_that_is_not_told_is_anything() -> None:
    keeps = Keeps()
    assert keeps.same.value_type is Any
    assert keeps.pairs.value_type == Pair[Any, int]
    it = Alone(keeps)
    it.send(Event(word="x"))
    assert it.state() == [{"key": "k", "at": 0, "word": "x"}]


def test_instances_of_one_class_have_types_and_outputs_of_their_own() -> None:
    one, other = Keeps(T=int), Keeps(T=str)
    assert (one.same.value_type, other.same.value_type) == (int, str)
    assert one.same is one.same
    assert one.same is not other.same


def test_a_class_that_derives_from_a_computation_has_its_outputs() -> None:
    class Derived(Keeps[T]):
        more: ms.Output[int]

    derived = Derived(T=Event)
    it = Alone(derived)
    it.send(Event())
    assert [record.value for record in it.driver.read(derived.same)] == [Event()]
    assert set(it.driver._graph.streams) == {"events", "it.same", "it.pairs", "it.more", "dead letters"}
    assert "more" not in Keeps._outputs
