"""Targets with transactions of their own: how far they are, they say themselves; and what becomes of one that does not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.targets import connection
from millstream.testing import TargetContract, TransactionalTargetContract
from tests.targets.fakes import TIMEOUT, Called, FakeJournal, Killed, deliver_all, delivery
from tests.targets.transacted import System, SystemTarget
from tests.waiting import wait_until


class TestSystem(TransactionalTargetContract):
    def setup_method(self) -> None:
        self.system = System()

    def make(self) -> ms.Target:
        return SystemTarget(self.system)

    def stored(self) -> list[tuple[str, Any]]:
        return self.system.rows

    def cut_off(self) -> None:
        def away(moment: str) -> None:
            raise ms.Unreachable(f"no route {moment} the step")

        self.system.fail = away

    def reconnect(self) -> None:
        self.system.fail = lambda moment: None


class TestFunction(TargetContract):
    def setup_method(self) -> None:
        self.rows: list[tuple[str, Any]] = []
        self.error: Exception | None = None  # of what the function calls

    def make(self) -> ms.Target:
        def call(step: int, records: list[ms.Record[Any]]) -> None:
            for record in records:
                if self.error is not None and (isinstance(self.error, ms.Unreachable) or record.value < 0):
                    raise self.error
                self.rows.append((record.key, record.value))

        return ms.function(call)

    def stored(self) -> list[tuple[str, Any]]:
        return self.rows

    def bad_value(self) -> int:
        self.error = ValueError("it must not be negative")
        return -1

    def cut_off(self) -> None:
        self.error = ms.Unreachable("no route")

    def reconnect(self) -> None:
        self.error = None


class TestMemory(TargetContract):
    repeats = False

    def setup_method(self) -> None:
        self.target = ms.memory()

    def make(self) -> ms.Target:
        return self.target

    def stored(self) -> list[tuple[str, Any]]:
        return [(record.key, record.value) for record in self.target.records]


def once(moment: str, error: BaseException) -> Callable[[str], None]:
    """Fails at this moment, the first time."""
    left = [error]

    def fail(now: str) -> None:
        if now == moment and left:
            raise left.pop()

    return fail


def values(system: System) -> list[Any]:
    return [value for _, value in system.rows]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.001)


def test_a_start_goes_on_where_the_target_is(tmp_path: Path) -> None:
    journal, system = FakeJournal(), System()
    journal.commit(1, 2)
    deliver_all(journal, SystemTarget(system), tmp_path)
    journal.commit(3)
    deliver_all(journal, SystemTarget(system), tmp_path, fence=2)
    assert values(system) == [1, 2, 3]
    assert list(system.steps.values()) == [ms.Step(1, 1, 2)]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_after_a_crash_a_step_that_went_in_does_not_come_again(tmp_path: Path, moment: str) -> None:
    journal, system = FakeJournal(), System()
    journal.commit(1)
    deliver_all(journal, SystemTarget(system), tmp_path)
    journal.commit(2)
    system.fail = once(moment, Killed())
    assert "Killed" in str(deliver_all(journal, SystemTarget(system), tmp_path, fence=2).error)
    journal.commit(3)
    deliver_all(journal, SystemTarget(system), tmp_path, fence=3)
    assert values(system) == [1, 2, 3]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_one_that_does_not_answer_is_tried_again_and_asked_whether_the_step_went_in(
    tmp_path: Path, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "millstream")
    journal, system = FakeJournal(), System(fail=once(moment, ms.Unreachable("no route")))
    journal.commit(1, 2)
    thread = deliver_all(journal, SystemTarget(system), tmp_path)
    assert (thread.error, values(system)) == (None, [1, 2])
    assert [record.getMessage() for record in caplog.records] == [
        "delivery 'out' waits: the system cannot be reached: no route",
        "delivery 'out': the system is reached again",
    ]


def test_without_transactions_the_same_step_comes_again(tmp_path: Path) -> None:
    journal, fail = FakeJournal(), once("call", ms.Unreachable("no route"))

    class Shaky(Called):
        def call(self, k: int, records: list[ms.Record[Any]]) -> None:
            super().call(k, records)
            fail("call")

    target = Shaky()
    journal.commit(1)
    assert deliver_all(journal, target, tmp_path).error is None
    assert target.calls == [(0, [1]), (0, [1])]


def test_while_it_does_not_answer_that_is_told_and_a_stop_gives_it_up(tmp_path: Path) -> None:
    def down(moment: str) -> None:
        if moment != "open" or system.rows:
            raise ms.Unreachable("connection refused")

    journal, system = FakeJournal(), System()
    journal.commit(1)
    thread = delivery(journal, SystemTarget(system), tmp_path)
    system.fail = down
    thread.start()
    wait_until(lambda: thread.trouble is not None, TIMEOUT)
    assert thread.trouble == "delivery 'out' waits: the system cannot be reached: connection refused"
    assert not thread.stop(1, 0.01)
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert (thread.error, values(system)) == (None, [])
    system.fail = lambda moment: None
    deliver_all(journal, SystemTarget(system), tmp_path, fence=2)
    assert values(system) == [1]


def test_an_overtaken_run_is_refused_by_the_target(tmp_path: Path) -> None:
    journal, system = FakeJournal(), System()
    old = delivery(journal, SystemTarget(system), tmp_path)
    delivery(journal, SystemTarget(system), tmp_path, fence=2)
    old.start()
    old.notify(*journal.commit(1))
    old.join(TIMEOUT)
    assert (old.overtaken, values(system)) == (True, [])


def test_epochs_without_a_record_are_recorded_there_too(tmp_path: Path) -> None:
    journal, system = FakeJournal(), System()
    journal.commit(1)
    for _ in range(5):
        journal.commit()
    deliver_all(journal, SystemTarget(system), tmp_path)
    assert max(journal.said) == 6
    assert [step.upto for step in system.steps.values()] == [6]
    deliver_all(journal, SystemTarget(system), tmp_path, fence=2)
    assert values(system) == [1]


def test_a_target_that_was_emptied_is_refused(tmp_path: Path) -> None:
    journal, system = FakeJournal(), System()
    journal.commit(1)
    deliver_all(journal, SystemTarget(system), tmp_path)
    with pytest.raises(ms.LogError, match=r"the system has nothing of what delivery 'out' has delivered, up to epoch 1.*--deliver-anew"):
        delivery(journal, SystemTarget(System()), tmp_path, fence=2)


def test_a_target_without_transactions_goes_on_where_one_with_them_was(tmp_path: Path) -> None:
    """And again where that one is, under another name there: each has what came while it was the target."""
    journal, system, called = FakeJournal(), System(), Called()
    journal.commit(1)
    deliver_all(journal, called, tmp_path)
    for n in (2, 3):
        journal.commit(n)
        deliver_all(journal, SystemTarget(system), tmp_path, fence=n)
    journal.commit(4)
    assert deliver_all(journal, called, tmp_path, fence=4).error is None
    assert values(system) == [2, 3]
    assert called.calls == [(0, [1]), (1, [4])]
    journal.commit(5)
    another = System()
    assert deliver_all(journal, Elsewhere(another), tmp_path, fence=5).error is None
    assert values(another) == [5]


class Elsewhere(SystemTarget):
    def describe(self) -> str:
        return "another system"


def test_a_step_that_was_open_is_repeated_after_a_target_that_could_not_be_opened(tmp_path: Path) -> None:
    journal, called = FakeJournal(), Called()
    journal.commit(1, 2)
    called.call = once_then(called.call, Killed())  # type: ignore[method-assign]
    assert "Killed" in str(deliver_all(journal, called, tmp_path).error)
    down = System(fail=once("open", ms.Unreachable("no route")))
    with pytest.raises(ms.Unreachable):
        delivery(journal, SystemTarget(down), tmp_path, fence=2)
    journal.commit(3)
    assert deliver_all(journal, called, tmp_path, fence=3).error is None
    assert called.calls == [(0, [1, 2]), (0, [1, 2]), (1, [3])]


def once_then(call: Callable[..., None], error: BaseException) -> Callable[..., None]:
    """The first call ends so, after it has been made."""
    left = [error]

    def calling(*given: Any) -> None:
        call(*given)
        if left:
            raise left.pop()

    return calling


def test_a_target_that_is_ahead_or_behind_is_refused(tmp_path: Path) -> None:
    journal, system = FakeJournal(), System()
    for n in range(3):
        journal.commit(n)
    deliver_all(journal, SystemTarget(system), tmp_path)
    (identity,) = system.steps
    for upto, why in ((9, "the system has epochs up to 9, but commits end with 3"), (2, "the system ends with epoch 2")):
        system.steps[identity] = ms.Step(0, 0, upto)
        with pytest.raises(ms.LogError, match=why):
            delivery(journal, SystemTarget(system), tmp_path, fence=2)


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (None, "has nothing any more of what delivery 'out' has delivered, up to epoch 2"),
        (ms.Step(0, 0, 1), "ends with epoch 1, and had 2"),
    ],
)
def test_a_target_that_comes_back_with_less_is_refused(tmp_path: Path, left: ms.Step | None, why: str) -> None:
    """Such as a replica that was behind. It would be filled up from the middle."""

    def emptied(moment: str) -> None:
        if moment == "before" and len(system.rows) == 2:
            system.rows.clear()
            system.steps = {} if left is None else dict.fromkeys(system.steps, left)
            raise ms.Unreachable("failed over")

    journal, system = FakeJournal(), System()
    for n in range(2):
        journal.commit(n)
        deliver_all(journal, SystemTarget(system), tmp_path, fence=n + 1)
    system.fail = emptied
    journal.commit(2)
    thread = deliver_all(journal, SystemTarget(system), tmp_path, fence=3)
    assert why in str(thread.error)
    assert "--deliver-anew" in str(thread.error)
    assert not thread.overtaken
    assert system.rows == []


def test_a_run_that_is_overtaken_while_it_waits_writes_nothing_any_more(tmp_path: Path) -> None:
    journal, down = FakeJournal(), threading.Event()
    down.set()

    class Away(Called):
        def call(self, k: int, records: list[ms.Record[Any]]) -> None:
            if down.is_set():
                raise ms.Unreachable("away")
            super().call(k, records)

    target = Away()
    journal.commit(1)
    thread = delivery(journal, target, tmp_path)
    thread.start()
    wait_until(lambda: thread.trouble is not None, TIMEOUT)
    journal.owner = False
    down.clear()
    thread.join(TIMEOUT)
    assert (thread.overtaken, target.calls) == (True, [])


@pytest.mark.parametrize("moment", ["open", "last step"])
def test_what_a_target_raises_at_the_start_names_its_delivery(tmp_path: Path, moment: str) -> None:
    class Odd(SystemTarget):
        def open(self, context: ms.DeliveryContext) -> ms.Sink:
            if moment == "open":
                raise TimeoutError("no answer")
            sink = super().open(context)
            sink.last_step = _raise  # type: ignore[method-assign]
            return sink

    with pytest.raises(ms.TopologyError, match="delivery 'out': the system cannot be delivered to: TimeoutError: no answer"):
        delivery(FakeJournal(), Odd(System()), tmp_path)


def _raise() -> ms.Step | None:
    raise TimeoutError("no answer")


def test_what_it_raises_at_its_end_is_told(tmp_path: Path) -> None:
    class Odd(Called):
        def open(self, context: ms.DeliveryContext) -> ms.Sink:
            sink = super().open(context)
            sink.close = _raise  # type: ignore[method-assign, assignment]
            return sink

    journal = FakeJournal()
    journal.commit(1)
    assert "TimeoutError: no answer" in str(deliver_all(journal, Odd(), tmp_path).error)
