"""The folder of a run: whose it is, and small files that are replaced whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import LogError
from millstream.log.folder import FORMAT, Folder, Pinned, read_json, write_json


def pinned(at: Path, *, format: int = FORMAT) -> Folder:
    """A folder that a run has used."""
    folder = Folder(at)
    folder.path.mkdir(parents=True)
    write_json(folder.pinned, Pinned("mine", "0f", str(folder.path), 16, 2, format))
    return folder


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


def test_a_folder_that_was_used_says_what_is_fixed(tmp_path: Path) -> None:
    assert Folder(tmp_path / "new").open() is None
    assert pinned(tmp_path / "used").open() == Pinned("mine", "0f", str(tmp_path / "used"), 16, 2)


@pytest.mark.parametrize("format", [1, FORMAT + 1])
def test_a_folder_of_another_format_is_refused_by_name_and_not_changed(tmp_path: Path, format: int) -> None:
    folder = pinned(tmp_path / "mill", format=format)
    before = folder.pinned.read_bytes()
    for refused in (folder.open, lambda: ms.status_of(folder.path), lambda: ms.read(folder.path, "clicks")):
        with pytest.raises(LogError, match=rf"mill was written in format {format}, this version knows {FORMAT}; use the version that"):
            refused()
    assert (os.listdir(folder.path), folder.pinned.read_bytes()) == (["topology.json"], before)


def test_a_folder_as_the_first_format_wrote_it_is_refused_by_name(tmp_path: Path) -> None:
    """It had other fields, and no number of lanes."""
    write_json(tmp_path / "topology.json", {"topology": "t", "id": "0", "at": str(tmp_path), "buckets": [0], "partitions": 2, "format": 1})
    with pytest.raises(LogError, match="was written in format 1"):
        Folder(tmp_path).open()


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(LogError, match=r"holds holiday\.jpg, but no run of Millstream; name an empty or a new folder"):
        Folder(tmp_path).open()


@pytest.mark.parametrize("around", ["log", "journal", "checkpoints"])
def test_a_folder_that_has_lost_what_is_fixed_is_refused_by_name(tmp_path: Path, around: str) -> None:
    (tmp_path / around).mkdir()
    with pytest.raises(LogError, match=r"topology\.json is missing, and the folder of a run is around it; restore it from a copy"):
        Folder(tmp_path).open()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "No space left on device; make room and start again"),
        (errno.EROFS, "Read-only file system; name a folder that you may write to"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_system_refuses_is_told_as_a_matter_of_the_folder(tmp_path: Path, number: int, remedy: str) -> None:
    with pytest.raises(LogError) as refused, Folder(tmp_path).usable():
        raise OSError(number, os.strerror(number))
    assert str(refused.value) == f"{tmp_path} cannot be used: {remedy}"


def test_a_folder_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="cannot be used: Not a directory; name a folder that you may write to"):
        Folder(tmp_path / "file" / "mill").open()
