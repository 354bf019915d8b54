"""The target of the guide, as somebody else would write it: in a file of its own, with public names only."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.testing import TransactionalTargetContract
from tests.examples import load_example
from tests.targets.fakes import TIMEOUT, FakeJournal, deliver_all, delivery
from tests.waiting import wait_until


def rows(path: Path) -> list[tuple[str, Any]]:
    database = sqlite3.connect(path)
    try:
        return [(key, json.loads(value)) for key, value in database.execute("select key, value from records order by rowid")]
    finally:
        database.close()


class TestSQLite(TransactionalTargetContract):
    @pytest.fixture(autouse=True)
    def at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.path, self.example, self.connect = tmp_path / "rows.db", load_example("sqlite_target"), sqlite3.connect
        monkeypatch.setattr(self.example.sqlite3, "connect", lambda path, **more: self.connect(path, timeout=0.01, **more))
        with closing(self.connect(tmp_path / "rows.db", isolation_level=None)) as self.other:
            yield

    def make(self) -> ms.Target:
        return self.example.SQLite(str(self.path))  # type: ignore[no-any-return]

    def stored(self) -> list[tuple[str, Any]]:
        return rows(self.path)

    def bad_value(self) -> object:
        return object()

    def cut_off(self) -> None:
        self.other.execute("begin immediate")

    def reconnect(self) -> None:
        self.other.execute("rollback")


def test_it_is_delivered_to(tmp_path: Path) -> None:
    journal, target = FakeJournal(), load_example("sqlite_target").SQLite(str(tmp_path / "rows.db"))
    journal.commit(1, 2)
    deliver_all(journal, target, tmp_path)
    journal.commit(3)
    deliver_all(journal, target, tmp_path, fence=2)
    assert rows(tmp_path / "rows.db") == [("k1", 1), ("k2", 2), ("k3", 3)]


def test_a_locked_database_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, journal = load_example("sqlite_target"), FakeJournal()
    connect = sqlite3.connect
    monkeypatch.setattr(module.sqlite3, "connect", lambda path, **options: connect(path, timeout=0.01, **options))
    target = module.SQLite(str(tmp_path / "rows.db"))
    target.open(ms.DeliveryContext("out", "numbers", int, "other", 1)).close()
    other = connect(tmp_path / "rows.db", isolation_level=None, check_same_thread=False)
    journal.commit(1)
    thread = delivery(journal, target, tmp_path)
    other.execute("begin immediate")
    thread.start()
    wait_until(lambda: thread.trouble is not None, TIMEOUT)
    assert "database is locked" in str(thread.trouble)
    other.execute("commit")
    other.close()
    assert thread.stop(1, TIMEOUT)
    assert rows(tmp_path / "rows.db") == [("k1", 1)]
