"""What lies in the log and has not been delivered: files in order, and the oldest record among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable

import msgspec

from millstream.timestamp import END_OF_TIME, Timestamp


class Position(msgspec.Struct, array_like=True, frozen=True, order=True):
    """A place in a table: the next commit to read, and how many of its files are read already."""

    version: int = 0
    file: int = 0


class LogFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of the log and what planning needs to know of it."""

    table: str
    position: Position
    path: str
    stream: str
    rows: int
    size: int
    oldest: Timestamp


class Limits(msgspec.Struct, frozen=True):
    """How much an epoch takes at most; one file is always taken, or nothing would ever move."""

    records: int
    size: int


class Backlog:
    """Undelivered files of the streams that are read. Taking and asking cost the same however long it is."""

    def __init__(self, tables: Iterable[str], read: Container[str]) -> None:
        self._read = read
        self._files: dict[str, deque[LogFile]] = {table: deque() for table in tables}
        self._end = {table: Position() for table in self._files}
        self._rows = 0
        # For each table and stream, the files that are older than all that follow them: the first is the oldest of all.
        self._oldest: dict[tuple[str, str], deque[LogFile]] = {}

    def add(self, table: str, files: Iterable[LogFile], end: Position) -> None:
        """A commit's files; `end` is the position after it."""
        for file in files:
            if file.stream in self._read and file.rows:
                self._files[table].append(file)
                self._rows += file.rows
                falling = self._oldest.setdefault((table, file.stream), deque())
                while falling and falling[-1].oldest >= file.oldest:
                    falling.pop()
                falling.append(file)
        self._end[table] = end

    def oldest(self, table: str, stream: str) -> Timestamp:
        """The oldest undelivered record of a stream."""
        falling = self._oldest.get((table, stream))
        return falling[0].oldest if falling else END_OF_TIME

    def positions(self) -> dict[str, Position]:
        """Where each table is to be read on."""
        return {table: files[0].position if files else self._end[table] for table, files in self._files.items()}

    def take(self, limits: Limits, *, first: str) -> list[LogFile]:
        """Files for the next epoch: those of the table `first`, then those with the oldest records, up to the limits.

        The mill's own table comes first, so that what is under way is finished before new input is let in;
        among the injectors the oldest goes first, so that inputs advance side by side in event time.
        """
        taken: list[LogFile] = []
        rows = size = 0
        while True:
            heads = [files[0] for files in self._files.values() if files]
            if not heads:
                return taken
            head = min(heads, key=lambda file: (file.table != first, file.oldest, file.table))
            if taken and (rows + head.rows > limits.records or size + head.size > limits.size):
                return taken
            self._files[head.table].popleft()
            falling = self._oldest[head.table, head.stream]
            if falling[0] is head:
                falling.popleft()
            taken.append(head)
            self._rows -= head.rows
            rows, size = rows + head.rows, size + head.size

    def rows(self) -> int:
        return self._rows
