"""The contract for targets notices what is broken: each of these targets is wrong in one way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

import millstream as ms
from millstream.testing import TargetContract, TransactionalTargetContract, source_reading
from millstream.testing.contracts import Stopped, TornRecords
from tests.targets.transacted import System, SystemSink, SystemTarget


class Picky(System):
    """Does not take what is negative, and may be away."""

    away = False


class PickySink(SystemSink):
    _system: Picky

    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        self.reach()
        self.check(list(records))
        super().write(step, records)

    def reach(self) -> None:
        if self._system.away:
            raise ms.Unreachable("no route")

    def check(self, records: list[ms.Record[Any]]) -> None:
        for record in records:
            if record.value < 0:
                raise ms.RecordError(f"record {record.id}", "it is negative")


class Keeping(PickySink):
    """What it was given before the rest could not be had stays there."""

    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        self.reach()
        for record in records:
            self.check([record])
            self._system.rows.append((record.key, record.value))
        self._system.steps[self._context.identity] = step


class StepFirst(PickySink):
    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        before = self.last_step()
        self._system.steps[self._context.identity] = step
        list(records)
        if before is None:
            del self._system.steps[self._context.identity]
        else:
            self._system.steps[self._context.identity] = before
        super().write(step, records)


class TakesHalf(PickySink):
    """And returns, as if that were all."""

    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        found: list[ms.Record[Any]] = []
        with suppress(Stopped):
            for record in records:
                found.append(record)
        super().write(step, found)


class PassesOver(PickySink):
    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        super().write(step, [record for record in records if record.value >= 0])


class BlamesTheSystem(PickySink):
    def check(self, records: list[ms.Record[Any]]) -> None:
        try:
            super().check(records)
        except ms.RecordError as error:
            raise ms.Unreachable(str(error)) from error


class SaysNothing(PickySink):
    def check(self, records: list[ms.Record[Any]]) -> None:
        if any(record.value < 0 for record in records):
            raise ValueError


class IsSilentWhenCutOff(PickySink):
    """Takes what it is given for later, and there is none."""

    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        if not self._system.away:
            super().write(step, records)


class RaisesWhatItGets(PickySink):
    def reach(self) -> None:
        if self._system.away:
            raise ConnectionRefusedError("no route")


class StaysAway(PickySink):
    """One that was away once is taken for gone."""

    gone: set[int] = set()

    def reach(self) -> None:
        if self._system.away:
            self.gone.add(id(self._system))
        if id(self._system) in self.gone:
            raise ms.Unreachable("no route")


class WritesInTheEnd(PickySink):
    """Says that it is away, and has taken the step; and then it does not know that."""

    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        if self._system.away:
            self._system.rows += [(record.key, record.value) for record in records]
        super().write(step, records)


class PickyContract(TransactionalTargetContract):
    kind: type[PickySink] = PickySink

    def setup_method(self) -> None:
        self.system = Picky()

    def make(self) -> ms.Target:
        kind, system = self.kind, self.system

        class Made(SystemTarget):
            def open(self, context: ms.DeliveryContext) -> ms.Sink:
                super().open(context)
                return kind(system, context)

        return Made(system)

    def stored(self) -> list[tuple[str, Any]]:
        return self.system.rows

    def bad_value(self) -> int:
        return -1

    def cut_off(self) -> None:
        self.system.away = True

    def reconnect(self) -> None:
        self.system.away = False


class TestPicky(PickyContract):
    """What is not broken passes."""


BROKEN = [
    (Keeping, "a_step_that_was_interrupted_comes_again_whole"),
    (StepFirst, "a_step_that_was_interrupted_comes_again_whole"),
    (TakesHalf, "a_step_that_was_interrupted_comes_again_whole"),
    (Keeping, "a_value_that_does_not_fit_ends_the_run_and_the_next_one_goes_on"),
    (PassesOver, "a_value_that_does_not_fit_ends_the_run_and_the_next_one_goes_on"),
    (BlamesTheSystem, "a_value_that_does_not_fit_ends_the_run_and_the_next_one_goes_on"),
    (SaysNothing, "a_value_that_does_not_fit_ends_the_run_and_the_next_one_goes_on"),
    (IsSilentWhenCutOff, "one_that_cannot_be_reached_is_waited_for"),
    (IsSilentWhenCutOff, "a_break_between_two_steps_loses_nothing"),
    (RaisesWhatItGets, "one_that_cannot_be_reached_is_waited_for"),
    (RaisesWhatItGets, "a_break_between_two_steps_loses_nothing"),
    (StaysAway, "one_that_cannot_be_reached_is_waited_for"),
    (WritesInTheEnd, "a_break_between_two_steps_loses_nothing"),
]


@pytest.mark.parametrize(("broken", "test"), BROKEN, ids=[f"{broken.__name__}-{test}" for broken, test in BROKEN])
def test_what_is_broken_is_noticed(broken: type[PickySink], test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_reading, "TIMEOUT", 0.3)
    contract = PickyContract()
    contract.kind = broken
    contract.setup_method()
    with pytest.raises(AssertionError) as found:
        getattr(contract, f"test_{test}")()
    assert str(found.value), "a failure says what to do"


class WithoutTransactions(TargetContract):
    """Records go to a list, and a step that comes again comes twice."""

    def setup_method(self) -> None:
        self.rows: list[tuple[str, Any]] = []

    def make(self) -> ms.Target:
        return ms.function(lambda step, records: self.rows.extend((record.key, record.value) for record in records))

    def stored(self) -> list[tuple[str, Any]]:
        return self.rows


def test_without_transactions_records_may_come_twice_and_none_may_be_missing() -> None:
    contract = WithoutTransactions()
    contract.setup_method()
    contract.rows = [*contract._expected(0, 1), *contract._expected(1, 2)]
    contract._check_stored(0, 1, 2)
    contract.repeats = False
    for expected in ((0, 1, 2), (0, 1)):
        with pytest.raises(AssertionError, match="must be there once"):
            contract._check_stored(*expected)


def test_only_tests_that_apply_are_there() -> None:
    class Again(WithoutTransactions):
        def cut_off(self) -> None: ...

    broken, unfit = "test_a_break_between_two_steps_loses_nothing", "test_a_value_that_does_not_fit_ends_the_run_and_the_next_one_goes_on"
    assert getattr(WithoutTransactions, broken) is None
    assert callable(getattr(Again, broken))
    assert getattr(Again, unfit) is None
    assert callable(getattr(TestPicky, unfit))


def test_records_end_where_they_are_torn() -> None:
    whole = WithoutTransactions()._records(0, 1, 2, 3)
    torn = TornRecords(whole, 2)
    assert (len(torn), torn[0], torn[1], torn[-3]) == (4, whole[0], whole[1], whole[1])
    for read in (lambda: list(torn), lambda: torn[2], lambda: torn[-1], lambda: list(torn[1:]), lambda: torn[3:][0], lambda: sorted(torn)):
        with pytest.raises(Stopped):
            read()
    assert list(torn[:2]) == whole[:2]
    assert torn[1:][0] == whole[1]
