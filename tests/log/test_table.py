"""One table of the log: commits, fences, the tail."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from millstream.core.backlog import Position
from millstream.errors import Fenced, LogError
from millstream.log.folder import read_json, write_json
from millstream.log.staged import RECORDS, StagedFile, stage
from millstream.log.table import Table, commit_file, newest_note, read_commit, tail


def records(epoch: int, count: int = 2) -> pa.Table:
    columns = {
        "key": [f"k{n}" for n in range(count)],
        "value": [f"{epoch}"] * count,
        "timestamp": pa.array([1_000_000 * epoch + n for n in range(count)], pa.timestamp("us", "UTC")),
        "epoch": [epoch] * count,
        "sequence": list(range(count)),
    }
    return pa.table(columns, schema=RECORDS)


def made(path: Path, fence: int = 1) -> Table:
    table = Table(path, "mill", fence)
    path.mkdir(parents=True, exist_ok=True)
    table.create()
    table.raise_fence()
    return table


def staged(path: Path, epoch: int) -> list[StagedFile]:
    return stage(path, "s", records(epoch), epoch=epoch)


def test_nothing_shows_before_the_commit_and_all_of_it_after(tmp_path: Path) -> None:
    table = made(tmp_path)
    files = staged(tmp_path, 0)
    assert [commit.files for commit in tail(tmp_path, "mill", Position())] == [[], []]
    table.commit(files, b'{"n":0}', writer="mill", epoch=0)
    (file,) = [file for commit in tail(tmp_path, "mill", Position()) for file in commit.files]
    assert (file.stream, file.rows, file.oldest, file.position) == ("s", 2, 0, Position(2, 0))
    assert newest_note(tmp_path, "mill") == (2, b'{"n":0}')
    assert table.committed("mill") == 0


def test_no_bit_of_a_commit_can_turn_without_being_noticed(tmp_path: Path) -> None:
    """What Delta says of itself in it is not ours, and changes nothing that a reader is told."""
    table = made(tmp_path)
    table.commit(staged(tmp_path, 0), b'{"low_watermark":7}', writer="mill", epoch=0)
    path = commit_file(tmp_path, 2)
    whole, want = path.read_bytes(), read_commit(tmp_path, "mill", 2)
    refused = 0
    for place in range(len(whole)):
        turned = bytearray(whole)
        turned[place] ^= 1 << place % 7
        path.write_bytes(turned)
        try:
            assert read_commit(tmp_path, "mill", 2) == want, turned
        except LogError as error:
            refused += str(path) in str(error)
    assert refused > len(whole) / 2


def test_no_bit_of_a_small_file_can_turn_without_being_noticed(tmp_path: Path) -> None:
    path, value = tmp_path / "small.json", {"clicks": 12345, "mill": 7}
    write_json(path, value)
    whole = path.read_bytes()
    for place in range(len(whole)):
        turned = bytearray(whole)
        turned[place] ^= 1 << place % 7
        path.write_bytes(turned)
        with pytest.raises(LogError, match=r"small\.json is damaged"):
            read_json(path, dict[str, int])
    path.write_bytes(whole)
    assert read_json(path, dict[str, int]) == value


def test_an_old_run_can_commit_nothing_after_a_new_one_has_begun(tmp_path: Path) -> None:
    old = made(tmp_path, fence=1)
    new = Table(tmp_path, "mill", 2)
    new.raise_fence()
    with pytest.raises(Fenced, match="a newer run owns"):
        old.commit(staged(tmp_path, 0), b"{}", writer="mill", epoch=0)
    with pytest.raises(Fenced):
        old.raise_fence()
    with pytest.raises(Fenced):
        old.annotate(b"{}")
    new.commit(staged(tmp_path, 0), b"{}", writer="mill", epoch=0)


def test_a_fence_raised_between_check_and_commit_wins(tmp_path: Path) -> None:
    old = made(tmp_path, fence=1)
    handle = old._open()  # the old run has looked, and found the fence its own
    Table(tmp_path, "mill", 2).raise_fence()
    with pytest.raises(Fenced):
        old._write(handle, staged(tmp_path, 0), b"{}", {"mill": 0})
    assert all(not commit.files for commit in tail(tmp_path, "mill", Position()))


def test_the_tail_goes_on_within_a_commit(tmp_path: Path) -> None:
    table = made(tmp_path)
    files = [file for epoch in (0, 1, 2) for file in staged(tmp_path, epoch)]
    table.commit(files, b"{}", writer="mill", epoch=0)
    table.commit(staged(tmp_path, 3), b"{}", writer="mill", epoch=1)
    found = [file.position for commit in tail(tmp_path, "mill", Position(2, 1)) for file in commit.files]
    assert found == [Position(2, 1), Position(2, 2), Position(3, 0)]
    some = [file.position for commit in tail(tmp_path, "mill", Position(2, 1), Position(2, 2)) for file in commit.files]
    assert some == [Position(2, 1)]


def test_a_torn_commit_is_refused_by_name(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.commit(staged(tmp_path, 0), b"{}", writer="mill", epoch=0)
    torn = tmp_path / "_delta_log" / f"{2:020d}.json"
    torn.write_text(torn.read_text()[:-40])
    with pytest.raises(LogError, match=rf"{torn.name} is damaged"):
        read_commit(tmp_path, "mill", 2)


def test_a_version_that_is_gone_is_missed(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.commit(staged(tmp_path, 0), b"{}", writer="mill", epoch=0)
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(LogError, match="has no version 1 any more"):
        list(tail(tmp_path, "mill", Position(1), Position(3)))
