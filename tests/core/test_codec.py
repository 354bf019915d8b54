"""Values and states as bytes, and the types that tell how."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.codec import encode_value, settle, value_decoder
from millstream.core.graph import compile_topology


class Colour(Enum):
    RED = "red"


@dataclass
class Inner:
    count: int = 0


@dataclass
class Whole:
    name: str
    inner: list[Inner] = field(default_factory=list)
    colour: Colour | None = None
    at: datetime | None = None
    later: Whole | None = None


class Small(msgspec.Struct):
    inner: Inner


VALUES: list[tuple[Any, Any]] = [
    (int, 2**53 + 1),
    (float, 0.1),
    (str, "ключ 🗝 \x00"),
    (bytes, b"\x00\xff"),
    (list[int], [1, 2]),
    (dict[int, str], {1: "a"}),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (ms.Timestamp, 5),
    (Colour, Colour.RED),
    (datetime, datetime(2024, 1, 2, tzinfo=UTC)),
    (Whole, Whole("a", [Inner(1)], Colour.RED, datetime(2024, 1, 2, tzinfo=UTC), Whole("b"))),
    (Small, Small(Inner(2))),
    (int | None, None),
    (Inner | int, Inner(3)),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_a_value_comes_back_as_it_was(kind: Any, value: object) -> None:
    found = value_decoder(kind)(encode_value(value))
    assert found == value
    assert type(found) is type(value)


def test_a_value_is_json_that_people_can_read() -> None:
    assert encode_value(Whole("a", [Inner(1)])) == b'{"name":"a","inner":[{"count":1}],"colour":null,"at":null,"later":null}'


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.dictionaries(st.text(), st.booleans())
)
def test_plain_values_come_back_whatever_they_are(value: object) -> None:
    assert value_decoder(type(value))(encode_value(value)) == value


def test_text_is_taken_for_numbers_only_when_asked() -> None:
    assert value_decoder(Inner, strict=False)(b'{"count":"7"}') == Inner(7)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str`"):
        value_decoder(Inner)(b'{"count":"7"}')


def test_without_a_type_anything_is_decoded() -> None:
    assert value_decoder(None)(b'{"a":[1]}') == {"a": [1]}


def test_text_annotations_are_replaced_by_what_they_mean() -> None:
    # Far from this module, as in a worker, text could not be looked up any more.
    @dataclass
    class Base:
        inner: Inner

    @dataclass
    class Derived(Base):
        many: dict[str, list[Inner]]

    assert Derived.__annotations__ == {"many": "dict[str, list[Inner]]"}
    settle(list[Derived] | None)
    assert Derived.__annotations__ == {"many": dict[str, list[Inner]]}
    assert Base.__annotations__ == {"inner": Inner}


@dataclass
class Sent:
    inner: Inner = field(default_factory=Inner)


@dataclass
class Kept:
    inner: Inner = field(default_factory=Inner)


@dataclass
class Made:
    inner: Inner


class Uses(ms.Computation[Kept]):
    made: ms.Output[Made]

    def process_record(self, record: ms.Record[Sent]) -> None: ...


def test_a_topology_that_is_ready_to_run_has_no_text_annotations_left() -> None:
    topology = ms.Topology("test")
    sent = topology.inject("sent", ms.values([], Sent), key=str, timestamp=hash, low_watermark=ms.BoundedDisorder(ms.SECOND))  # type: ignore[arg-type]
    topology.compute("uses", Uses()).reads(sent)
    compile_topology(topology)
    assert [kind.__annotations__ for kind in (Sent, Kept, Made)] == [{"inner": Inner}] * 3


def test_an_annotation_that_means_nothing_is_refused() -> None:
    @dataclass
    class Lost:
        field: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ms.TopologyError, match=r"^Lost.field: Nowhere is not known where the class is defined; import it there$"):
        value_decoder(Lost)
