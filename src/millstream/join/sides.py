"""The two sides of a join, told apart even where their values are of one type, and what comes of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

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
