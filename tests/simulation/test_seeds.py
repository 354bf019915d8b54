"""Seeds of the simulation: whatever happens, nothing is lost, nothing comes twice, and what was begun is finished."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.simulation.play import simulate

SEEDS = 400
SECONDS = 40.0
ROOT = Path(__file__).parent.parent.parent


def test_no_seed_breaks_a_law() -> None:
    began = time.perf_counter()
    for seed in range(SEEDS):
        outcome = simulate(seed)
        if outcome.broken is not None:
            raise AssertionError(
                f"python -m tests.simulation --first {seed} --seeds 1\n" + "\n".join(outcome.trace[-40:])
            ) from outcome.broken
        if time.perf_counter() - began > SECONDS:
            break


def test_a_seed_is_the_same_in_another_process_with_another_hash_order() -> None:
    def digests(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--seeds", "12", "--first", "500", "--digests"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300).stdout

    first = digests("1")
    assert first.count("\n") >= 12
    assert first == digests("2")
