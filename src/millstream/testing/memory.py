"""A journal and a store in dictionaries: for the driver of tests, which needs them no longer than its process lives."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.core.parts import Columns, Dealt, Frame, Part, RowsPart, decode_columns
from millstream.core.row import Changes

SEGMENT = "memory"  # the only one


class MemoryJournal:
    """Frames by offset, encoded as they are in a segment on a disk."""

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}
        self._end = 0

    def append(self, dealt: Iterable[Dealt], *, lane: int, changes: Changes | None = None) -> Frame:
        parts = []
        for each in dealt:
            data = each.encoded()
            parts.append(each.placed(self._put(data), len(data), 0))
        rows = None
        if changes is not None and changes.rows:
            data = changes.encode()
            rows = RowsPart(self._put(data), len(data), 0, changes.rows)
        return Frame(SEGMENT, lane, parts, rows)

    def part(self, part: Part) -> Columns:
        return decode_columns(self._kept[part.offset])

    def rows(self, rows: RowsPart) -> bytes:
        """As `Changes.encode` made them."""
        return self._kept[rows.offset]

    def remove(self, offsets: Iterable[int]) -> None:
        """Nobody needs these any more."""
        for offset in offsets:
            del self._kept[offset]

    def _put(self, data: bytes) -> int:
        offset = self._end
        self._kept[offset] = data
        self._end += len(data)
        return offset


class MemoryStore:
    """What a checkpoint holds."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.kept.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.kept[key] = value

    def remove(self, key: str) -> None:
        self.kept.pop(key, None)
