"""A source of one's own: the rows of a table in SQLite, each of them once, in the order of their ids.

The guide shows it (docs/guide/injectors.md, "A source of your own"), and the tests run the contract for sources against it.
"""

import sqlite3
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

import millstream as ms

V = TypeVar("V")

LOOK_EVERY = 0.05  # seconds
ROWS_PER_PIECE = 2_000  # of a backlog that lanes read
BYTES_PER_ROW = 200  # about
SELECT = "select * from {} where id > ? and id <= ? order by id limit ?"
NEWEST = "select coalesce(max(id), 0) from {}"


class Table(ms.Source[V]):
    """A table with a column `id integer primary key autoincrement`. Rows are values, by the names of their columns.

    SQLite has one writer at a time, so a row never shows after one with a greater id. In other databases it may.
    """

    gives_pieces = True

    def __init__(self, path: str, table: str, value: type[V]) -> None:
        self._path, self._table, self.value_type = Path(path).absolute(), table, value

    def describe(self) -> str:
        return f"table {self._table} in SQLite {self._path}"

    def check(self, context: ms.SourceContext) -> None:
        if not self._path.exists():
            raise ms.TopologyError(f"injector {context.injector!r}: there is no database {self._path}; create it first")
        self.open(context).close()

    def open(self, context: ms.SourceContext) -> ms.SourceReader:
        return TableReader(Rows(self._path, self._table), int(context.positions.get("", 0)))

    def piece_reader(self, context: ms.SourceContext) -> ms.PieceReader:
        return TablePieceReader(Rows(self._path, self._table))

    def position(self, of: object) -> Mapping[str, ms.Position] | None:
        """The id of a row, as `cursor.lastrowid` tells whoever has inserted it."""
        return {"": of} if isinstance(of, int) else None


@contextmanager
def answering() -> Generator[None]:
    """What may be over soon, such as "database is locked", is tried again."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise ms.Unreachable(str(error)) from error


def as_text(of: bytes) -> str:
    """What is not UTF-8 would be an error of SQLite's at every try."""
    return of.decode(errors="replace")


class Rows:
    """Some of them at a time. Nothing is changed: the database is opened for reading."""

    def __init__(self, path: Path, table: str) -> None:
        self._table = table
        with answering():
            self._database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1)
        self._database.row_factory = sqlite3.Row
        self._database.text_factory = as_text
        self.close = self._database.close

    def newest(self) -> int:
        with answering():
            return int(self._database.execute(NEWEST.format(self._table)).fetchone()[0])

    def read(self, after: int, upto: int, at_most: int) -> ms.Batch:
        """Rows with ids after the one and up to the other. The position is the id up to which there are no more."""
        with answering():
            rows = self._database.execute(SELECT.format(self._table), (after, upto, at_most)).fetchall()
        reached = rows[-1]["id"] if len(rows) == at_most else upto
        return ms.Batch([msgspec.json.encode(dict(row)) for row in rows], [row["id"] for row in rows], {"": reached})


class TableReader(ms.SourceReader):
    def __init__(self, rows: Rows, given: int) -> None:
        self._rows, self._given = rows, given
        try:
            self._newest = rows.newest()
        except ms.Unreachable:
            rows.close()
            raise

    def poll(self, at_most: int, timeout: float) -> Sequence[ms.Batch | ms.Piece]:
        deadline = time.monotonic() + timeout
        while not self._has_more():
            if self.finishing or time.monotonic() >= deadline:
                return []
            time.sleep(LOOK_EVERY)
        if self._newest - self._given > ROWS_PER_PIECE:
            return list(self._pieces())
        batch = self._rows.read(self._given, self._newest, at_most)
        self._given = int(batch.positions[""])
        return [batch]

    def finish(self) -> None:
        self._newest = self._rows.newest()
        super().finish()

    def lag(self) -> Mapping[str, int]:
        return {"": max(0, self._newest - self._given)}

    def close(self) -> None:
        self._rows.close()

    def _has_more(self) -> bool:
        if not self.finishing:  # then only what there was is wanted
            self._newest = self._rows.newest()
        return self._newest > self._given

    def _pieces(self) -> Iterator[ms.Piece]:
        """Of all that there is, each for another lane: after which id it begins, and with which one it ends."""
        while self._given < self._newest:
            upto = min(self._given + ROWS_PER_PIECE, self._newest)
            yield ms.Piece(msgspec.json.encode([self._given, upto]), ROWS_PER_PIECE * BYTES_PER_ROW, lane=upto // ROWS_PER_PIECE)
            self._given = upto


class TablePieceReader(ms.PieceReader):
    """In a lane: another process, perhaps on another machine."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def read(self, piece: ms.Piece, at_most: int) -> Iterator[ms.Batch]:
        after, upto = msgspec.json.decode(piece.content)
        while after < upto:
            batch = self._rows.read(after, upto, at_most)
            yield batch
            after = int(batch.positions[""])

    def close(self) -> None:
        self._rows.close()
