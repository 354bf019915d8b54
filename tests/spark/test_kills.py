"""kill -9 at random moments, of the whole run or of one of its processes: what is delivered equals a run that nobody harmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import soak

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(2400)]


def test_killed_runs_lose_nothing_double_nothing_and_keep_the_order(tmp_path: Path) -> None:
    """A lane and the writer come back by themselves; of the others each ends its run, and the next one goes on."""
    outcome = soak(tmp_path, seconds=300, kills=5, seed=11, victims=["lane", "writer", "planner", "driver", "all"])
    print(outcome)
    assert outcome.kills == {"lane": 1, "writer": 1, "planner": 1, "driver": 1, "all": 1}
    assert outcome.looks > 0  # somebody read beside it


@pytest.mark.soak
def test_dozens_of_kills_at_random_moments(tmp_path: Path) -> None:
    outcome = soak(tmp_path, seconds=2000, kills=30, seed=12)
    print(outcome)
    assert outcome.kills.total() == 30
    assert {"all", "driver", "planner", "lane"} <= set(outcome.kills)
