"""A lane that is away for long while the others go on: nothing becomes late, and what was meant for it waits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import millstream as ms
from tests.kills import Fault, Input, answers, check, feeding, kill_tree, output_of, run_to_the_end, start
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1200)]

AWAY = 20.0  # seconds


def test_a_lane_that_is_away_for_long_holds_nobody_up_and_makes_nothing_late(tmp_path: Path) -> None:
    """It hangs between Spark's commit of its checkpoint and its joining again."""
    given, fault = Input(tmp_path, seed=16), Fault("after Spark's commit", "hang")
    with feeding(given):
        process = start(tmp_path, [fault], roomy=True)  # what comes for the other lane waits, and must not fill the backlog
        try:
            wait_until(lambda: process.poll() is not None or fault.fired(tmp_path).exists(), 240)
            assert process.poll() is None, output_of(tmp_path)
            away, before = time.monotonic(), ms.status_of(tmp_path / "run")
            while time.monotonic() - away < AWAY:
                answers(tmp_path, process)  # of the keys that the other lane carries
            during = ms.status_of(tmp_path / "run")
            assert during.epoch > before.epoch + 20
            assert during.low_watermark < ms.END_OF_TIME
            assert any(injector.waiting for injector in during.injectors.values()), "what is meant for it waits"
            (tmp_path / "fired" / "woken").touch()
            wait_until(lambda: (tmp_path / "fired" / "went on").exists(), 30)
            for _ in range(3):
                answers(tmp_path, process)
        finally:
            kill_tree(process)
    run_to_the_end(tmp_path)
    assert check(tmp_path) > 20
    assert all(computation.tally.late == 0 for computation in ms.status_of(tmp_path / "run").computations.values())
