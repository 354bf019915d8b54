"""The list of files that an injector has found: it only grows, and no file stands in it twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millstream.errors import LogError
from millstream.journal.disk import LocalDisk
from millstream.sources import file_list
from millstream.sources.file_list import FileList, Listed
from tests.journal.simdisk import SimDisk


def files(*names: str) -> list[Listed]:
    return [Listed(f"/in/{name}", len(name)) for name in names]


def loaded(disk: SimDisk, first: int = 0) -> tuple[FileList, list[Listed]]:
    found = FileList(disk, "clicks")
    return found, found.load(first)


def test_what_was_added_is_there_after_a_restart_in_its_order() -> None:
    disk = SimDisk()
    listed, nothing = loaded(disk)
    assert (nothing, listed.count) == ([], 0)
    assert listed.add(files("b", "a")) == files("b", "a")
    assert listed.add(files("a", "c")) == files("c"), "a file is known by its name"
    again, found = loaded(disk, 1)
    assert (found, again.count) == (files("a", "c"), 3)
    assert again.knows("/in/b")


def test_an_entry_is_durable_before_anybody_hears_of_it() -> None:
    disk = SimDisk()
    listed, _ = loaded(disk)
    listed.add(files("a"))
    disk.power_loss()
    assert loaded(disk)[1] == files("a")


def test_two_runs_make_one_list() -> None:
    """An overtaken run looks on: it takes what the other one has listed, and lists only what is missing."""
    disk = SimDisk()
    old, new = loaded(disk)[0], loaded(disk)[0]
    assert old.add(files("a")) == files("a")
    assert new.add(files("b", "a")) == files("a", "b")
    assert old.add(files("c", "b")) == files("b", "c")
    assert loaded(disk)[1] == files("a", "b", "c")


@pytest.mark.parametrize("seed", range(20))
def test_many_entries_are_merged_and_nothing_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an older run goes on with a list that was merged under it."""
    monkeypatch.setattr(file_list, "MERGE_AT", 3)
    monkeypatch.setattr(file_list, "FILES_PER_ENTRY", 2)
    disk, chance = SimDisk(), random.Random(seed)
    lists, all_of_them = [loaded(disk)[0]], list[Listed]()
    for number in range(60):
        if chance.random() < 0.1:
            lists.append(loaded(disk)[0])
        owner, some = lists[-1], files(*(f"{number}.{n}" for n in range(chance.randint(1, 3))))
        owner.add(some)
        all_of_them += some
    first = chance.randrange(len(all_of_them))
    found, rest = loaded(disk, first)
    assert (found.count, rest) == (len(all_of_them), all_of_them[first:])
    assert len(disk.names("clicks")) <= 4  # those that are not merged, and the folder of the others
    assert len(disk.names("clicks/merged")) < 10


def test_a_merge_that_is_interrupted_anywhere_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_list, "MERGE_AT", 3)

    class Killed(Exception):
        pass

    for step in range(40):
        disk = SimDisk()
        listed, added = loaded(disk)[0], list[Listed]()
        left = [step]

        def kill(what: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed(what)

        disk.on_step = kill
        try:
            for number in range(8):
                listed.add(files(f"{number}"))
                added += files(f"{number}")
        except Killed:
            pass
        disk.on_step = lambda what: None
        disk.power_loss()
        found = loaded(disk)[1]
        assert found[: len(added)] == added
        assert len(found) <= len(added) + 1


def test_a_name_that_was_merged_away_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An overtaken run knows three entries; the owner has added one and merged them all: a fourth of the old run is nothing."""
    monkeypatch.setattr(file_list, "MERGE_AT", 4)
    disk = SimDisk()
    new = loaded(disk)[0]
    for name in "abc":
        new.add(files(name))
    old = loaded(disk)[0]
    new.add(files("x"))
    assert disk.names("clicks") == ["merged"]
    assert old.add(files("y", "x")) == files("x", "y")
    assert loaded(disk)[1] == files("a", "b", "c", "x", "y")


def test_what_is_loaded_is_there_for_good() -> None:
    """Whoever made an entry may have died before he had synced the folder."""
    disk = SimDisk()
    listed = loaded(disk)[0]
    listed.add(files("a"))
    sync, disk.sync_folder = disk.sync_folder, lambda path: None  # type: ignore[method-assign]
    listed.add(files("b"))
    disk.sync_folder = sync  # type: ignore[method-assign]
    assert loaded(disk)[1] == files("a", "b")
    disk.power_loss()
    assert loaded(disk)[1] == files("a", "b")


@pytest.mark.parametrize("harm", ["torn", "turned", "removed"])
def test_a_damaged_entry_is_refused_by_name(tmp_path: Path, harm: str) -> None:
    listed = FileList(LocalDisk(tmp_path), "clicks")
    listed.load()
    listed.add(files("a"))
    listed.add(files("b"))
    entry = tmp_path / "clicks" / "000000000000"
    content = entry.read_bytes()
    if harm == "removed":
        entry.unlink()
        assert FileList(LocalDisk(tmp_path), "clicks").load() == [], "whoever knows how many there were refuses that"
        return
    entry.write_bytes(content[:-3] if harm == "torn" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(LogError, match=r"clicks/000000000000 is damaged: .* restore it from a copy"):
        FileList(LocalDisk(tmp_path), "clicks").load()
