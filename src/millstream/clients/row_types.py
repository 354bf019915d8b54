"""Types whose values are rows: the fields that they have, and what stands behind the names of types."""

from __future__ import annotations

import types
import typing
from typing import Any

from millstream.fields import class_of, field_types, has_fields
from millstream.timestamp import Duration, Timestamp


def fields_of_type(kind: Any) -> dict[str, Any]:
    """Names and types of what has fields; nothing for all else."""
    return field_types(kind) if has_fields(class_of(kind)) else {}


def may_lack(kind: Any, name: str, hint: Any) -> bool:
    """Whether a TypedDict need not have the entry. What it says itself is wrong where annotations are text."""
    if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        return typing.get_origin(hint) is typing.NotRequired
    return name in getattr(typing.get_origin(kind) or kind, "__optional_keys__", ())


def bare(kind: Any) -> Any:
    """Without what a type is only called or annotated with."""
    while True:
        if kind in (Timestamp, Duration):
            return kind
        if hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif hasattr(kind, "__value__") and not isinstance(kind, type):  # what `type X = ...` makes
            kind = kind.__value__
        elif typing.get_origin(kind) in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final):
            kind = typing.get_args(kind)[0]
        else:
            return kind


def without_none(kind: Any) -> tuple[Any, bool]:
    """`X | None` as X and True; a union of more stays one."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind, False
    every = typing.get_args(kind)
    others = tuple(each for each in every if each is not type(None))
    return bare(others[0]) if len(others) == 1 else typing.Union[others], len(others) < len(every)  # noqa: UP007
