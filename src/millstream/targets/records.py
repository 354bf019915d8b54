"""From what was read to the records that a target is given: in order, with their values decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise, repeat
from operator import attrgetter
from typing import Any, Protocol

from millstream.core.parts import Columns
from millstream.errors import RecordError
from millstream.record import Record
from millstream.targets.delivery import Content, Stretch

Decode = Callable[[bytes | str], Any]


def records_of(contents: Sequence[Content], decode: Decode, stream: str) -> list[Record[Any]]:
    """Records by timestamp, those of one timestamp as they were produced: by origin, then by number.

    The order rests on ids alone, so a repeated step has it too, whether it is read from the journal or from the log.
    A value that does not decode is refused by naming its record.
    """
    records: list[Record[Any]] = []
    for content in _by_id(contents):
        columns = content.columns
        try:
            values = [decode(value) for value in columns.values]
        except Exception:
            _refuse(content, decode, stream)
            raise
        places = repeat(False), repeat(f"{content.origin}/{content.major}/"), columns.minors
        records += map(Record, columns.keys, values, columns.timestamps, *places)
    records.sort(key=attrgetter("timestamp"))  # stable, and quick where they are in order already
    return records


class Alike(Protocol):
    """Records whose ids begin alike, as the log gives them."""

    @property
    def origin(self) -> str: ...
    @property
    def major(self) -> int: ...
    @property
    def columns(self) -> Columns: ...


def stretch(epochs: Iterable[tuple[int, Sequence[Alike]]], upto: int, at_most: int | None) -> Stretch:
    """Whole epochs of the log, up to `upto` or until there are so many records, at least one that has any.

    Reads on by one epoch to see that it is too much; what comes after that is left unread.
    """
    found: list[Content] = []
    records = 0
    for epoch, pieces in epochs:
        more = sum(len(piece.columns) for piece in pieces)
        if at_most is not None and records and records + more > at_most:
            return Stretch(epoch - 1, found)
        records += more
        found += [Content(piece.origin, piece.major, piece.columns) for piece in pieces]
    return Stretch(upto, found)


def _by_id(contents: Sequence[Content]) -> Iterator[Content]:
    """The same records in the order of their ids."""

    def source(content: Content) -> tuple[str, int]:
        return content.origin, content.major

    whole = [content for content in contents if len(content.columns)]
    for (origin, major), same in groupby(sorted(whole, key=source), key=source):
        yield Content(origin, major, _by_number([content.columns for content in same]))


def _by_number(parts: Sequence[Columns]) -> Columns:
    """One after the other where their numbers do not overlap, else merged: injected values are dealt over the lanes."""
    parts = sorted(parts, key=lambda part: part.minors[0])
    if len(parts) == 1:
        return parts[0]
    keys = [key for part in parts for key in part.keys]
    values = [value for part in parts for value in part.values]
    timestamps = [at for part in parts for at in part.timestamps]
    minors = [minor for part in parts for minor in part.minors]
    if all(left.minors[-1] < right.minors[0] for left, right in pairwise(parts)):
        return Columns(keys, values, timestamps, minors)
    order = sorted(range(len(minors)), key=minors.__getitem__)
    return Columns([keys[n] for n in order], [values[n] for n in order], [timestamps[n] for n in order], [minors[n] for n in order])


def _refuse(content: Content, decode: Decode, stream: str) -> None:
    """Find the record whose value is to blame."""
    columns = content.columns
    for key, value, minor in zip(columns.keys, columns.values, columns.minors, strict=True):
        try:
            decode(value)
        except Exception as error:
            where = f"record {content.origin}/{content.major}/{minor} of stream {stream!r}, key {key!r}"
            why = f"its value does not fit the type of the stream: {error}; widen the type, and start again"
            raise RecordError(where, why) from error
