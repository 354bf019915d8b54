"""The fixture `drive`, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOPOLOGY = """
import sys
from dataclasses import dataclass

import pytest

import millstream as ms

loaded = set(sys.modules)


@dataclass(frozen=True)
class Event:
    key: str
    at: int


class Count(ms.Computation[int]):
    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Event]) -> None:
        if record.value.key == "bad":
            raise ValueError("spoilt")
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)


topology = ms.Topology("shop")
events = topology.inject(
    "events",
    ms.values([], Event),
    key=lambda event: event.key,
    timestamp=lambda event: ms.Timestamp(event.at),
    low_watermark=ms.BoundedDisorder(ms.SECOND),
)
count = Count()
topology.compute("count", count).reads(events)
"""


def pytest_on(folder: Path, tests: str) -> str:
    """What pytest says of these tests."""
    (folder / "test_it.py").write_text(TOPOLOGY + tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-W", "error", "test_it.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_a_failure_shows_what_the_drivers_have_seen(tmp_path: Path) -> None:
    printed = pytest_on(
        tmp_path,
        """
def test_of_two(drive):
    first, second = drive(topology), drive(topology, now=ms.Timestamp(10**15))
    first.send(events, *(Event("a", n) for n in range(7)))
    first.advance(low_watermark=ms.Timestamp(5))
    second.send(events, Event("b", 10**15), Event("far", 2 * 10**15))
    assert second.state("count", "b") == 2
""",
    )
    assert "1 failed" in printed
    assert printed.count("- what the driver has seen -") == 2
    first, second = printed.split("what the driver has seen")[1:]
    assert "topology 'shop' after epoch 3, wall clock 1970-01-01T00:00:00Z" in first
    assert "computation 'count': low watermark 1970-01-01T00:00:00.000005Z" in first
    assert "    7 received, 7 applied, 7 produced; 1 keys kept" in first
    assert "stream 'count.counts': 7 records\n    1970-01-01T00:00:00.000002Z 'a': 3\n" in first
    assert "stream 'events': 1 records, low watermark -∞\n    2001-09-09T01:46:40Z 'b': {" in second
    assert "stream 'dead letters': 1 records" in second
    assert "dead letters" not in first


def test_an_epoch_that_failed_is_named(tmp_path: Path) -> None:
    printed = pytest_on(
        tmp_path,
        """
def test_of_bad_input(drive):
    driver = drive(topology)
    driver.send(events, Event("a", 1))
    driver.send(events, Event("bad", 2))
""",
    )
    assert "spoilt" in printed
    assert "topology 'shop' after epoch 2, wall" in printed
    assert "epoch 3 has failed and left nothing; what it took waits" in printed


def test_what_passes_is_quiet_and_what_does_not_ask_pays_nothing(tmp_path: Path) -> None:
    printed = pytest_on(
        tmp_path,
        """
def test_of_nothing_loaded():
    heavy = ("pyspark", "pyarrow", "deltalake", "pandas", "numpy", "millstream.testing", "millstream.core")
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_that_passes(drive):
    driver = drive(topology)
    driver.send(events, Event("a", 1))
    assert driver.state("count", "a") == 1
""",
    )
    assert "2 passed" in printed
    assert "driver" not in printed
