"""Servers as fixtures: one of each for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.postgres import NotToBeHad, PostgresServer, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server. A test that stops it starts it again."""
    try:
        server = running()
    except NotToBeHad as reason:
        pytest.skip(f"no PostgreSQL server: {reason}")
    yield server
    server.remove()
