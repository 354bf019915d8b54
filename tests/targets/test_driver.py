"""Deliveries in the driver, as threads: order, repeats after a crash, takeover, and what the run is told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import StreamPlan
from millstream.target import Step
from millstream.targets.records import stretch
from millstream.targets.steps import Steps
from tests.targets.fakes import TIMEOUT, Called, FakeJournal, Killed, deliver_all, delivery, part


def test_commits_are_delivered_as_they_come(tmp_path: Path) -> None:
    journal, target = FakeJournal(), Called()
    thread = delivery(journal, target, tmp_path)
    thread.start()
    for n in range(5):
        thread.notify(*journal.commit(n))
        assert thread.wait_for(n + 1, TIMEOUT)
    assert target.calls == [(n, [n]) for n in range(5)]
    assert thread.stop(5, TIMEOUT)
    assert journal.said == [1, 2, 3, 4, 5]


def test_records_come_by_time_and_then_as_they_were_produced(tmp_path: Path) -> None:
    journal, target = FakeJournal(), Called()
    # Two lanes of an injector: their numbers are mixed. Then two lanes of an epoch, the later buckets first.
    journal.commit_dealt(
        part([10, 12, 13], at=[5, 5, 1], origin="in", major=0, minors=[0, 2, 3]),
        part([11, 14], at=[5, 5], origin="in", major=0, minors=[1, 4]),
    )
    journal.commit_dealt(
        part([30, 31], at=[5, 5], major=2, minors=[2 << 40, (2 << 40) + 1]),
        part([20, 21], at=[5, 0], major=2, minors=[1 << 40, (1 << 40) + 1]),
    )
    journal.commit_dealt(part([40], at=[5], major=10, minors=[0]), part([39], at=[5], major=9, minors=[7]))
    deliver_all(journal, target, tmp_path)
    assert target.calls == [(0, [21, 13, 10, 11, 12, 14, 20, 30, 31, 39, 40])]


@pytest.mark.parametrize("logged", range(4))
@pytest.mark.parametrize("crash", ["before the call", "in the call", "after the call", "after it was done"])
def test_after_a_crash_a_step_comes_again_with_its_number_and_records(tmp_path: Path, crash: str, logged: int) -> None:
    """The second start finds more commits, and some of the old ones in the log only."""
    journal, calls = FakeJournal(), list[tuple[int, list[int]]]()

    class Target(Called):
        def call(self, k: int, records: list[ms.Record[Any]]) -> None:
            if crash == "in the call" and k == 1 and not calls:
                calls.append((k, [record.value for record in records]))
                raise Killed
            super().call(k, records)
            if crash == "after the call" and k == 1 and not calls:
                calls.append((k, [record.value for record in records]))
                raise Killed

    def killed(*_: object) -> bool:
        raise Killed

    journal.commit(1, 2)
    first = Target()
    deliver_all(journal, first, tmp_path)
    journal.commit(4, 3)
    journal.commit(6, 5, at=[0, 9])
    thread = delivery(journal, first, tmp_path, fence=2)
    if crash == "before the call":
        journal.still_owner = killed  # type: ignore[method-assign]
    if crash == "after it was done":
        journal.say = lambda position: killed() if position > 1 else False  # type: ignore[assignment]
    thread.start()
    thread.join(TIMEOUT)
    vars(journal).pop("still_owner", None)
    vars(journal).pop("say", None)
    assert isinstance(thread.error, ms.RecordError)
    assert "Killed" in str(thread.error)
    assert type(thread.error.__cause__).__name__ == "Killed"

    journal.commit(7)
    journal.logged = logged
    second = Target()
    calls.append((9, []))
    deliver_all(journal, second, tmp_path, fence=3)
    again = (1, [6, 3, 4, 5])
    if crash == "after it was done":
        assert second.calls == [(2, [7])]
    else:
        assert second.calls == [again, (2, [7])]
    if crash in ("in the call", "after the call"):
        assert calls[0] == again
    assert journal.said[-1] == 4


def test_an_overtaken_run_calls_nothing(tmp_path: Path) -> None:
    journal, target = FakeJournal(), Called()
    thread = delivery(journal, target, tmp_path)
    thread.start()
    journal.owner = False
    thread.notify(*journal.commit(1))
    thread.join(TIMEOUT)
    assert (thread.overtaken, thread.error, target.calls, journal.said) == (True, None, [], [])
    assert not thread.wait_for(1, TIMEOUT)
    # The run that came after it finds the step open, and repeats it.
    journal.owner = True
    assert Steps(tmp_path / "deliveries" / "out", fence=1).open == Step(0, 0, 1)
    deliver_all(journal, target, tmp_path, fence=2)
    assert target.calls == [(0, [1])]


def test_what_a_newer_run_has_removed_is_no_damage(tmp_path: Path) -> None:
    def missing(*_: object) -> Any:
        raise ms.LogError("segments/3 is missing, and a commit names it")

    for owner in (True, False):
        journal = FakeJournal(owner=owner)
        journal.read_part = missing  # type: ignore[method-assign]
        journal.commit(1)
        thread = deliver_all(journal, Called(), tmp_path / str(owner))
        assert thread.overtaken is not owner
        assert (thread.error is not None) is owner


def test_an_exception_of_the_function_ends_it_with_its_traceback(tmp_path: Path) -> None:
    def refuse(step: int, records: list[ms.Record[Any]]) -> None:
        raise ValueError("not today")

    journal = FakeJournal()
    journal.commit(1)
    thread = deliver_all(journal, ms.function(refuse), tmp_path)
    text = str(thread.error)
    assert text.startswith("delivery 'out': ValueError: not today\n\nTraceback")
    assert "in refuse" in text
    assert "millstream/targets" not in text
    assert journal.said == []
    thread.notify(*journal.commit(2))
    assert not thread.stop(2, TIMEOUT)


def test_a_function_that_exits_is_an_error_too(tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.commit(1)
    target = ms.function(lambda step, records: exit(3))
    assert "SystemExit: 3" in str(deliver_all(journal, target, tmp_path).error)


def test_a_value_that_does_not_decode_is_named_and_opens_no_step(tmp_path: Path) -> None:
    journal, target = FakeJournal(), Called()
    journal.commit_dealt(part([1, "two", 3], at=[1, 2, 3], major=7, minors=[4, 5, 6]))
    thread = deliver_all(journal, target, tmp_path)
    assert str(thread.error).startswith("record numbers/7/5 of stream 'numbers', key 'ktwo': its value does not fit the type of the stream")
    assert target.calls == []
    deliver_all(journal, target, tmp_path, fence=2, stream=StreamPlan("numbers", int | str))
    assert target.calls == [(0, [1, "two", 3])]


def test_a_slow_function_holds_nobody_else(tmp_path: Path) -> None:
    journal, quick, begun, go_on = FakeJournal(), Called(), threading.Event(), threading.Event()
    taken: list[list[int]] = []

    class Slow(Called):
        def call(self, k: int, records: list[ms.Record[Any]]) -> None:
            begun.set()
            assert go_on.wait(TIMEOUT)
            taken.append([record.value for record in records])

    threads = [delivery(journal, Slow(), tmp_path, name="slow"), delivery(journal, quick, tmp_path, name="quick")]
    for thread in threads:
        thread.start()
    for n in range(50):
        number, places = journal.commit(n)
        for thread in threads:
            thread.notify(number, places)
        assert begun.wait(TIMEOUT)
        assert threads[1].wait_for(number, TIMEOUT)
    assert len(quick.calls) == 50
    assert threads[0].position == 0
    go_on.set()
    assert threads[0].stop(50, TIMEOUT)
    assert taken == [[0], list(range(1, 50))]
    assert threads[1].stop(50, TIMEOUT)


def test_stop_gives_up_on_a_call_that_goes_on_and_nothing_is_called_after_it(tmp_path: Path) -> None:
    journal, begun, go_on = FakeJournal(), threading.Event(), threading.Event()
    taken: list[int] = []

    class Slow(Called):
        def call(self, k: int, records: list[ms.Record[Any]]) -> None:
            begun.set()
            assert go_on.wait(TIMEOUT)
            taken.append(k)

    thread = delivery(journal, Slow(), tmp_path)
    thread.start()
    thread.notify(*journal.commit(1))
    assert begun.wait(TIMEOUT)
    thread.notify(*journal.commit(2))
    assert not thread.stop(2, 0.01)
    go_on.set()
    thread.join(TIMEOUT)
    assert taken == [0]


def test_stop_waits_for_the_last_commit_and_records_what_was_empty(tmp_path: Path) -> None:
    journal, target = FakeJournal(), Called()
    thread = delivery(journal, target, tmp_path)
    thread.start()
    for _ in range(3):
        thread.notify(*journal.commit())
    stopper = threading.Thread(target=thread.stop, args=(5, TIMEOUT))
    stopper.start()
    thread.notify(*journal.commit(1))
    thread.notify(*journal.commit())
    stopper.join(TIMEOUT)
    assert target.calls == [(0, [1])]
    assert journal.said[-1] == 5
    assert Steps(tmp_path / "deliveries" / "out", fence=2).position == 5


def test_a_new_delivery_begins_with_what_the_log_holds(tmp_path: Path) -> None:
    journal, target = FakeJournal(logged=3), Called()
    for n in range(5):
        journal.commit(n)
    deliver_all(journal, target, tmp_path)
    assert target.calls == [(0, [0, 1, 2]), (1, [3, 4])]


def test_a_stretch_of_the_log_has_whole_epochs() -> None:
    def epochs(*counts: int) -> list[tuple[int, list[Any]]]:
        return [(n, [part(range(count), at=[0] * count, major=n, minors=range(count))]) for n, count in enumerate(counts, 1) if count]

    def found(*counts: int, at_most: int | None) -> tuple[int, int]:
        taken = stretch(epochs(*counts), len(counts), at_most)
        return taken.upto, sum(len(content.columns) for content in taken.contents)

    assert found(3, 0, 4, 2, at_most=7) == (3, 7)
    assert found(3, 0, 0, 5, at_most=7) == (3, 3)  # up to the last empty one
    assert found(30, 1, at_most=7) == (1, 30)
    assert found(30, 1, 0, at_most=None) == (3, 31)
    assert found(0, 0, at_most=7) == (2, 0)


def test_memory_and_console(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal, kept = FakeJournal(), ms.memory()
    journal.commit(*range(40))
    for name, target in (("seen", kept), ("shown", ms.console(at_most=2))):
        own = FakeJournal(journal.epochs)  # each delivery says its own position
        thread = delivery(own, target, tmp_path, name=name)
        thread.start()
        assert thread.stop(1, TIMEOUT)
    assert [record.value for record in kept.records] == list(range(40))
    assert capfd.readouterr().out.splitlines() == [
        "shown: … 38 more",
        "shown: 1970-01-01T00:00:00.000038Z  k38  38",
        "shown: 1970-01-01T00:00:00.000039Z  k39  39",
    ]
    journal.commit(40)
    fresh = ms.memory()
    thread = delivery(journal, fresh, tmp_path, name="seen", fence=2)
    thread.start()
    assert thread.stop(2, TIMEOUT)
    assert [record.value for record in fresh.records] == [40], "a new process goes on"
