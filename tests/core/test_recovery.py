"""Epochs that are not committed, because they crash or because code raises: they leave nothing, and are planned afresh."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.planning import Limits
from millstream.testing import Driver
from millstream.testing.run import EPOCHS_PER_CHECKPOINT
from tests.core.alone import Alone, Event, inject


class Count(ms.Computation[int]):
    """Counts, and has a timer ring; what it sees of every record is written down, also by an epoch that is dropped."""

    counts: ms.Output[int]

    def __init__(self) -> None:
        self.broken = False
        self.seen: list[tuple[str, int, int]] = []

    def process_record(self, record: ms.Record[Event]) -> None:
        self.seen.append((record.value.word, self.state, int(self.now)))
        self.state += 1
        self.set_timer("ring", at=record.timestamp + ms.SECOND)
        self.counts.produce(self.state, timestamp=record.timestamp)
        if self.broken and record.value.word == "bad":
            raise ValueError("not this one")

    def process_timer(self, timer: ms.Timer) -> None:
        self.state += 100


def visible(it: Alone) -> Any:
    """All that can be asked of a driver."""
    computation = it.driver._graph.nodes["it"].computation
    driver = it.driver
    return (
        driver._ledger.number,
        driver.state("it", "k"),
        driver.timers("it", "k"),
        driver.keys("it"),
        driver.tally("it"),
        driver.read(it.events),
        driver.read(computation.counts),  # type: ignore[attr-defined]
        driver.low_watermark("it"),
        driver.low_watermark(it.events),
    )


def test_a_crash_drops_the_epoch_and_it_is_planned_again() -> None:
    count = Count()
    it = Alone(count)
    it.driver.crash()
    it.send(Event(word="x"))
    assert count.seen == [("x", 0, 0), ("x", 0, 0)]
    assert (it.state(), it.tally.received) == (1, 1)
    assert [record.value for record in it.driver.read(count.counts)] == [1]


def test_after_a_crash_nothing_of_the_epoch_can_be_seen() -> None:
    count = Count()
    it = Alone(count)
    it.send(Event(word="x"))
    before = visible(it)
    with it.driver.together():
        it.send(Event(at=1, word="y"))
        it.advance(1)
        it.driver.crash()
        assert it.driver.epoch() is True
        assert [word for word, _, _ in count.seen] == ["x", "y"]  # it did run
        assert visible(it) == before
    assert (it.state(), it.driver.low_watermark("it")) == (2, 1)


def test_what_is_planned_afresh_has_other_clocks_and_what_has_come_meanwhile() -> None:
    count = Count()
    it = Alone(count)
    with it.driver.together():
        it.send(Event(at=2, word="x"))
        it.driver.crash()
        it.driver.epoch()
        it.advance(now=50)
        it.send(Event(at=1, word="sooner"))
    assert count.seen == [("x", 0, 0), ("sooner", 0, 50), ("x", 1, 50)]
    assert [record.value for record in it.driver.read(count.counts)] == [1, 2]


def test_a_timer_that_fired_in_a_crash_fires_again_and_counts_once() -> None:
    it = Alone(Count())
    it.send(Event())
    it.driver.crash()
    it.advance(ms.SECOND)
    assert (it.state(), it.tally.fired, it.timers()) == (101, 1, [])


def test_what_a_crash_took_stands_first_again() -> None:
    """Neither what was done before nor what comes after gets between."""
    count = Count()
    it = Alone(count)
    it.driver._run.limits = Limits(1, 1 << 40)
    with it.driver.together():
        for second in range(6):
            it.send(Event(at=second, word=f"{second}"))
    assert [word for word, _, _ in count.seen] == list("012345")
    with it.driver.together():
        for second in range(6, 9):
            it.send(Event(at=second, word=f"{second}"))
        it.driver.crash()
    assert [word for word, _, _ in count.seen] == list("0123456678")
    assert (it.tally.received, it.state()) == (9, 9)


def test_crash_after_crash_everything_comes_back_from_checkpoint_and_redo() -> None:
    it = Alone(Count())
    for second in range(2 * EPOCHS_PER_CHECKPOINT + 50):
        if second % 7 == 0:
            it.driver.crash()
        it.send(Event(f"k{second % 5}", at=second, word="x"))
    rounds = (2 * EPOCHS_PER_CHECKPOINT + 50) // 5
    assert [it.state(f"k{number}") for number in range(5)] == [rounds] * 5
    assert it.driver.keys("it") == 5


def test_what_is_kept_of_the_past_is_bounded() -> None:
    it = Alone(Count())
    for second in range(3 * EPOCHS_PER_CHECKPOINT):
        it.send(Event(at=second, word="x"))
    assert len(it.driver._run._journal._kept) <= 2 * EPOCHS_PER_CHECKPOINT


# Code that raises.


def test_a_failed_epoch_leaves_nothing_and_a_repaired_computation_goes_on() -> None:
    count = Count()
    it = Alone(count)
    it.send(Event(word="x"))
    before, count.broken = visible(it), True
    with pytest.raises(ms.RecordError, match="not this one"):
        it.send(Event(at=1, word="y"), Event(at=2, word="bad"))
    assert [word for word, _, _ in count.seen] == ["x", "y", "bad"]
    assert visible(it) == before
    assert "epoch 3 has failed and left nothing; what it took waits" in it.driver.describe()
    with pytest.raises(ms.RecordError, match="not this one"):
        it.driver.run()  # nobody has repaired it
    count.broken = False
    it.send(Event(at=3, word="z"))
    assert it.state() == 4
    assert [record.value for record in it.driver.read(count.counts)] == [1, 2, 3, 4]
    assert "failed" not in it.driver.describe()


def test_what_other_computations_did_in_a_failed_epoch_is_gone_too() -> None:
    topology, good, bad = ms.Topology("test"), Count(), Count()
    events = inject(topology)
    topology.compute("good", good).reads(events)
    topology.compute("bad", bad).reads(events)
    driver = Driver(topology, ship=False)
    bad.broken = True
    with pytest.raises(ms.RecordError):
        driver.send(events, Event(word="bad"))
    assert good.seen == [("bad", 0, 0)]
    assert (driver.state(good, "k"), driver.timers(good, "k"), driver.read(good.counts), driver.tally(good).received) == (0, [], [], 0)
    bad.broken = False
    driver.run()
    assert (driver.state(good, "k"), driver.state(bad, "k")) == (1, 1)


def test_a_crash_that_was_asked_for_waits_for_an_epoch_that_does_not_fail() -> None:
    count = Count()
    it = Alone(count)
    it.driver.crash()
    count.broken = True
    with pytest.raises(ms.RecordError):
        it.send(Event(word="bad"))
    count.broken = False
    it.driver.run()
    assert [state for _, state, _ in count.seen] == [0, 0, 0]
    assert it.state() == 1


def test_not_only_errors_leave_nothing() -> None:
    """As a test that is interrupted, or skips from inside its computation."""

    class Interrupted(Count):
        def process_record(self, record: ms.Record[Event]) -> None:
            super().process_record(record)
            if self.broken:
                raise KeyboardInterrupt

    count = Interrupted()
    it = Alone(count)
    before, count.broken = visible(it), True
    with pytest.raises(KeyboardInterrupt):
        it.send(Event(word="x"))
    assert visible(it) == before
