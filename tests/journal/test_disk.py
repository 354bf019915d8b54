"""One contract for every disk; what only a real one can get wrong comes after it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from millstream.errors import LogError
from millstream.journal import disk as disk_module
from millstream.journal.disk import Disk, LocalDisk
from tests.journal.made import counter
from tests.journal.simdisk import SimDisk


@pytest.fixture(params=["local", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return LocalDisk(tmp_path / "journal", unique=counter()) if request.param == "local" else SimDisk()


# The contract.


def test_a_file_grows_by_what_is_appended(disk: Disk) -> None:
    disk.make_folder("segments")
    file = disk.create("segments/a")
    file.append([b"one", b"", b"two"])
    file.sync()
    assert disk.read("segments/a") == b"onetwo"
    file.append([b"three"])
    file.append([])
    file.close()
    assert disk.read("segments/a", 3, 3) == b"two"
    assert disk.read("segments/a", 6, 100) == b"three"
    assert disk.read("segments/a", 3) == b"twothree"
    assert disk.read("segments/a", 100, 5) == b""
    assert disk.read("segments/a", 0, 0) == b""
    assert disk.size("segments/a") == 11


def test_a_name_is_made_once(disk: Disk) -> None:
    disk.make_folder("segments")
    disk.create("segments/a").close()
    with pytest.raises(FileExistsError):
        disk.create("segments/a")
    assert not disk.create_whole("segments/a", b"other")
    assert disk.create_whole("segments/b", b"whole")
    assert not disk.create_whole("segments/b", b"another")
    assert disk.read("segments/b") == b"whole"
    assert disk.names("segments") == ["a", "b"]


def test_names_are_in_order_and_nothing_where_there_is_no_folder(disk: Disk) -> None:
    assert disk.names("notes") == []
    disk.make_folder("notes/clicks")
    for name in ("b", "a", ".hidden"):
        disk.create(f"notes/clicks/{name}").close()
    assert disk.names("notes/clicks") == ["a", "b"]
    assert disk.names("notes") == ["clicks"]
    assert disk.names("") == ["notes"]


def test_what_is_missing(disk: Disk) -> None:
    disk.make_folder("commits")
    assert not disk.exists("commits/1")
    for attempt in (disk.read, disk.size, disk.sync_file):
        with pytest.raises(FileNotFoundError):
            attempt("commits/1")
    with pytest.raises(FileNotFoundError):
        disk.read("commits/1", 0, 10)
    with pytest.raises(FileNotFoundError):
        disk.sync_folder("nowhere")
    with pytest.raises(FileNotFoundError):
        disk.create("nowhere/a")
    with pytest.raises(FileNotFoundError):
        disk.create_whole("nowhere/a", b"")


def test_what_is_removed_is_gone_also_for_one_who_has_read_it(disk: Disk) -> None:
    disk.make_folder("commits")
    disk.create_whole("commits/1", b"content")
    assert disk.read("commits/1", 0, 7) == b"content"
    disk.remove("commits/1")
    disk.remove("commits/1")
    assert not disk.exists("commits/1")
    assert disk.names("commits") == []
    with pytest.raises(FileNotFoundError):
        disk.read("commits/1", 0, 7)


def test_a_folder_may_be_made_again_and_synced(disk: Disk) -> None:
    for _ in range(2):
        disk.make_folder("notes/clicks")
    disk.create_whole("notes/clicks/1", b"")
    disk.sync_file("notes/clicks/1")
    for folder in ("notes/clicks", "notes", ""):
        disk.sync_folder(folder)
        assert disk.exists(folder)


def test_what_was_appended_is_seen_after_forgetting(disk: Disk) -> None:
    disk.make_folder("segments")
    file = disk.create("segments/a")
    assert disk.read("segments/a", 0, 3) == b""
    file.append([b"abc"])
    file.close()
    disk.forget("segments/a")
    disk.forget("segments/unknown")
    assert disk.read("segments/a", 0, 3) == b"abc"


# The file system of this machine.


@pytest.fixture
def local(tmp_path: Path) -> LocalDisk:
    disk = LocalDisk(tmp_path, unique=counter())
    disk.make_folder("segments")
    return disk


@pytest.mark.parametrize("most", [1, 2, 7])
def test_short_writes_are_continued(local: LocalDisk, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    chunks = [b"a", b"", b"bcd", b"efghij", b"k"]
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, views: writev(descriptor, [b"".join(views)[:most]]))
    file = local.create("segments/a")
    file.append(chunks)
    file.close()
    assert local.read("segments/a") == b"abcdefghijk"


def test_more_chunks_than_the_system_takes_at_once(local: LocalDisk) -> None:
    file = local.create("segments/a")
    file.append([b"%05d" % n for n in range(3000)])
    file.close()
    assert local.size("segments/a") == 15_000
    assert local.read("segments/a", 14_995, 5) == b"02999"


def test_a_file_system_without_hard_links_is_refused_by_name(local: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: object, target: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(LogError, match=r"is on a file system without hard links; name a folder on one that has them$") as caught:
        local.create_whole("segments/a", b"content")
    assert str(local.root) in str(caught.value)
    assert list((local.root / "segments").iterdir()) == []


def test_nothing_is_left_aside_after_an_error(local: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        local.create_whole("segments/a", b"content")
    assert list((local.root / "segments").iterdir()) == []


def test_the_number_of_open_files_is_bounded(local: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "OPEN_FILES", 4)
    before = len(os.listdir("/proc/self/fd"))
    for n in range(20):
        local.create_whole(f"segments/{n}", b"%d" % n)
        assert local.read(f"segments/{n}", 0, 5) == b"%d" % n
    assert len(os.listdir("/proc/self/fd")) - before <= 4
    assert all(local.read(f"segments/{n}", 0, 5) == b"%d" % n for n in range(20))
    local.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_threads_read_while_files_are_forgotten(local: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "OPEN_FILES", 2)
    for n in range(8):
        local.create_whole(f"segments/{n}", b"%d" % n * 1000)
    wrong: list[object] = []

    def read(start: int) -> None:
        try:
            for n in range(start, start + 400):
                content = local.read(f"segments/{n % 8}", 0, 1000)
                if content != b"%d" % (n % 8) * 1000:
                    wrong.append(content)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# The simulated one forgets what a real one may forget.


def test_a_power_loss_keeps_what_was_synced_and_tears_the_rest() -> None:
    lengths, named = set(), set()
    for seed in range(60):
        disk = SimDisk()
        disk.rng.seed(seed)
        disk.make_folder("segments")
        file = disk.create("segments/a")
        file.append([b"synced"])
        file.sync()
        disk.sync_folder("segments")
        file.append([b"torn"])
        disk.create("segments/b")
        disk.power_loss()
        content = disk.read("segments/a")
        assert content.startswith(b"synced")
        lengths.add(len(content))
        named.add(disk.exists("segments/b"))
    assert lengths == {6, 7, 8, 9, 10}
    assert named == {True, False}


def test_a_kill_keeps_what_was_written() -> None:
    disk = SimDisk()
    disk.make_folder("segments")
    disk.create("segments/a").append([b"content"])
    disk.crash()
    assert disk.read("segments/a") == b"content"


def test_what_a_failed_sync_dropped_no_later_sync_brings_back() -> None:
    kept = set()
    for seed in range(30):
        disk = SimDisk()
        disk.rng.seed(seed)
        disk.make_folder("segments")
        file = disk.create("segments/a")
        disk.sync_folder("segments")
        file.append([b"content"])
        disk.faults.sync = 0
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        disk.power_loss()
        kept.add(disk.read("segments/a"))
    assert b"content" not in kept
