"""Rows of a table as a person finds them in a delivered one: the key, and a column for each field of a row."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from millstream.change import Change
from millstream.clients.row_types import bare, fields_of_type, without_none
from millstream.core.codec import value_decoder
from millstream.delivery import row_type
from millstream.errors import LogError, RecordError, TopologyError
from millstream.log.typed import Column, column
from millstream.stream import called
from millstream.timestamp import Timestamp

_UNFIT = (msgspec.MsgspecError, pa.ArrowException, ValueError, OverflowError, TypeError)


class Told(NamedTuple):
    """When a change was told, in the order in which those of a key count; and so its id."""

    epoch: int
    timestamp: Timestamp
    origin: str
    major: int
    minor: int


NewestChanges = Mapping[str, tuple[Told, bytes]]  # the last change of each key


class RowValues:
    """How the changes of a table become rows with columns."""

    def __init__(self, stream: str, kind: Any, key: str) -> None:
        self.stream, self.key = stream, key
        self._decode: Callable[[bytes], Change[Any]] = value_decoder(kind)
        self._columns = _columns(row_type(kind))
        names = [key, *(name for name, _, _ in self._columns)]
        for name in names[1:]:
            if name.lower() == key.lower():  # Delta tells no two columns apart by case
                raise TopologyError(
                    f"delta_rows: {called(row_type(kind))} brings a column {name!r}, and so does the key of its rows; "
                    f"call that another name: delta_rows(..., key='row_key')"
                )
        if len({name.lower() for name in names}) < len(names):
            raise TopologyError(f"delta_rows: two fields of {called(row_type(kind))} differ in case only, and Delta cannot; rename one")
        types = [pa.string(), *(found.type for _, found, _ in self._columns)]
        self.schema: pa.Schema = pa.schema([pa.field(name, type_) for name, type_ in zip(names, types, strict=True)])

    def rows(self, changes: NewestChanges) -> pa.Table:
        """The rows that changes leave; those that leave none are not among them."""
        try:
            return self._rows(changes)
        except _UNFIT:
            for key, (told, text) in changes.items():
                try:
                    self._rows({key: (told, text)})
                except _UNFIT as error:
                    where = f"record {told.origin}/{told.major}/{told.minor} of stream {self.stream!r}, key {key!r}"
                    why = (
                        f"its row does not fit the type of the table: {error}; widen the type, deliver to another path if that changes "
                        f"a column, and start again"
                    )
                    raise RecordError(where, why) from error
            raise

    def check(self, path: Path, standing: pa.Schema) -> None:
        if standing.names != self.schema.names or standing.types != self.schema.types:
            raise LogError(
                f"the table {path} has the columns {_spelled(standing)}, and the rows of stream {self.stream!r} have "
                f"{_spelled(self.schema)}; deliver them to another path, or keep the old type"
            )

    def _rows(self, changes: NewestChanges) -> pa.Table:
        keys, rows = [], []
        for key, (_, text) in changes.items():
            if (row := self._decode(text).after) is not None:
                keys.append(key)
                rows.append(row)
        found = [made.array([get(row) for row in rows]) for _, made, get in self._columns]
        return pa.table([pa.array(keys, pa.string()), *found], schema=self.schema)


def _columns(kind: Any) -> list[tuple[str, Column, Callable[[Any], Any]]]:
    """Of a type with fields one for each, of any other the value itself."""
    row, _ = without_none(bare(kind))
    fields = fields_of_type(row)
    if not fields:
        return [("value", column(row), lambda row: row)]
    if typing.is_typeddict(typing.get_origin(row) or row):
        return [(name, column(bare(hint)), _entry(name)) for name, hint in fields.items()]
    return [(name, column(bare(hint)), attrgetter(name)) for name, hint in fields.items()]


def _entry(name: str) -> Callable[[Any], Any]:
    get = itemgetter(name)
    return lambda row: get(row) if name in row else None


def _spelled(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
