"""The two sides of a join, told apart even where their values are of one type, and what comes of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

import millstream as ms
from millstream import arguments
from millstream.accepting import accepts
from millstream.fields import bare
from millstream.stream import called, members

L_co = TypeVar("L_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)


class Left(msgspec.Struct, Generic[L_co], frozen=True):
    """A value from the left side of a join."""

    value: L_co


class Right(msgspec.Struct, Generic[R_co], frozen=True):
    """A value from the right side of a join."""

    value: R_co


@dataclass(frozen=True)
class Pair(Generic[L_co, R_co]):
    """A value from either side, together."""

    left: L_co
    right: R_co


def row_type(call: str, kind: Any) -> Any:
    """The type of the rows of a table. None is how a change says that there is no row, so no row is None."""
    if type(None) in members(bare(arguments.value_type(call, kind))):
        raise ms.TopologyError(
            f"{call}: {called(kind)} may be None, which is how a table says that there is no row; give a type without None, such as a "
            f"dataclass that has it in a field"
        )
    return kind


def check_stream(call: str, side: str, stream: Any, kind: Any) -> None:
    """Refuse what is not a stream of `kind`, while building."""
    _check(call, side, stream, kind, f"one of {called(kind)}, or map it to that")


def check_table(call: str, side: str, stream: Any, row: Any) -> None:
    """Refuse what is not a table of such rows, while building."""
    how = f"a table of {called(row)}, which is a stream of ms.Change[{called(row)}]; Newest makes one of a plain stream"
    _check(call, side, stream, ms.Change[row], how)


def _check(call: str, side: str, stream: Any, kind: Any, how: str) -> None:
    if not isinstance(stream, ms.Stream):
        raise ms.TopologyError(f"{call}: {side} is {stream!r}, which is not a stream; give {how}")
    found = stream.value_type
    if found is not None and not accepts(kind, found):
        raise ms.TopologyError(f"{call}: {side} is a stream of {called(found)}; give {how}")
