"""What files hold, as lines of JSON with their places: JSON lines and text by ranges of bytes, all else from record to record."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from operator import add
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import RecordError
from millstream.format import Format
from millstream.source import SourceContext
from millstream.sources.file_source import COMPRESSED, FileSource

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BYTES_AT_ONCE = 4 << 20  # of records that are held at a time

R = TypeVar("R")

_BLANK_OR_RETURN = (b"\r", b"\n\n", b"\n ", b"\n\t", b"\n\f", b"\n\v")

csv.field_size_limit(min(sys.maxsize, 1 << 30))

_encode = msgspec.json.Encoder(decimal_format="number").encode


class Lines(msgspec.Struct):
    """Some values of a file: their JSON text, where each stands (a byte, or the number of the record), what columns say of each
    beside it, and by position why one is refused."""

    texts: list[bytes]
    places: list[int]
    columns: list[dict[str, Any]] | None = None
    reasons: dict[int, str] = {}
    after: int = 0  # of a file that cannot be cut: how many of its records were passed over or given by then


def can_be_cut(source: FileSource[Any], path: str) -> bool:
    """Whether a reader can begin at any byte."""
    return source.format in (Format.JSON_LINES, Format.TEXT) and not path.endswith(COMPRESSED)


def check_size(path: str, at_least: int) -> bool:
    """Whether there is something to read. One that was cut since it was first seen is refused; an empty one is what a user puts
    in place of one that is lost."""
    size = Path(path).stat().st_size
    if 0 < size < at_least:
        raise EOFError(f"it has {size} bytes, and had {at_least} when it was first seen")
    return size > 0


def read_bytes(source: FileSource[Any], path: str, start: int, end: int | None) -> Lines:
    """The lines that begin in a range of bytes; without an end, to the end of the file as it is now."""
    with open(path, "rb") as file:
        begin = 0
        if start:
            file.seek(start - 1)
            begin = start - 1 + len(file.readline())  # a line that began before is another range's
        if end is not None and begin >= end:
            return Lines([], [])
        file.seek(begin)
        content = file.read() if end is None else file.read(end - begin)
        if end is not None and not content.endswith(b"\n"):
            content += file.readline()
    if begin == 0 and content.startswith(BYTE_ORDER_MARK):
        content, begin = content[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
    texts = content.split(b"\n")
    if not texts[-1]:
        texts.pop()
    places = list(map(add, accumulate(map(len, texts), initial=begin), range(len(texts))))
    if source.format is Format.JSON_LINES and texts and texts[0][:1] == b"{" and not any(odd in content for odd in _BLANK_OR_RETURN):
        lines = Lines(texts, places)  # as nearly all are: nothing is looked at by the line
    else:
        lines = _tidy(source, texts, places)
    return lines if content.isascii() else _checked(source, lines)


def _checked(source: FileSource[Any], lines: Lines) -> Lines:
    """JSON is UTF-8. A field that the value does not have is passed over unseen when it is decoded, and the line is kept as it is."""
    if source.format is Format.JSON_LINES:
        for position, text in enumerate(lines.texts):
            try:
                text.decode()
            except UnicodeDecodeError as error:
                lines.reasons = {**lines.reasons, position: f"it is not UTF-8: {error}"}
    return lines


def _tidy(source: FileSource[Any], texts: list[bytes], places: list[int]) -> Lines:
    texts = [text[:-1] if text.endswith(b"\r") else text for text in texts]
    if source.format is Format.TEXT:
        return Lines([_encode(text.decode(errors="replace")) for text in texts], places)
    if any(not text or text.isspace() for text in texts):
        kept = [(text, place) for text, place in zip(texts, places, strict=True) if text and not text.isspace()]
        texts, places = [text for text, _ in kept], [place for _, place in kept]
    return Lines(texts, places)


def read_records(source: FileSource[Any], context: SourceContext, path: str, skip: int, at_once: int) -> Iterator[Lines]:
    """The records of a file that cannot be cut, after so many, some at a time."""
    if source.format is Format.PARQUET:
        return _parquet(context, source, path, skip, at_once)
    if source.format is Format.CSV:
        return _csv(context, source, path, skip, at_once)
    return _compressed_lines(source, path, skip, at_once)


def _opened(path: str) -> io.BufferedReader:
    compression = "detect" if path.endswith(COMPRESSED) else None
    return io.BufferedReader(pa.input_stream(path, compression=compression))


def _compressed_lines(source: FileSource[Any], path: str, skip: int, at_once: int) -> Iterator[Lines]:
    with _opened(path) as file:
        _pass_over(file, skip)
        while texts := [line.rstrip(b"\n") for line in _some(file, at_once, len)]:
            if skip == 0 and texts[0].startswith(BYTE_ORDER_MARK):
                texts[0] = texts[0][len(BYTE_ORDER_MARK) :]
            lines = _checked(source, _tidy(source, texts, list(range(skip, skip + len(texts)))))
            skip += len(texts)
            lines.after = skip
            yield lines


def _csv(context: SourceContext, source: FileSource[Any], path: str, skip: int, at_once: int) -> Iterator[Lines]:
    """An empty cell is left out: the field takes its default, or is missing."""
    with _opened(path) as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=source.separator, strict=True)
        try:
            names = _renamed(context, source, path, next(rows, []))
            records = ((row, place) for place, row in enumerate(row for row in rows if row))
            _pass_over(records, skip)
            while some := list(_some(records, at_once, _size_of_row)):
                yield _cells(names, source, some)
        except csv.Error as error:
            raise RecordError(f"injector {context.injector!r}, {path}, line {rows.line_num}", f"this is not CSV: {error}") from error


def _pass_over(records: Iterator[Any], count: int) -> None:
    if sum(1 for _ in islice(records, count)) < count:
        raise EOFError(f"it had more than {count} records when it was first read")


def _some(records: Iterator[R], at_once: int, size_of: Callable[[R], int]) -> Iterator[R]:
    """So many records, or bytes, at the most; but one."""
    size = 0
    for record in islice(records, at_once):
        yield record
        size += size_of(record)
        if size >= BYTES_AT_ONCE:
            return


def _size_of_row(row: tuple[list[str], int]) -> int:
    return sum(map(len, row[0]))


def _cells(names: list[str], source: FileSource[Any], some: list[tuple[list[str], int]]) -> Lines:
    lines = Lines([], [place for _, place in some], reasons={}, after=some[-1][1] + 1)
    for position, (row, _) in enumerate(some):
        if len(row) == len(names):
            lines.texts.append(_encode({name: cell for name, cell in zip(names, row, strict=True) if cell}))
        else:
            lines.reasons[position] = f"it has {len(row)} cells, and the header has {len(names)}"
            lines.texts.append(source.separator.join(row).encode())
    return lines


def _parquet(context: SourceContext, source: FileSource[Any], path: str, skip: int, at_once: int) -> Iterator[Lines]:
    with pq.ParquetFile(path) as file:
        instants = {file.schema.column(n).path for n in range(len(file.schema)) if file.schema.column(n).physical_type == "INT96"}
        metadata = file.metadata
        if metadata.num_rows < skip:
            raise EOFError(f"it has {metadata.num_rows} rows, and had more than {skip} when it was first read")
        size = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
        at_once = max(1, min(at_once, BYTES_AT_ONCE * metadata.num_rows // max(1, size)))
        groups, before = list(range(file.num_row_groups)), 0
        while groups and before + file.metadata.row_group(groups[0]).num_rows <= skip:
            before += file.metadata.row_group(groups.pop(0)).num_rows
        for batch in file.iter_batches(at_once, row_groups=groups):
            some = batch.slice(max(0, skip - before))
            before += batch.num_rows
            if some.num_rows:
                names = _renamed(context, source, path, some.schema.names)
                some = pa.RecordBatch.from_arrays([_plain(column, instants, [name]) for name, column in _named(some)], names=names)
                texts = [_encode(row) for row in some.to_pylist(maps_as_pydicts="strict")]
                yield Lines(texts, list(range(before - len(texts), before)), _beside(context, path, some), after=before)


def _named(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    return zip(batch.schema.names, batch.columns, strict=True)


def _plain(column: pa.Array, instants: set[str], path: list[str]) -> pa.Array:
    """Times in microseconds, as Python has them; those of Spark's own old kind, which say no zone, are UTC."""
    kind = _plain_type(column.type, instants, path)
    return column if kind == column.type else column.cast(kind, safe=False)


