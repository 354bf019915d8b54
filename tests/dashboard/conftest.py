"""Folders without Spark, and a client of their page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from millstream.dashboard import watching
from millstream.dashboard.server import application
from tests.dashboard.made import NOON, SECOND, Made


def client(at: Path, **settings: Any) -> TestClient:
    return TestClient(application(at, **settings), base_url="http://localhost:8270")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look anew each time."""
    monkeypatch.setattr(watching, "LOOK_EVERY", 0.0)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    made = Made(tmp_path / "mill")
    made.epoch(injected=10, at=NOON + 5 * SECOND)
    return made
