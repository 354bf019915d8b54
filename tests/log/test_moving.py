"""What Spark has written down with whole paths, where a folder was moved."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import LogError
from millstream.log import moving
from millstream.log.checks import damaged_files
from millstream.log.folder import Folder, Pinned, write_json
from millstream.log.moving import check_place, settle

OLD = "/old/state/mill/checkpoints/lane {lane}"
SCHEMA = "/state/0/_stateSchema/default/0_4f0c"


class Moved:
    """A folder with two lanes, as Spark leaves their checkpoints; it was made elsewhere."""

    def __init__(self, at: Path) -> None:
        self.folder, self.pinned = Folder(at), Pinned("t", "id", "/old/state/mill", 16, 2)
        write_json(self.folder.pinned, self.pinned)
        for lane in range(2):
            for batch in range(2):
                self.metadata(lane, batch).parent.mkdir(parents=True, exist_ok=True)
                content = {
                    "operatorInfo": {"operatorId": 0},
                    "stateStoreInfo": [{"storeName": "default", "stateSchemaFilePaths": [OLD.format(lane=lane) + SCHEMA] * 40}],
                    "operatorPropertiesJson": '{"timeMode":"NoTime"}',
                }
                write_with_checksum(self.metadata(lane, batch), f"v2\n{json.dumps(content)}".encode())

    def metadata(self, lane: int, batch: int) -> Path:
        return self.folder.checkpoint(f"lane {lane}") / "state" / "0" / "_metadata" / "v2" / str(batch)

    def read(self, lane: int, batch: int) -> Any:
        version, content = self.metadata(lane, batch).read_text().splitlines()
        assert version == "v2"
        return json.loads(content)


def write_with_checksum(file: Path, content: bytes) -> None:
    """As Hadoop does: a checksum for every 512 bytes."""
    file.write_bytes(content)
    sums = [zlib.crc32(content[at : at + 512]) for at in range(0, len(content), 512)]
    file.with_name(f".{file.name}.crc").write_bytes(b"crc\0" + b"".join(n.to_bytes(4, "big") for n in (512, *sums)))


@pytest.fixture
def moved(tmp_path: Path) -> Moved:
    return Moved(tmp_path)


def check(moved: Moved) -> None:
    for lane in range(2):
        checkpoint = moved.folder.checkpoint(f"lane {lane}")
        assert list(damaged_files(checkpoint, state=True)) == []
        for batch in range(2):
            found = moved.read(lane, batch)
            assert found["stateStoreInfo"][0]["stateSchemaFilePaths"] == [f"file:{checkpoint}{SCHEMA}"] * 40
            assert found["operatorPropertiesJson"] == '{"timeMode":"NoTime"}'
            assert moved.metadata(lane, batch).with_name(f".{batch}.crc").exists()


def test_state_names_the_schema_where_it_lies_now(moved: Moved) -> None:
    settled = settle(moved.folder, moved.pinned)
    assert settled == moved.folder.read_pinned() == Pinned("t", "id", str(moved.folder.path), 16, 2)
    check(moved)


def test_what_is_damaged_is_refused_by_name(moved: Moved) -> None:
    file = moved.metadata(1, 0)
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    with pytest.raises(LogError, match=f"{file} is damaged; restore it from a copy"):
        settle(moved.folder, moved.pinned)
    assert moved.folder.read_pinned() == moved.pinned, "it is not done"


def test_a_checkpoint_of_another_place_is_refused(moved: Moved, tmp_path: Path) -> None:
    """The folder was moved and has run since; then an older copy of its checkpoints was put into it."""
    check_both(moved, "/old/state/mill")  # not settled yet
    shutil.copytree(moved.folder.checkpoints, tmp_path / "older")
    pinned = settle(moved.folder, moved.pinned)
    check_both(moved, pinned.at)
    shutil.rmtree(moved.folder.checkpoint("lane 1"))
    (tmp_path / "older" / "lane 1").rename(moved.folder.checkpoint("lane 1"))
    check_place(moved.folder, 0, pinned.at)
    before = moved.metadata(1, 0).read_bytes()
    message = f"checkpoints/lane 1 in {tmp_path} is from a copy that lay at /old/state/mill; restore folder and checkpoints from one copy"
    with pytest.raises(LogError, match=f"^{message}$"):
        check_place(moved.folder, 1, pinned.at)
    assert moved.metadata(1, 0).read_bytes() == before


def test_a_place_may_have_several_paths(moved: Moved, tmp_path_factory: pytest.TempPathFactory) -> None:
    settle(moved.folder, moved.pinned)
    link = tmp_path_factory.mktemp("links") / "mill"
    link.symlink_to(moved.folder.path)
    for at in (link, moved.folder.path / "x" / ".."):
        for lane in range(2):
            check_place(Folder(at), lane, str(at))


def test_a_damaged_file_is_left_to_those_who_name_it(moved: Moved) -> None:
    moved.metadata(0, 0).write_bytes(b"")
    check_both(moved, "/old/state/mill")


def check_both(moved: Moved, at: str) -> None:
    for lane in range(2):
        check_place(moved.folder, lane, at)


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("last", range(8))
def test_killed_at_every_step_the_next_start_does_the_rest(moved: Moved, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    real, done = moving.replace_whole, 0

    def counted(path: Path, content: bytes) -> None:
        nonlocal done
        if done == last:
            raise Killed
        real(path, content)
        done += 1

    with monkeypatch.context() as patched:
        patched.setattr(moving, "replace_whole", counted)
        with pytest.raises(Killed):
            settle(moved.folder, moved.pinned)
    assert moved.folder.read_pinned() == moved.pinned
    settle(moved.folder, moved.pinned)
    for lane in range(2):
        assert list(damaged_files(moved.folder.checkpoint(f"lane {lane}"), state=True)) == []
        assert all(
            moved.read(lane, batch)["stateStoreInfo"][0]["stateSchemaFilePaths"][0].startswith(f"file:{moved.folder.path}/")
            for batch in range(2)
        )
