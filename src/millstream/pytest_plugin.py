"""For pytest: a test that takes `drive` makes its drivers with it, and a failure shows what they have seen."""

from __future__ import annotations

import importlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from millstream.testing import Driver
    from millstream.timestamp import Timestamp
    from millstream.topology import Topology

_DRIVERS: pytest.StashKey[list[Driver]] = pytest.StashKey()


class Drive(Protocol):
    """The type of the fixture `drive`."""

    def __call__(self, topology: Topology, *, now: Timestamp | None = None, ship: bool = True) -> Driver: ...


@pytest.fixture
def drive(request: pytest.FixtureRequest) -> Drive:
    """Makes a `Driver` for a topology; if the test fails, its report shows the epoch, the low watermarks and the last records."""
    testing = importlib.import_module("millstream.testing")  # now, not when pytest starts
    made: list[Driver] = request.node.stash.setdefault(_DRIVERS, [])

    def make(topology: Topology, *, now: Timestamp | None = None, ship: bool = True) -> Driver:
        driver: Driver = testing.Driver(topology, now=now, ship=ship)
        made.append(driver)
        return driver

    return make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [("what the driver has seen", _described(driver)) for driver in item.stash.get(_DRIVERS, [])]
    return report


def _described(driver: Driver) -> str:
    try:
        return driver.describe()
    except Exception as error:  # the failure of the test is what must be seen
        return f"it cannot be shown: {type(error).__name__}: {error}"
