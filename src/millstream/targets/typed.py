"""Rows as a person finds them in a delivered table or file: typed values, and ids in one column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from millstream.core.codec import value_decoder
from millstream.core.parts import Columns
from millstream.errors import LogError, RecordError
from millstream.log.parquet import MICROSECONDS
from millstream.log.reading_history import Line
from millstream.log.rows import ROWS_PER_FILE, Rows
from millstream.log.typed import column

BYTES_PER_FILE = 64 << 20  # of values, as they are in memory

T = TypeVar("T")

_UNFIT = (msgspec.MsgspecError, pa.ArrowException, ValueError, OverflowError, TypeError)


class Values:
    """How the values of a stream become a column."""

    def __init__(self, stream: str, kind: Any) -> None:
        self.stream, self.column, self._decode = stream, column(kind), value_decoder(kind)
        fields = [("key", pa.string()), ("value", self.column.type), ("timestamp", MICROSECONDS), ("id", pa.string())]
        self.schema: pa.Schema = pa.schema([pa.field(name, kind) for name, kind in fields])

    def table(self, rows: Rows) -> pa.Table:
        values = for_all(lambda texts: self.column.array([self._decode(text) for text in texts]), rows, self.stream)
        return pa.table([rows.key_array(), values, rows.timestamp_array(), pa.array(rows.ids(), pa.string())], schema=self.schema)

    def check(self, path: Path, standing: pa.Schema) -> None:
        """Refuse a table with other columns."""
        value = self.schema.field("value").type
        if standing.names != self.schema.names or standing.field("value").type != value:
            held = standing.field("value").type if "value" in standing.names else f"columns {', '.join(standing.names)}"
            raise LogError(
                f"the table {path} holds values of {held}, the stream {self.stream!r} now carries {value}; deliver it to another path, "
                f"or keep the old type"
            )


def for_all(change: Callable[[list[bytes]], T], rows: Rows, stream: str) -> T:
    """What becomes of the values of records; if one of them is to blame that nothing does, it is named."""
    try:
        return change(rows.values)
    except _UNFIT:
        for n, text in enumerate(rows.values):
            try:
                change([text])
            except _UNFIT as error:
                where = f"record {rows.ids()[n]} of stream {stream!r}, key {rows.keys[n]!r}"
                why = (
                    f"its value does not fit the type of the stream: {error}; widen the type, deliver to another path if that changes "
                    f"a column, and start again"
                )
                raise RecordError(where, why) from error
        raise


def json_lines(rows: Rows) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    columns = rows.keys, rows.values, rows.timestamp_array().to_pylist(), rows.ids()
    for key, value, timestamp, id_ in zip(*columns, strict=True):
        yield encode(Line(key, msgspec.Raw(value), timestamp, id_)) + b"\n"


class Gathered:
    """Rows that are handed on when they fill a file: what a target holds in memory."""

    def __init__(self, write: Callable[[Rows], None]) -> None:
        self._write, self._rows, self._size = write, Rows(), 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, epoch: int, origin: str, major: int, columns: Columns) -> None:
        if len(self._rows) and (len(self._rows) + len(columns) > ROWS_PER_FILE or self._size > BYTES_PER_FILE):
            self.flush()
        self._rows.add(epoch, origin, major, columns)
        self._size += sum(map(len, columns.values))

    def flush(self) -> None:
        rows, self._rows, self._size = self._rows, Rows(), 0
        if len(rows):
            for piece in rows.pieces():
                self._write(piece)

    def drop(self) -> None:
        self._rows, self._size = Rows(), 0
