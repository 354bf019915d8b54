"""Types taken apart: what a class has for fields, with its type variables filled, and what stands in brackets and unions."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable
from typing import Any

import msgspec

from millstream.stream import members
from millstream.type_variables import fill, given_to, in_classes


def bare(kind: Any) -> Any:
    """A type without its other names and its annotations."""
    while True:
        if hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif typing.get_origin(kind) in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final):
            kind = typing.get_args(kind)[0]
        elif hasattr(kind, "__value__") and not isinstance(kind, type):  # what `type X = ...` makes
            kind = kind.__value__
        else:
            return kind


def class_of(kind: Any) -> Any:
    """The class of a type, without its brackets."""
    kind = bare(kind)
    return typing.get_origin(kind) or kind


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def has_fields(kind: Any) -> bool:
    """Whether a class has fields that are typed."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or is_struct(kind) or is_named_tuple(kind) or typing.is_typeddict(kind)
    )


def field_types(kind: Any) -> dict[str, Any]:
    """The types of the fields of a class with fields, by name; `Change[int]` has `int | None` twice."""
    kind = bare(kind)
    cls = class_of(kind)
    hints = typing.get_type_hints(cls, include_extras=True)
    known = in_classes(cls, given_to(kind))
    owners = {name: owner for owner in reversed(cls.__mro__) for name in vars(owner).get("__annotations__", ())}
    return {name: fill(hints.get(name, Any), known.get(owners.get(name, cls), {})) for name in _names(cls)}


def _names(cls: Any) -> Iterable[str]:
    if is_struct(cls):
        return typing.cast(Iterable[str], cls.__struct_fields__)
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return typing.cast(Iterable[str], cls.__annotations__ if typing.is_typeddict(cls) else cls._fields)


def parts_of(kind: Any) -> tuple[Any, ...]:
    """The types that a type is made of, one level down."""
    kind = bare(kind)
    if len(members(kind)) > 1:
        return members(kind)
    if typing.get_origin(kind) is typing.Literal:
        return ()
    inner = tuple(part for part in typing.get_args(kind) if part is not Ellipsis and not isinstance(part, list))
    return (*inner, *field_types(kind).values()) if has_fields(class_of(kind)) else inner
