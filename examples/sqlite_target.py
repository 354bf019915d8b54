"""A target of one's own: the records of a stream as rows in SQLite, exactly once.

The guide shows it (docs/guide/deliveries.md, "A target of your own"), and the tests run the contract for targets against it.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import millstream as ms

TABLES = """
create table if not exists records (id text, key text, value text, timestamp integer);
create table if not exists steps (identity text primary key, fence integer, number integer, after integer, upto integer);
"""
RAISE = """
insert into steps (identity, fence) values (:identity, :fence)
on conflict (identity) do update set fence = :fence where fence < :fence
"""
MOVE = """
update steps set number = :number, after = :after, upto = :upto
where identity = :identity and fence = :fence and (upto = :after or (upto is null and :number = 0))
"""


class SQLite(ms.Target):
    transactional = True

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()

    def describe(self) -> str:
        return f"SQLite {self._path}"

    def open(self, context: ms.DeliveryContext) -> ms.Sink:
        return SQLiteSink(self._path, context)


@contextmanager
def answering() -> Generator[None]:
    """What may be over soon, such as "database is locked", is tried again."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise ms.Unreachable(str(error)) from error


class SQLiteSink(ms.Sink):
    def __init__(self, path: Path, context: ms.DeliveryContext) -> None:
        self._who = {"identity": context.identity, "fence": context.fence}
        # It is opened by one thread and used by another, never by two at once.
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with answering():
                self._database.executescript(TABLES)
                self._database.execute(RAISE, self._who)  # from here on an older run is refused
        except ms.Unreachable:
            self._database.close()
            raise

    def last_step(self) -> ms.Step | None:
        with answering():
            found = self._database.execute("select number, after, upto from steps where identity = :identity and upto > 0", self._who)
            row = found.fetchone()
        return None if row is None else ms.Step(*row)

    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        rows = [(record.id, record.key, msgspec.json.encode(record.value).decode(), record.timestamp) for record in records]
        database = self._database
        try:
            with answering():
                database.execute("begin immediate")
                moved = database.execute(MOVE, {**self._who, "number": step.number, "after": step.after, "upto": step.upto})
                if moved.rowcount != 1:
                    raise ms.Fenced("a newer run delivers to this database")
                database.executemany("insert into records values (?, ?, ?, ?)", rows)
                database.execute("commit")
        finally:
            if database.in_transaction:
                database.execute("rollback")

    def close(self) -> None:
        self._database.close()