def _plain_type(kind: pa.DataType, instants: set[str], path: list[str]) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if ".".join(path) in instants else kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type, instants, [*path, field.name])) for field in kind])
    if pa.types.is_duration(kind):
        return pa.duration("us")
    inner = [*path, "list", "element"]
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type, instants, inner))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_type(kind.value_type, instants, inner))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _plain_type(kind.item_type, instants, [*path, "key_value", "value"]))
    return kind


def _renamed(context: SourceContext, source: FileSource[Any], path: str, names: list[str]) -> list[str]:
    """The columns of a file as the value calls them."""
    fields = {column: name for name, column in source.columns.items()}
    if names and (lacking := sorted(fields.keys() - set(names))):
        raise _no_column(context, path, lacking[0], names)
    if len(set(names)) < len(names):
        raise RecordError(f"injector {context.injector!r}, {path}", f"two of its columns have the same name: {', '.join(names)}")
    return [fields.get(name, name) for name in names]


def _no_column(context: SourceContext, path: str, name: str, names: list[str]) -> RecordError:
    return RecordError(f"injector {context.injector!r}, {path}", f"there is no column {name!r}; there are {', '.join(names)}")


def _beside(context: SourceContext, path: str, batch: pa.RecordBatch) -> list[dict[str, Any]] | None:
    """The columns that key and time are named by."""
    if not context.columns:
        return None
    names = sorted(context.columns)
    cells = [_column(context, path, batch, name).to_pylist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]


def _column(context: SourceContext, path: str, batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        raise _no_column(context, path, name, batch.schema.names)
    column = batch.column(name)
    if name not in context.times:
        return column.cast(pa.string())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return column.cast(pa.timestamp("us", getattr(column.type, "tz", None))).cast(pa.int64())
    raise RecordError(
        f"injector {context.injector!r}, {path}",
        f"the column {name!r} is {column.type}; a time is a timestamp, or microseconds as a 64-bit integer",
    )
