"""Reading a stream, and the status, from outside the run: whoever has seen a record delivered finds it there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millstream as ms
from millstream.log.reading import newest_records
from tests.spark.clicks import Click, T, click

pytestmark = pytest.mark.spark

ROUNDS = 20


class Echo(ms.Computation[int]):
    """Numbers the clicks of a user, in one stream that is kept and in one that is not."""

    kept: ms.Output[int]
    passing: ms.Output[int] = ms.output(keep=False)

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1
        self.kept.produce(self.state, timestamp=record.timestamp)
        self.passing.produce(self.state, timestamp=record.timestamp)


def test_what_was_delivered_is_found_at_once_while_the_run_is_on(at: Path, drained: Callable[..., ms.Run]) -> None:
    """A click is given when the one before it was delivered and read: the log is about a second behind, nobody else is."""
    turn, found, unkept = threading.Semaphore(1), list[list[int]](), list[bool]()

    def values(taken: int) -> Iterator[Click]:
        for n in range(ROUNDS):
            assert turn.acquire(timeout=60)
            yield click("anna", n)

    def look(step: int, records: list[ms.Record[int]]) -> None:
        found.append([record.value for record in ms.read(at, "echo.kept", last=3, value=int)])
        unkept.append(records[-1] in ms.read(at, "echo.passing", value=int))
        assert ms.status_of(at).streams["echo.kept"].records == records[-1].value
        turn.release()

    topology, echo = ms.Topology("reading"), Echo()
    usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    topology.compute("echo", echo).reads(topology.inject("clicks", ms.values(values, Click), **usual))
    topology.deliver("look", echo.kept, ms.function(look))
    drained(topology)
    assert len(found) == ROUNDS
    assert found == [[n for n in range(last - 2, last + 1) if n > 0] for last in range(1, ROUNDS + 1)]
    assert all(unkept), "the journal has it until it is let go"
    whole = [ms.Record("anna", n, T + (n - 1) * ms.SECOND) for n in range(1, ROUNDS + 1)]
    assert ms.read(at, "echo.kept") == whole  # also when nothing runs
    assert [json.loads(line)["value"] for line in newest_records(at, "echo.kept", 2)] == [ROUNDS - 1, ROUNDS]
    assert len({json.loads(line)["id"] for line in newest_records(at, "clicks", 100)}) == ROUNDS


def test_what_cannot_be_read_is_told(tmp_path: Path, at: Path, drained: Callable[..., ms.Run]) -> None:
    with pytest.raises(ms.LogError, match="nothing holds no run of Millstream; name the folder that was given to run as --at"):
        ms.read(tmp_path / "nothing", "clicks")
    topology, echo = ms.Topology("reading"), Echo()
    usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    topology.compute("echo", echo).reads(topology.inject("clicks", ms.values([click("anna", 1)], Click), **usual))
    drained(topology)
    with pytest.raises(ms.LogError, match=r"the log has no record of a stream 'clcks'; streams with records: clicks, echo\.kept"):
        ms.read(at, "clcks")
    with pytest.raises(ms.TopologyError, match=r"read\(last=0\): give a whole number, at least 1"):
        ms.read(at, "clicks", last=0)
    with pytest.raises(Exception, match="Expected `int`, got `object`"):
        ms.read(at, "clicks", value=int)
