"""Values as columns of a PostgreSQL table: which there are for a type, and what stands in them."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from millstream.core.codec import encode_value
from millstream.errors import TopologyError
from millstream.record import Record
from millstream.stream import called
from millstream.targets.postgres import LONGEST_NAME, Names
from millstream.timestamp import Duration, Timestamp, to_datetime

_PLAIN: dict[Any, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    str: "text",
    bytes: "bytea",
    date: "date",
    UUID: "uuid",
    Decimal: "numeric",
    timedelta: "interval",
}

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class ColumnType:
    """What a Python type is in PostgreSQL, and how a value that is not None gets there."""

    type: str
    nullable: bool = False
    convert: Convert | None = None  # None: as it is


@dataclass(frozen=True)
class TableColumn:
    """A column, and where its values come from."""

    name: str
    type: str
    nullable: bool
    values: Callable[[Sequence[Record[Any]]], list[Any]]


def columns_of(kind: Any, names: Names, *, deletes: bool) -> list[TableColumn]:
    """Key, value columns, timestamp, id. With `deletes`, a value of None is no row, so it makes no column nullable."""
    found = [
        TableColumn(names.key, "text", False, lambda records: [record.key for record in records]),
        *_value_columns(kind, deletes=deletes),
        TableColumn(names.timestamp, "timestamptz", False, lambda records: [to_datetime(record.timestamp) for record in records]),
        TableColumn(names.id, "text", False, lambda records: [record.id for record in records]),
    ]
    _check_names([column.name for column in found], kind, names)
    return found


def column_type(kind: Any) -> ColumnType:
    """What has no type of its own in PostgreSQL, or holds other values, is jsonb."""
    if kind is Timestamp:
        return ColumnType("timestamptz", convert=to_datetime)
    if kind is Duration:
        return ColumnType("interval", convert=lambda span: timedelta(microseconds=span))
    kind, nullable = _without_none(_bare(kind))
    if nullable:
        return dataclasses.replace(column_type(kind), nullable=True)
    if kind is type(None):
        return dataclasses.replace(_json(), nullable=True)
    if kind is datetime:
        return ColumnType("timestamptz", convert=_in_utc)
    if kind is time:
        return ColumnType("time", convert=_without_zone)
    if kind in (bytearray, memoryview):
        return ColumnType("bytea", convert=bytes)
    if isinstance(kind, Hashable) and kind in _PLAIN:
        return ColumnType(_PLAIN[kind])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        inner = _common(member.value for member in kind)
        return _json() if inner is None else dataclasses.replace(inner, convert=lambda member: member.value)
    if typing.get_origin(kind) is typing.Literal:
        return _common(typing.get_args(kind)) or _json()
    return _json()


def _value_columns(kind: Any, *, deletes: bool) -> list[TableColumn]:
    whole, optional = _without_none(_bare(kind))
    fields = _fields(whole)
    if not fields:
        found = column_type(Any if kind is None else kind)
        nullable = not deletes and (found.nullable or kind in (None, Any))
        return [TableColumn("value", found.type, nullable, _taking(found.convert, lambda value: value))]
    get = _getter(whole)
    columns = []
    for name, hint in fields.items():
        found = column_type(hint)
        nullable = found.nullable or _may_lack(whole, name, hint) or (optional and not deletes)
        columns.append(TableColumn(name, found.type, nullable, _taking(found.convert, get(name))))
    return columns


def _taking(convert: Convert | None, get: Convert) -> Callable[[Sequence[Record[Any]]], list[Any]]:
    """The values of a column, many at a time."""

    def plain(records: Sequence[Record[Any]]) -> list[Any]:
        return [None if (value := record.value) is None else get(value) for record in records]

    def converted(records: Sequence[Record[Any]]) -> list[Any]:
        assert convert is not None
        return [None if value is None else convert(value) for value in plain(records)]

    return plain if convert is None else converted


def _fields(kind: Any) -> dict[str, Any]:
    """Names and types of what has fields; nothing for all else."""
    cls = typing.get_origin(kind) or kind
    if not isinstance(cls, type):
        return {}
    if issubclass(cls, msgspec.Struct):
        names: Iterable[str] = cls.__struct_fields__
    elif dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    elif typing.is_typeddict(cls):
        names = cls.__annotations__
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        names = cls._fields
    else:
        return {}
    known = dict(zip((each.__name__ for each in getattr(cls, "__parameters__", ())), typing.get_args(kind), strict=False))
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: known.get(getattr(hint, "__name__", ""), hint) for name in names for hint in [hints.get(name, Any)]}


def _getter(kind: Any) -> Callable[[str], Convert]:
    if typing.is_typeddict(typing.get_origin(kind) or kind):
        return lambda name: lambda value: value.get(name)
    return lambda name: lambda value: getattr(value, name)


def _may_lack(kind: Any, name: str, hint: Any) -> bool:
    """Whether a TypedDict need not have the entry. What it says itself is wrong where annotations are text."""
    if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        return typing.get_origin(hint) is typing.NotRequired
    return name in getattr(typing.get_origin(kind) or kind, "__optional_keys__", ())


def _bare(kind: Any) -> Any:
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


def _without_none(kind: Any) -> tuple[Any, bool]:
    """`X | None` as X and True; a union of more stays one."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind, False
    every = typing.get_args(kind)
    others = tuple(each for each in every if each is not type(None))
    return _bare(others[0]) if len(others) == 1 else typing.Union[others], len(others) < len(every)  # noqa: UP007


def _common(values: Iterable[Any]) -> ColumnType | None:
    """The type that all values have; None if they have several, or one that is jsonb."""
    kinds = {type(value) for value in values}
    found = column_type(kinds.pop()) if len(kinds) == 1 else _json()
    return None if found.type == "jsonb" else found


def _json() -> ColumnType:
    return ColumnType("jsonb", convert=lambda value: Jsonb(value, dumps=encode_value))


def _in_utc(moment: datetime) -> datetime:
    """One without a time zone is taken for UTC, as in other delivered tables, and never by the settings of a server."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _without_zone(moment: time) -> time:
    if moment.tzinfo is not None:
        raise ValueError(f"{moment} has a time zone, which a column of type time cannot hold; use a datetime")
    return moment


def _check_names(found: list[str], kind: Any, names: Names) -> None:
    for name in found:
        if not name or len(name.encode()) > LONGEST_NAME or "\0" in name:
            raise TopologyError(f"to_postgres: {name!r} cannot be a column; PostgreSQL wants 1 to {LONGEST_NAME} bytes, without NUL")
    for option, ours in dataclasses.asdict(names).items():
        if found.count(ours) > 1:
            raise TopologyError(
                f"to_postgres: {called(kind)} brings a column {ours!r}, and so does the {option} of the records; "
                f"call that another name: to_postgres(..., {option}='record_{option}')"
            )
