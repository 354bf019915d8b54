"""Computations with type parameters: what windows and joins stand on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject

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


# What a subclass fills in by its bases.


@dataclass(frozen=True)
class Move:
    by: int


@dataclass(frozen=True)
class Moved(Generic[U]):
    event: U
    version: int


@dataclass
class Held(Generic[T]):
    state: T | None = None
    version: int = 0


C = TypeVar("C")
E = TypeVar("E")
S = TypeVar("S")  # the variable of Computation itself has this name as well


class Entity(ms.Computation[Held[S]], Generic[C, E, S]):
    """A base with three variables, one of them only in its state, one only in its output."""

    events: ms.Output[Moved[E]]

    def process_record(self, record: ms.Record[C]) -> None:
        state, event = self.decide(self.state.state, record.value)
        self.state = Held(state, self.state.version + 1)
        self.events.produce(Moved(event, self.state.version), timestamp=record.timestamp)

    def decide(self, state: S | None, command: C) -> tuple[S, E]:
        raise NotImplementedError


class Account(Entity[Event, Move, Move]):
    def decide(self, state: Move | None, command: Event) -> tuple[Move, Move]:
        return Move((state.by if state else 0) + command.at), Move(command.at)


class Closing(Account):
    closed: ms.Output[Move]


class Listed(Entity[Event, list[T], dict[str, T]], Generic[T]):
    """Fills the variables of its base with types of its own variable, which a further class fills."""


class Deep(Listed[Move]):
    def decide(self, state: dict[str, Move] | None, command: Event) -> tuple[dict[str, Move], list[Move]]:
        return {**(state or {}), command.word: Move(command.at)}, [Move(command.at)]


def test_a_subclass_fills_the_variables_of_its_base() -> None:
    account = Account()
    assert account.state_type() == Held[Move]
    assert account.events.value_type == Moved[Move]
    assert account.input_types() == (Event,)


def test_variables_are_filled_over_several_levels() -> None:
    deep = Deep()
    assert deep.state_type() == Held[dict[str, Move]]
    assert deep.events.value_type == Moved[list[Move]]
    closing = Closing()
    assert (closing.state_type(), closing.events.value_type, closing.closed.value_type) == (Held[Move], Moved[Move], Move)


@pytest.mark.parametrize("ship", [False, True])
@pytest.mark.parametrize("made", [Account, Closing, Deep])
def test_state_and_outputs_come_back_as_the_types_of_the_bases(made: type[Entity[Any, Any, Any]], ship: bool) -> None:
    topology = ms.Topology("test")
    events, it = inject(topology), made()
    topology.compute("it", it).reads(events)
    driver = Driver(topology, now=ms.Timestamp(0), ship=ship)
    driver.send(events, Event(at=3, word="x"))
    move = Move(3)
    wanted: Any = ({"x": move}, [move]) if made is Deep else (move, move)
    assert (driver.state("it", "k").state, driver.read(it.events)[0].value.event) == wanted


def test_a_stream_of_another_type_than_the_base_was_filled_with_is_refused() -> None:
    topology = ms.Topology("test")
    events = inject(topology)

    class Other(Entity[Move, Move, int]): ...

    with pytest.raises(ms.TopologyError, match=r"'it' reads a stream of Event, but Other.process_record takes Move"):
        topology.compute("it", Other()).reads(events)


class Both(Keeps[list[U]], Generic[U]):
    own: ms.Output[U]


class SameName(Keeps[int], Generic[T]):
    """Its T is not the T of its base."""

    own: ms.Output[T]


def test_what_an_instance_says_of_a_base_is_known_of_the_class_that_derives_from_it() -> None:
    both: Both[Event] = Both(T=list[Event])
    assert (both.same.value_type, both.own.value_type) == (list[Event], Event)
    assert both.state_type() == list[list[Event]]


def test_two_variables_of_one_name_are_two() -> None:
    same = SameName[str](T=int)
    assert (same.same.value_type, same.own.value_type, same.state_type()) == (int, str, list[int])


def test_brackets_fill_variables_too() -> None:
    assert Keeps[Event]().same.value_type is Event
    assert Both[Event]().state_type() == list[list[Event]]

    class Early(Keeps[T]):
        def __init__(self) -> None:
            super().__init__()
            self.early = self.same

    early = Early[Event]()
    assert early.early.value_type is Event


def test_a_mixin_with_a_variable() -> None:
    class Audited(Generic[U]):
        audit: ms.Output[U]

    class Account2(Entity[Event, Move, Move], Audited[Moved[Move]]): ...

    assert Account2().audit.value_type == Moved[Move]


def test_a_name_that_is_no_variable_is_refused() -> None:
    with pytest.raises(ms.TopologyError, match=r"Keeps.type_arguments names 'V', which is no type variable of it; it has T"):
        Alone(Keeps(V=int))
