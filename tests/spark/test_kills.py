"""kill -9 of the whole process tree at random moments: what is delivered equals an uninterrupted run, record for record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import soak

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(2400)]


def test_killed_runs_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    outcome = soak(tmp_path, seconds=300, most_kills=1, records=10_000, seed=11, epochs=2)
    assert outcome.kills == outcome.killed_under_way == 1
    assert (outcome.lost, outcome.doubled) == (0, 0)
    assert outcome.epochs > 5
    assert outcome.looks > 0  # the checker was there
