"""Unions of classes in streams and states: each value carries the name of its class, and comes back as what it was."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.codec import StateCodec, value_decoder, value_encoder
from millstream.core.types import has_integers
from millstream.core.unions import has_union, shape_of
from millstream.testing import Driver
from tests.core.alone import Alone, Event

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Opened:
    by: str


@dataclass(frozen=True)
class Moved:
    amount: int
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    exact: Decimal = Decimal("0.10")


class Closed(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    why_closed: str
    keys: dict[int, bytes] = {}


@dataclass(frozen=True)
class Nested:
    events: list[Opened | Moved]
    last: Closed | Opened | None = None
    parent: Nested | None = None
    made: str = field(default="x", init=False)

    def __post_init__(self) -> None:
        if len(self.events) > 3:
            raise ValueError("too many")


@dataclass(frozen=True)
class Recorded(Generic[T]):
    version: int
    event: T


@dataclass(frozen=True)
class Later(Recorded[U], Generic[U]):
    by: U | None = None


class Red(msgspec.Struct, tag="r", tag_field="colour", frozen=True):
    event: Opened | Moved


class Blue(msgspec.Struct, tag="b", tag_field="colour", frozen=True):
    x: int


Event3 = Opened | Moved | Closed
opened = st.builds(Opened, st.text(max_size=3))
moved = st.builds(Moved, st.integers(-(2**63), 2**63 - 1), st.datetimes(timezones=st.just(UTC)), st.decimals(allow_nan=False, places=2))
closed = st.builds(Closed, st.text(max_size=3), st.dictionaries(st.integers(0, 9), st.binary(max_size=3), max_size=2))
one = opened | moved | closed
nested = st.recursive(
    st.builds(Nested, st.lists(opened | moved, max_size=3), closed | opened | st.none()),
    lambda inner: st.builds(Nested, st.lists(opened | moved, max_size=3), closed | opened | st.none(), inner),
    max_leaves=3,
)

KINDS: list[tuple[Any, Any]] = [
    (Event3, one),
    (Event3 | None, one | st.none()),
    (Opened | Moved | int | str, opened | moved | st.integers(-9, 9) | st.text(max_size=3)),
    (list[Event3], st.lists(one, max_size=3)),
    (set[Opened | Closed], st.sets(opened, max_size=3)),
    (frozenset[Opened | Moved], st.frozensets(opened | moved, max_size=3)),
    (tuple[Event3, ...], st.lists(one, max_size=3).map(tuple)),
    (tuple[int, Opened | Moved], st.tuples(st.integers(0, 9), opened | moved)),
    (dict[int, Opened | Moved], st.dictionaries(st.integers(0, 9), opened | moved, max_size=3)),
    (list[Event3] | None, st.lists(one, max_size=3) | st.none()),
    (dict[str, list[Event3]] | int, st.dictionaries(st.text(max_size=2), st.lists(one, max_size=2), max_size=2) | st.integers(0, 9)),
    (Nested, nested),
    (Nested | Opened, nested | opened),
    (Recorded[Opened | Moved], st.builds(Recorded, st.integers(0, 9), opened | moved)),
    (Later[Opened | Moved], st.builds(Later, st.integers(0, 9), opened | moved, opened | st.none())),
    (Recorded[int] | Opened, st.builds(Recorded, st.integers(0, 9), st.integers(0, 9)) | opened),
    (ms.Change[Opened | Moved], st.builds(ms.Change, opened, moved | st.none())),
    (Red | Blue, st.builds(Red, opened | moved) | st.builds(Blue, st.integers(0, 9))),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_what_is_written_is_read_back(kind: Any, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(values)
    back = value_decoder(kind)(value_encoder(kind)(value))
    assert (back, type(back)) == (value, type(value))

    codec = StateCodec(Keeps[kind]())
    assert codec.decode(codec.encode(value)) == value


def test_the_name_of_the_class_is_in_the_text() -> None:
    """As it stands in the log: it must stay so, or older folders could not be read."""
    encode = value_encoder(Event3)
    assert encode(Opened("ann")) == b'{"type":"Opened","by":"ann"}'
    assert encode(Closed("broke")) == b'{"type":"Closed","whyClosed":"broke","keys":{}}'
    assert value_encoder(list[Opened | Moved])([Opened("x")]) == b'[{"type":"Opened","by":"x"}]'
    assert json.loads(value_encoder(Nested)(Nested([Opened("x")], Closed("y")))) == {
        "events": [{"type": "Opened", "by": "x"}],
        "last": {"type": "Closed", "whyClosed": "y", "keys": {}},
        "parent": None,
        "made": "x",
    }
    assert value_encoder(Red | Blue)(Red(Opened("x"))) == b'{"colour":"r","event":{"type":"Opened","by":"x"}}'


def test_a_state_is_kept_with_the_name_of_the_class() -> None:
    kept = StateCodec(Keeps[list[Opened | Moved]]()).encode([Opened("ann")])
    assert kept == msgspec.msgpack.encode([{"type": "Opened", "by": "ann"}])


@pytest.mark.parametrize(
    "kind", [Opened | None, Opened | int, list[Opened] | None, Blue | None, int | str, Recorded[int], dict[str, Opened], None, Any]
)
def test_what_msgspec_tells_apart_by_itself_is_left_to_it(kind: Any) -> None:
    assert shape_of(kind) is None
    assert not has_union(kind)


def test_structs_with_tags_are_left_to_msgspec() -> None:
    class A(msgspec.Struct, tag=True):
        x: int

    class B(msgspec.Struct, tag=True):
        x: int

    assert shape_of(A | B) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"by":"ann"}', "Expected one of 'Opened', 'Moved', 'Closed' in the field `type`, got nothing"),
        (b'{"type":"Gone"}', "got 'Gone'"),
        (b'{"type":["Opened"]}', r"got \['Opened'\]"),
        (b'{"type":"Moved","amount":"x"}', "Expected `int`, got `str` - at `.*amount`"),
        (b"3", "got `int`"),
        (b"null", "got `NoneType`"),
    ],
)
def test_what_is_not_of_the_union_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        value_decoder(Event3)(text)


def test_what_a_class_with_a_union_in_it_refuses_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="too many"):
        value_decoder(Nested)(b'{"events":[' + b",".join([b'{"type":"Opened","by":"x"}'] * 4) + b"]}")
    with pytest.raises(msgspec.ValidationError, match="missing required field `events`"):
        value_decoder(Nested)(b"{}")
    with pytest.raises(msgspec.ValidationError, match="Expected `object`, got `list`"):
        value_decoder(Nested)(b"[]")
    with pytest.raises(msgspec.ValidationError, match="of length 2, got 1"):
        value_decoder(tuple[int, Opened | Moved])(b"[1]")


def test_integers_in_a_union_are_looked_at() -> None:
    assert has_integers(Event3)
    assert not has_integers(Opened | Named)

    class Large(ms.Computation):
        out: ms.Output[Opened | Moved]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.out.produce(Moved(2**63), timestamp=record.timestamp)

    with pytest.raises(ms.RecordError, match="is an integer of more than 64 bits"):
        Alone(Large()).send(Event())


# What cannot be told apart is refused while building.


def _another() -> Any:
    @dataclass
    class Opened:
        x: int

    return Opened


class Typed(msgspec.Struct):
    type: str


@dataclass(frozen=True)
class Named:
    y: str


class Told(TypedDict):
    x: int


class Place(NamedTuple):
    event: Opened | Moved


class Makes(ms.Computation, Generic[T]):
    out: ms.Output[T]

    def process_record(self, record: ms.Record[Event]) -> None: ...


class Keeps(ms.Computation[T | None], Generic[T]):
    def process_record(self, record: ms.Record[Event]) -> None: ...


REFUSED = [
    (Opened | _another(), "two of its classes are called 'Opened', and values carry that name; rename one"),
    (Recorded[int] | Recorded[str], "two of its classes are called 'Recorded'"),
    (Opened | Typed, "Typed has a field 'type', where the name of the class is written; rename the field"),
    (Opened | Told, "Told is a TypedDict, whose values are plain dictionaries; make it a dataclass"),
    (Opened | Blue, "Blue has a tag of its own, and others have none"),
    (Opened | Moved | dict[str, int], "a dictionary might be one of its classes; make a dataclass of it"),
    (Place, "Place has a union of classes in it, which cannot be told apart there; make it a dataclass"),
    (dict[Opened | Moved, int], "are of a union of classes; use text or a number for them"),
    (list[Opened | Moved] | set[Opened | Moved], "are written alike"),
]


@pytest.mark.parametrize(("kind", "why"), REFUSED, ids=[str(kind) for kind, _ in REFUSED])
def test_what_cannot_be_told_apart_is_refused_while_building(kind: Any, why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why) as refused:
        Alone(Makes[kind]())
    assert str(refused.value).startswith("stream 'it.out': ")
    with pytest.raises(ms.TopologyError, match=why) as refused:
        Alone(Keeps[kind]())
    assert str(refused.value).startswith("the state of Keeps cannot be kept: ")


# Through a topology.


class Same(ms.Computation[list[Opened | Moved]]):
    """Keeps what it reads, and sends it on."""

    same: ms.Output[Opened | Moved]
    late: ms.Output[Opened | Moved]

    def process_record(self, record: ms.Record[Opened | Moved]) -> None:
        self.state.append(record.value)
        self.same.produce(record.value, timestamp=record.timestamp)


class Reader(ms.Computation[list[Opened | Moved]]):
    def process_record(self, record: ms.Record[Opened | Moved]) -> None:
        match record.value:
            case Opened() | Moved():
                self.state.append(record.value)


def streams(topology: ms.Topology, *kinds: Any) -> list[Any]:
    return [
        topology.inject(
            f"in {number}",
            ms.values([], kind),
            key=lambda value: "k",
            timestamp=lambda value: ms.Timestamp(5),
            low_watermark=ms.BoundedDisorder(0 * ms.SECOND),
        )
        for number, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("ship", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_a_union_flows_and_is_kept(ship: bool, together: bool) -> None:
    topology = ms.Topology("test")
    sources = streams(topology, Opened | Moved) * 2 if together else streams(topology, Opened, Moved)
    same, reader = Same(), Reader()
    topology.compute("same", same).reads(*dict.fromkeys(sources), late=ms.Divert(same.late))
    topology.compute("reader", reader).reads(same.same.by(lambda value: type(value).__name__))
    driver = Driver(topology, now=ms.Timestamp(5), ship=ship)
    driver.send(sources[0], Opened("ann"))
    driver.send(sources[1], Moved(7))
    assert driver.state("same", "k") == [Opened("ann"), Moved(7)]
    assert [record.value for record in driver.read(same.same)] == [Opened("ann"), Moved(7)]
    assert (driver.state("reader", "Opened"), driver.state("reader", "Moved")) == ([Opened("ann")], [Moved(7)])
    driver.advance(low_watermark=ms.Timestamp(6))
    driver.send(sources[0], Opened("late"))
    assert [record.value for record in driver.read(same.late)] == [Opened("late")]
    driver.crash()
    assert driver.state("same", "k") == [Opened("ann"), Moved(7)]


def test_a_value_of_another_class_is_refused_where_it_is_produced() -> None:
    class Wrong(ms.Computation):
        out: ms.Output[Opened | Moved]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.out.produce(Closed("x"), timestamp=record.timestamp)  # type: ignore[arg-type]

    with pytest.raises(ms.RecordError, match=r"could not be read back as Opened \| Moved, which the output declares"):
        Alone(Wrong()).send(Event())


def test_a_line_from_outside_says_what_it_is() -> None:
    topology = ms.Topology("test")
    (source,) = streams(topology, Opened | Moved)
    topology.compute("reader", Reader()).reads(source)
    driver = Driver(topology, now=ms.Timestamp(5), ship=False)
    driver.feed(source, [b'{"type":"Moved","amount":3}', b'{"by":"ann", "type":"Opened"}'])
    assert driver.state("reader", "k") == [Moved(3), Opened("ann")]
    with pytest.raises(ms.RecordError, match="it cannot be decoded: Expected one of 'Opened', 'Moved' in the field `type`, got nothing"):
        driver.feed(source, [b'{"by":"ann"}'])


def test_a_subclass_is_written_as_the_class_that_the_union_has() -> None:
    @dataclass(frozen=True)
    class Special(Opened):
        more: int = 0

    assert value_encoder(Opened | Moved)(Special("ann", 3)) == b'{"type":"Opened","by":"ann"}'
