"""Values as columns of a PostgreSQL table: which there are for a type, and what stands in them."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from millstream.change import Change
from millstream.clients.postgres_dsn import LONGEST_NAME
from millstream.clients.row_types import bare, fields_of_type, may_lack, without_none
from millstream.core.codec import value_encoder
from millstream.errors import TopologyError
from millstream.record import Record
from millstream.stream import called
from millstream.targets.postgres import Names
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
    """Key, value columns, timestamp, id. With `deletes`, a value of None is no row, so it makes no column nullable; and of a
    `Change` the columns are those of the row that it leaves."""
    row = row_of_change(kind) if deletes else None
    found = [
        TableColumn(names.key, "text", False, lambda records: [record.key for record in records]),
        *(_value_columns(kind, deletes=deletes) if row is None else _value_columns(row, deletes=True, row=_row_left)),
        TableColumn(names.timestamp, "timestamptz", False, lambda records: [to_datetime(record.timestamp) for record in records]),
        TableColumn(names.id, "text", False, lambda records: [record.id for record in records]),
    ]
    _check_names([column.name for column in found], kind, names)
    return found


def row_of_change(kind: Any) -> Any:
    """The type of the rows of a stream of changes, `Any` where it does not say; None of any other stream."""
    whole, _ = without_none(bare(kind))
    if (typing.get_origin(whole) or whole) is not Change:
        return None
    return next(iter(typing.get_args(whole)), Any)


def is_deletion(value: Any) -> bool:
    """Whether the row of a record is to go: it has no value, or is a change that leaves nothing."""
    return value is None or (isinstance(value, Change) and value.after is None)


def column_type(kind: Any) -> ColumnType:
    """What has no type of its own in PostgreSQL, or holds other values, is jsonb."""
    if kind is Timestamp:
        return ColumnType("timestamptz", convert=to_datetime)
    if kind is Duration:
        return ColumnType("interval", convert=lambda span: timedelta(microseconds=span))
    kind, nullable = without_none(bare(kind))
    if nullable:
        return dataclasses.replace(column_type(kind), nullable=True)
    if kind is type(None):
        return dataclasses.replace(_json(kind), nullable=True)
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
        return _json(kind) if inner is None else dataclasses.replace(inner, convert=lambda member: member.value)
    if typing.get_origin(kind) is typing.Literal:
        return _common(typing.get_args(kind)) or _json(kind)
    return _json(kind)


def _value_columns(kind: Any, *, deletes: bool, row: Convert | None = None) -> list[TableColumn]:
    """Of values, or of what `row` finds in them."""
    whole, optional = without_none(bare(kind))
    fields = fields_of_type(whole)
    if not fields:
        found = column_type(Any if kind is None else kind)
        nullable = not deletes and (found.nullable or kind in (None, Any))
        return [TableColumn("value", found.type, nullable, _taking(found.convert, lambda value: value, row))]
    get = _getter(whole)
    columns = []
    for name, hint in fields.items():
        found = column_type(hint)
        nullable = found.nullable or may_lack(whole, name, hint) or (optional and not deletes)
        columns.append(TableColumn(name, found.type, nullable, _taking(found.convert, get(name), row)))
    return columns


def _row_left(change: Change[Any] | None) -> Any:
    return None if change is None else change.after


def _taking(convert: Convert | None, get: Convert, row: Convert | None) -> Callable[[Sequence[Record[Any]]], list[Any]]:
    """The values of a column, many at a time."""

    def plain(records: Sequence[Record[Any]]) -> list[Any]:
        if row is not None:
            return [None if (value := row(record.value)) is None else get(value) for record in records]
        return [None if (value := record.value) is None else get(value) for record in records]

    def converted(records: Sequence[Record[Any]]) -> list[Any]:
        assert convert is not None
        return [None if value is None else convert(value) for value in plain(records)]

    return plain if convert is None else converted


def _getter(kind: Any) -> Callable[[str], Convert]:
    if typing.is_typeddict(typing.get_origin(kind) or kind):
        return lambda name: lambda value: value.get(name)
    return lambda name: lambda value: getattr(value, name)


def _common(values: Iterable[Any]) -> ColumnType | None:
    """The type that all values have; None if they have several, or one that is jsonb."""
    kinds = {type(value) for value in values}
    found = column_type(kinds.pop()) if len(kinds) == 1 else _json(Any)
    return None if found.type == "jsonb" else found


def _json(kind: Any) -> ColumnType:
    encode = value_encoder(kind)
    return ColumnType("jsonb", convert=lambda value: Jsonb(value, dumps=encode))


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
