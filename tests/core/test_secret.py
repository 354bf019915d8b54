"""Secrets are looked up where they are used, and are nowhere else."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import millstream as ms


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ms.secret(env="A_PASSWORD")
    monkeypatch.setenv("A_PASSWORD", "canary")
    assert found.reveal() == "canary"
    assert "canary" not in repr(found)
    assert b"canary" not in pickle.dumps(found)
    monkeypatch.delenv("A_PASSWORD")
    with pytest.raises(ms.TopologyError, match="A_PASSWORD is not set"):
        found.reveal()


def test_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("canary \n")
    found = ms.secret(file=tmp_path / "password")
    assert found.reveal() == "canary "
    (tmp_path / "password").unlink()
    with pytest.raises(ms.TopologyError, match="password, and it cannot be read: No such file"):
        found.reveal()


def test_one_of_both() -> None:
    for wrong in ({}, {"env": "A", "file": "b"}, {"env": ""}, {"env": 3}):
        with pytest.raises(ms.TopologyError, match="secret"):
            ms.secret(**wrong)  # type: ignore[arg-type]
