"""Values as typed columns: what a person finds in a delivered table."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from millstream.core.codec import value_encoder
from millstream.fields import field_types
from millstream.log.parquet import MICROSECONDS
from millstream.timestamp import Timestamp

_PLAIN: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime: MICROSECONDS,
    date: pa.date32(),
}


@dataclass(frozen=True)
class Column:
    """The Arrow type for a Python type, and how a value gets there."""

    type: pa.DataType
    convert: Callable[[Any], Any] | None  # None: as it is

    def of(self, value: Any) -> Any:
        return value if value is None or self.convert is None else self.convert(value)

    def array(self, values: list[Any]) -> pa.Array:
        return pa.array([self.of(value) for value in values], self.type)


def column(kind: Any, within: tuple[Any, ...] = ()) -> Column:
    """How values of `kind` stand in a table. What has no columns of its own becomes JSON text."""
    if kind is Timestamp:
        return Column(MICROSECONDS, None)
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    if kind is timedelta:
        return Column(pa.int64(), lambda span: span // timedelta(microseconds=1))  # Delta knows no spans
    if kind in _PLAIN:
        return Column(_PLAIN[kind], None)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        return column(others[0], within) if len(others) == 1 else _json(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return Column(column(type(next(iter(kind)).value)).type, lambda member: member.value)
    if origin is typing.Literal:
        return column(type(arguments[0])) if len({type(argument) for argument in arguments}) == 1 else _json(kind)
    if origin in (list, set, frozenset) or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        inner = column(arguments[0], within)
        return Column(pa.list_(inner.type), lambda values: [inner.of(value) for value in values])
    if origin is dict:
        of_key, of_value = column(arguments[0], within), column(arguments[1], within)
        return Column(pa.map_(of_key.type, of_value.type), lambda found: [(of_key.of(k), of_value.of(v)) for k, v in found.items()])
    return _struct(origin or kind, kind, within)


def _struct(cls: Any, kind: Any, within: tuple[Any, ...]) -> Column:
    if cls in within:
        return _json(kind)  # a type within itself has no end
    if not isinstance(cls, type) or not (dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct)):
        return _json(kind)
    parts = {name: column(hint, (*within, cls)) for name, hint in field_types(kind).items()}
    if not parts:
        return _json(kind)
    made = pa.struct([pa.field(name, part.type) for name, part in parts.items()])
    return Column(made, lambda value: {name: part.of(getattr(value, name)) for name, part in parts.items()})


def _json(kind: Any) -> Column:
    encode = value_encoder(kind)
    return Column(pa.string(), lambda value: encode(value).decode())
