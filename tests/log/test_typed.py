"""Values as typed columns."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest

import millstream as ms
from millstream.log.typed import column


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    n: int
    at: ms.Timestamp


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    maybe: float | None = None
    many: list[Inner] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Left:
    n: int


@dataclass(frozen=True)
class Right:
    n: int


US = pa.timestamp("us", tz="UTC")
CHANGED = pa.struct([(side, pa.struct([("n", pa.int64())])) for side in ("before", "after")])
CHANGED_TEXT = pa.struct([(side, pa.string()) for side in ("before", "after")])


@pytest.mark.parametrize(
    ("kind", "value", "arrow", "stored"),
    [
        (int, 2**62 + 1, pa.int64(), 2**62 + 1),
        (bool, True, pa.bool_(), True),
        (str | None, None, pa.string(), None),
        (bytes, b"x", pa.binary(), b"x"),
        (date, date(2026, 1, 1), pa.date32(), date(2026, 1, 1)),
        (timedelta, timedelta(seconds=2), pa.int64(), 2_000_000),
        (ms.Timestamp, 1_000_000, US, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (ms.Duration, 5, pa.int64(), 5),
        (Colour, Colour.RED, pa.string(), "red"),
        (Literal["a", "b"], "b", pa.string(), "b"),
        (list[int], [1, 2], pa.list_(pa.int64()), [1, 2]),
        (int | str, "x", pa.string(), '"x"'),
        (Any, {"a": 1}, pa.string(), '{"a":1}'),
        (Left | Right, Right(2), pa.string(), '{"type":"Right","n":2}'),
        (list[Left | Right], [Left(1)], pa.list_(pa.string()), ['{"type":"Left","n":1}']),
        (ms.Change[Left], ms.Change(None, Left(1)), CHANGED, {"before": None, "after": {"n": 1}}),
        (ms.Change[Left | Right], ms.Change(Left(1)), CHANGED_TEXT, {"before": '{"type":"Left","n":1}', "after": None}),
    ],
)
def test_a_type_has_its_column(kind: Any, value: Any, arrow: pa.DataType, stored: Any) -> None:
    found = column(kind)
    assert found.type == arrow
    assert found.array([value]).to_pylist() == [stored]


def test_a_dataclass_is_a_struct_all_the_way_down() -> None:
    value = Outer("a", Inner(1, ms.Timestamp(0)), None, [Inner(2, ms.Timestamp(1))], {"x": 3})
    (row,) = column(Outer).array([value]).to_pylist()
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert row["inner"] == {"n": 1, "at": start}
    assert row["many"] == [{"n": 2, "at": start + timedelta(microseconds=1)}]
    assert (row["maybe"], row["by_name"]) == (None, [("x", 3)])
