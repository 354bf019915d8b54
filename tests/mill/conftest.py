"""What the tests of the planner begin with."""

from __future__ import annotations

import pytest

from tests.mill.desk import Desk


@pytest.fixture
def desk() -> Desk:
    """Both lanes are there, and nothing has come."""
    made = Desk()
    made.join(0)
    made.join(1)
    return made
