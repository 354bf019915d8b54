"""The source of the guide, as somebody else would write it: in a file of its own, with public names only."""

from __future__ import annotations

import ast
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import millstream as ms
from millstream.testing import SourceContract
from tests.examples import FOLDER, load_example


@dataclass(frozen=True)
class Number:
    n: int


def insert(path: Path, *numbers: int) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("insert into numbers (n) values (?)", [(n,) for n in numbers])


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "numbers.db")) as database:
        database.execute("create table numbers (id integer primary key autoincrement, n integer)")
    return tmp_path / "numbers.db"


class TestTable(SourceContract):
    """As the guide shows it."""

    value_type = Number
    backlog = 5_000
    tells_lag = True

    @pytest.fixture(autouse=True)
    def at(self, numbers: Path) -> Iterator[None]:
        self.path = numbers
        with closing(sqlite3.connect(numbers)) as self.database:
            yield

    def make(self) -> ms.Source[Number]:
        return load_example("sqlite_source").Table(str(self.path), "numbers", Number)  # type: ignore[no-any-return]

    def value(self, n: int) -> Number:
        return Number(n)

    def add(self, values: Sequence[Number], partition: int) -> None:
        with self.database:
            self.database.executemany("insert into numbers (n) values (?)", [(value.n,) for value in values])

    def add_bad(self, partition: int) -> None:
        with self.database:
            self.database.execute("insert into numbers (n) values (null)")

    def cut_off(self) -> None:
        self.database.execute("begin exclusive")

    def reconnect(self) -> None:
        self.database.rollback()


def test_rows_that_were_deleted_leave_gaps(numbers: Path) -> None:
    source = load_example("sqlite_source").Table(str(numbers), "numbers", Number)
    insert(numbers, *range(6))
    with closing(sqlite3.connect(numbers)) as database, database:
        database.execute("delete from numbers where n in (1, 4, 5)")
    with closing(source.open(ms.SourceContext("numbers", Number, {}))) as reader:
        (batch,) = reader.poll(10, 0.0)
        assert list(batch.numbers) == [1, 3, 4]
        insert(numbers, 6)
        (batch,) = reader.poll(10, 0.0)
        assert list(batch.numbers) == [7]


@pytest.mark.parametrize(("path", "table", "why"), [("no.db", "numbers", "there is no database"), ("numbers.db", "no", "no such table")])
def test_what_is_not_there_is_refused(numbers: Path, path: str, table: str, why: str) -> None:
    source = load_example("sqlite_source").Table(str(numbers.with_name(path)), table, Number)
    with pytest.raises(ms.MillstreamError, match=why):
        source.check(ms.SourceContext("numbers", Number, {}))
    assert list(numbers.parent.iterdir()) == [numbers]


def test_it_uses_public_names_only() -> None:
    tree = ast.parse((FOLDER / "sqlite_source.py").read_text(encoding="utf-8"))
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [name for name in imported if name.startswith("millstream")] == ["millstream"]
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "ms"}
    assert used <= set(ms.__all__)
