"""The demo as a user runs it, whole and on Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.mark.parametrize("seed", [[], ["--seed", "7"], ["--seed", "4711"]], ids=["the shipped seed", "another", "a third"])
def test_the_demo_finds_spikes_and_dips(seed: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millstream.command.main", "demo", "--at", str(tmp_path / "demo"), *seed]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert found.returncode == 0, found.stderr[-3000:]  # precision and recall are good enough
    assert "Precision" in found.stdout
    assert (tmp_path / "demo" / "zeitgeist.png").stat().st_size > 10_000
