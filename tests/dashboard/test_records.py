"""Looking inside: the newest records of a stream, of one key, of one sender, at a cost that does not grow with the folder."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from millstream.dashboard import server
from millstream.journal.disk import LocalDisk
from millstream.log import reading
from millstream.log.entries import entry_path
from tests.dashboard.conftest import client
from tests.dashboard.made import NOON, Made, letter

STREAM = "count.counts"


def ask(made: Made, **question: Any) -> Any:
    return client(made.folder.path).get("/api/records", params={"stream": STREAM, **question}).json()


def texts(answer: Any) -> list[str]:
    return [record["text"] for record in answer["records"]]


def test_log_and_journal_are_one(made: Made) -> None:
    for n in range(4):
        made.records(STREAM, ("a", n), ("b", -n))
        if n == 1:
            made.log()
    found = ask(made)
    assert texts(found) == ["0", "0", "1", "-1", "2", "-2", "3", "-3"]
    assert found["records"][-1] == {"key": "b", "timestamp": NOON + 1, "id": "count.counts/7/1", "text": "-3"}
    assert (found["searched"], found["since"], found["left_off"]) == (8, None, 0)
    assert texts(ask(made, last=3)) == ["-2", "3", "-3"]


def test_numbers_are_as_they_were_written(made: Made) -> None:
    made.records(STREAM, ("a", b'{"id":12345678901234567890,"share":0.10000000000000000001}'), ("b", b'"text"'))
    assert texts(ask(made)) == ['{"id": 12345678901234567890, "share": 0.10000000000000000001}', '"text"']


def test_a_long_value_has_lines(made: Made) -> None:
    made.records(STREAM, ("a", {"words": "x" * 100, "more": [1, 2]}))
    [text] = texts(ask(made))
    assert text.splitlines()[0] == "{"


def test_rows_are_what_changes_leave(made: Made) -> None:
    made.records(
        STREAM,
        ("a", b'{"before":null,"after":{"id":12345678901234567890}}'),
        ("b", b'{"before":{"id":1},"after":null}'),
        ("c", b'{"id":2}'),
    )
    assert texts(ask(made, rows=1)) == ['{"id": 12345678901234567890}', None, '{"id": 2}']


def test_a_key_is_found_behind_many_others(made: Made) -> None:
    made.records(STREAM, ("rare", 1))
    made.log()
    made.records(STREAM, *[("often", n) for n in range(3_000)])
    made.log()
    made.records(STREAM, ("often", 3))
    found = ask(made, key="rare")
    assert (texts(found), found["searched"], found["since"]) == (["1"], 3_002, None)


def test_a_search_ends_and_says_where(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.records(STREAM, ("rare", 1))
    made.log()
    epochs = []
    for n in range(4):
        epochs.append(made.records(STREAM, ("often", n)))
        made.log()
    monkeypatch.setattr(reading, "MAX_FILES", 3)
    found = ask(made, key="rare")
    assert (texts(found), found["searched"], found["since"]) == ([], 3, epochs[0] + 1)
    monkeypatch.setattr(reading, "MAX_FILES", 100)
    monkeypatch.setattr(reading, "MAX_BYTES", 1)
    assert ask(made, key="rare")["searched"] == 1


def test_the_empty_key_is_one_of_them(made: Made) -> None:
    made.records(STREAM, ("", 1), ("a", 2), ("", 3))
    assert texts(ask(made, key="")) == ["1", "3"]
    assert texts(ask(made)) == ["1", "2", "3"]


def test_dead_letters_by_who_sent_them(made: Made) -> None:
    letters = [letter("count", reason="one"), letter("join", reason="two"), letter(None, stream="clicks", reason="three"), letter("count")]
    made.records("dead letters", *[("a", each) for each in letters])
    page = client(made.folder.path)

    def of(sender: str) -> list[str]:
        found = page.get("/api/records", params={"stream": "dead letters", "sender": sender, "last": 2}).json()
        return [record["id"] for record in found["records"]]

    assert of("computation count") == ["dead letters/3/0", "dead letters/3/3"]
    assert of("computation join") == ["dead letters/3/1"]
    assert of("injector clicks") == ["dead letters/3/2"]


def test_what_would_be_too_much_text_is_left_off(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_TEXT", 25)
    made.records(STREAM, *[("a", "x" * 8) for _ in range(5)])
    found = ask(made)
    assert (len(found["records"]), found["left_off"]) == (2, 3)
    assert found["records"][-1]["id"] == "count.counts/3/4"


def test_what_it_costs_does_not_grow_with_the_folder(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read are the commits and entries since the last look, and the newest file of the log."""
    reads: list[str] = []
    read = LocalDisk.read

    def counted(disk: LocalDisk, path: str, *place: int) -> bytes:
        reads.append(path)
        return read(disk, path, *place)

    page = client(made.folder.path)

    def cost() -> int:
        made.records(STREAM, ("a", 1), ("b", 2))
        made.log()
        reads.clear()
        assert len(page.get("/api/records", params={"stream": STREAM, "last": 2}).json()["records"]) == 2
        return len(reads)

    monkeypatch.setattr(LocalDisk, "read", counted)
    cost()
    young = cost()
    for _ in range(40):
        made.records(STREAM, ("a", 1))
        made.log()
    cost()
    assert cost() == young


def test_the_same_question_is_answered_once_for_each_commit(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    newest = reading.StreamReader.newest

    def counted(*args: Any) -> Any:
        asked.append(args)
        return newest(*args)

    monkeypatch.setattr(reading.StreamReader, "newest", counted)
    made.records(STREAM, ("a", 1))
    page = client(made.folder.path)
    for _ in range(3):
        assert texts(page.get("/api/records", params={"stream": STREAM}).json()) == ["1"]
    assert len(asked) == 1
    made.records(STREAM, ("a", 2))
    assert texts(page.get("/api/records", params={"stream": STREAM}).json()) == ["1", "2"]
    assert len(asked) == 2


def test_entries_that_were_cleaned_away_meanwhile_are_not_missed(made: Made) -> None:
    made.records(STREAM, ("a", 0))
    made.log()
    page = client(made.folder.path)
    assert texts(page.get("/api/records", params={"stream": STREAM}).json()) == ["0"]
    for n in range(1, 5):
        made.records(STREAM, ("a", n))
        made.log()
    table = DeltaTable(str(made.folder.log))
    table.create_checkpoint()
    for version in range(table.version()):
        (made.folder.log / entry_path(version)).unlink()
    assert texts(page.get("/api/records", params={"stream": STREAM}).json()) == ["0", "1", "2", "3", "4"]


def test_records_that_are_not_there_are_said(made: Made) -> None:
    page = client(made.folder.path)
    assert page.get("/api/records?stream=clicks&last=x").status_code == 400
    assert "segments/values-" in page.get("/api/records?stream=clicks").json()["problem"], "its segment is not there"
    assert page.get("/api/records?stream=nobody").json()["problem"].startswith("there is no stream 'nobody'; streams with records: clicks")
    assert page.get("/api/records?stream=users").json()["records"] == []
