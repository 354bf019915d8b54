"""Waiting for a condition, and never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 120.0, *, pause: float = 0.02) -> None:
    """`seconds` is a bound and not an expectation; `pause` is between two looks."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)
