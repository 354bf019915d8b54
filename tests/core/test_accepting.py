"""What a reader takes: right programs are built, wrong ones refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Generic, Literal, NewType, Protocol, TypedDict, TypeVar

import pytest

import millstream as ms
from millstream.accepting import accepts
from tests.core.alone import Event, inject

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
UserId = NewType("UserId", str)


@dataclass(frozen=True)
class Windowed(Generic[T_co]):
    value: T_co


@dataclass(frozen=True)
class Daily(Windowed[int]):
    day: int


class Row(TypedDict):
    x: int


class Sized(Protocol):
    size: int


RIGHT = [
    (int | None, int | None),
    (int | None, int),
    (int | str | None, int | None),
    (object, list[int]),
    (object, Windowed[int]),
    (object, int | None),
    (Any, Windowed[int]),
    (float, int),
    (float, bool),
    (float, int | float),
    (complex, int),
    (int, bool),
    (date, datetime),
    (list[int], list[int]),
    (list[int], list[Any]),
    (list[int], list),
    (list, list[int]),
    (list[float], list[int]),
    (Sequence[int], list[int]),
    (Mapping[str, int], dict[str, int]),
    (tuple[int, ...], tuple[int, ...]),
    (tuple[int, ...], tuple[int, int]),
    (dict[str, int | None], dict[str, int]),
    (Windowed[int], Windowed[int]),
    (Windowed[float], Windowed[int]),
    (Windowed[int], Daily),
    (Windowed[object], Daily),
    (Windowed[int], Windowed),
    (Windowed[Any], Windowed[str]),
    (Windowed[int | None], Windowed[int]),
    (str, UserId),
    (UserId, UserId),
    (str, Literal["a", "b"]),
    (Literal["a", "b"], Literal["a"]),
    (Row, Row),
    (Row, dict[str, int]),
    (dict[str, Any], Row),
    (Sized, Event),
    (T, int),
]
WRONG = [
    (int, int | None),
    (int | str, int | None),
    (int, str),
    (int, float),
    (float, str),
    (float, complex),
    (str, list[str]),
    (list[int], list[str]),
    (list[int], int),
    (list[int], tuple[int, ...]),
    (dict[str, int], dict[str, str]),
    (tuple[int, str], tuple[int, int]),
    (Windowed[int], Windowed[str]),
    (Windowed[str], Daily),
    (Windowed[int], int),
    (Daily, Windowed[int]),
    (Event, Windowed[Event]),
    (UserId, str),
    (Literal["a"], Literal["a", "b"]),
    (Literal["a"], str),
    (int, Literal["a"]),
    (Row, Event),
    (Event, Row),
]


@pytest.mark.parametrize(("taken", "found"), RIGHT)
def test_right_is_taken(taken: Any, found: Any) -> None:
    assert accepts(taken, found)


@pytest.mark.parametrize(("taken", "found"), WRONG)
def test_wrong_is_not_taken(taken: Any, found: Any) -> None:
    assert not accepts(taken, found)


class Makes(ms.Computation, Generic[T]):
    out: ms.Output[T]
    late: ms.Output[T]

    def process_record(self, record: ms.Record[Event]) -> None: ...


class Takes(ms.Computation[int], Generic[T]):
    late: ms.Output[T]

    def process_record(self, record: ms.Record[T]) -> None: ...


def build(taken: Any, found: Any, *, divert: bool = False) -> None:
    topology = ms.Topology("test")
    makes, takes = Makes[found](), Takes[taken]()
    topology.compute("makes", makes).reads(inject(topology))
    late: Any = ms.Divert(takes.late) if divert else ms.Late.PROCESS
    topology.compute("takes", takes).reads(makes.out, late=late)


@pytest.mark.parametrize(
    ("taken", "found"), [(int | None, int | None), (object, list[int]), (object, Windowed[int]), (float, int), (Windowed[float], Daily)]
)
def test_right_programs_are_built(taken: Any, found: Any) -> None:
    build(taken, found)
    build(taken, found, divert=True)


@pytest.mark.parametrize(
    ("taken", "found", "why"),
    [
        (int, int | None, "'takes' reads a stream of None, but Takes.process_record takes int; widen its annotation"),
        (Windowed[int], Windowed[str], r"reads a stream of .*Windowed\[str\], but Takes.process_record takes .*Windowed\[int\]"),
        (list[int], list[str], r"reads a stream of list\[str\], but Takes.process_record takes list\[int\]"),
        (int | None, int, "takes None, but no stream that 'takes' reads carries it"),
    ],
)
def test_wrong_programs_are_refused(taken: Any, found: Any, why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        build(taken, found)


def test_late_records_are_diverted_to_what_takes_them() -> None:
    class Into(ms.Computation[int]):
        texts: ms.Output[list[str]]

        def process_record(self, record: ms.Record[list[int]]) -> None: ...

    topology = ms.Topology("test")
    makes, into = Makes[list[int]](), Into()
    topology.compute("makes", makes).reads(inject(topology))
    with pytest.raises(ms.TopologyError, match=r"'into' diverts late list\[int\] to an output of list\[str\]"):
        topology.compute("into", into).reads(makes.out, late=ms.Divert(into.texts))  # type: ignore[arg-type]
