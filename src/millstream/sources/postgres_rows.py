"""Rows of a table as JSON text of the type of its rows, and the key under which each stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream import arguments
from millstream.clients.row_types import bare, fields_of_type, may_lack, without_none
from millstream.errors import TopologyError
from millstream.sources.postgres_pgoutput import UNCHANGED, Cell
from millstream.sources.postgres_values import Encode, ServerType, encoder
from millstream.stream import called


def row_fields(call: str, row: Any) -> dict[str, Any]:
    """The columns that a type of rows asks for, and the types of their fields."""
    arguments.value_type(call, row)
    kind = bare(row)
    fields, names = fields_of_type(kind), arguments.fields_of(kind)
    if not fields or names is None or (isinstance(kind, type) and issubclass(kind, tuple)):
        raise TopologyError(f"{call}: {called(row)} has no fields; give a dataclass or a msgspec.Struct with a field for each column")
    return dict(zip(names, fields.values(), strict=True))


def may_be_none(row: Any, name: str, hint: Any) -> bool:
    kind, optional = without_none(bare(hint))
    return optional or kind in (Any, None, type(None)) or may_lack(row, name, hint)


class RowEncoder:
    """For rows that come as values of these columns, in this order. Made once for a table, and again when it has changed."""

    def __init__(
        self, fields: Mapping[str, Any], columns: Sequence[tuple[str, ServerType]], key: Sequence[str], *, prefix: str = ""
    ) -> None:
        """Every field must have its column, of a type that fits it. `prefix` begins a key that several tables share."""
        places = {name: place for place, (name, _) in enumerate(columns)}
        self._parts: list[tuple[int, bytes, Encode]] = []
        for name, hint in fields.items():
            encode = encoder(columns[places[name]][1], hint)
            assert encode is not None
            sign = b"," if self._parts else b"{"
            self._parts.append((places[name], sign + msgspec.json.encode(name) + b":", encode))
        self._names = [name for name, _ in columns]
        self._key = [places[name] for name in key]
        self._prefix = [prefix] if prefix else []

    def row(self, cells: Sequence[Cell], reasons: list[str]) -> bytes:
        """The JSON of a row. What has none stands in it as text, and why is added to `reasons`."""
        found: list[bytes] = []
        for place, begin, encode in self._parts:
            cell = cells[place]
            found.append(begin)
            if cell is None:
                found.append(b"null")
                continue
            try:
                found.append(encode(cell))  # type: ignore[arg-type]
            except ValueError as error:
                assert isinstance(cell, bytes)
                reasons.append(f"column {self._names[place]!r}: {error}")
                found.append(msgspec.json.encode(cell.decode(errors="replace")))
        found.append(b"}")
        return b"".join(found)

    def key_values(self, cells: Sequence[Cell]) -> list[str]:
        return [cell.decode() for place in self._key if isinstance(cell := cells[place], bytes)]

    def key(self, cells: Sequence[Cell]) -> str:
        """The primary key as text; where it has several columns, or rows are of several tables, as a JSON list."""
        parts = [*self._prefix, *self.key_values(cells)]
        return parts[0] if len(parts) == 1 else msgspec.json.encode(parts).decode()

    def same_key(self, before: Sequence[Cell], after: Sequence[Cell]) -> bool:
        return all(before[place] == after[place] for place in self._key)

    def completed(self, after: list[Cell], before: Sequence[Cell] | None) -> str | None:
        """Put in what was not sent, for it did not change. The name of a column that is in neither; None if all is there."""
        for place, cell in enumerate(after):
            if cell is UNCHANGED:
                if before is None or before[place] is UNCHANGED:
                    return self._names[place]
                after[place] = before[place]
        return None
