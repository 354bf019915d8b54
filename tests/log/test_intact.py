"""Finding the file that is to blame."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from millstream.log.folder import Folder
from millstream.log.intact import damaged_files
from millstream.spark.launch import Died
from millstream.spark.run import cause_of


def test_a_snapshot_of_state_is_judged_whatever_bit_of_it_is_turned(tmp_path: Path) -> None:
    snapshot = tmp_path / "state" / "0" / "0" / "5_id.zip"
    snapshot.parent.mkdir(parents=True)
    with zipfile.ZipFile(snapshot, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("metadata", "what is in it " * 5)
    assert list(damaged_files(tmp_path, state=True)) == []
    content = snapshot.read_bytes()
    found = 0
    for place in range(8 * len(content)):
        turned = bytearray(content)
        turned[place // 8] ^= 1 << place % 8
        snapshot.write_bytes(turned)
        found += snapshot in damaged_files(tmp_path, state=True)
    assert found > 4 * len(content)  # dates and the like may turn unnoticed; what is in it may not


def test_a_run_ends_also_when_the_search_for_the_file_to_blame_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(*_: object, **__: object) -> None:
        raise FileNotFoundError("offsets/7")

    monkeypatch.setattr("millstream.spark.failure.damaged_files", vanish)
    told = cause_of(Died("the mill", RuntimeError("it broke"), "mill"), Folder(tmp_path))
    assert told == "the mill stopped: it broke; what is to blame could not be looked for: offsets/7"
