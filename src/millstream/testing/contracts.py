"""What a target must keep to, as tests: derive a class from the contract, say how a target is made and read back, and run pytest."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any

from millstream.errors import Fenced
from millstream.record import Record
from millstream.target import DeliveryContext, Sink, Step, Target
from millstream.timestamp import SECOND, Timestamp

NOON = Timestamp(1_700_000_000_000_000)


class TargetContract(ABC):
    """Made anew for each test, as pytest does with classes.

    class TestMyTarget(TargetContract):
        def make(self) -> ms.Target:
            return MyTarget(...)  # at a place of its own, the same for all calls in one test

        def stored(self) -> list[tuple[str, object]]:
            return [(row.key, row.value) for row in ...]  # what is there now, in order
    """

    value_type: Any = int

    @abstractmethod
    def make(self) -> Target: ...

    @abstractmethod
    def stored(self) -> list[tuple[str, Any]]:
        """The key and value of each record that can be read there now, in the order in which they were written."""

    def value(self, n: int) -> Any:
        """The nth value, of `value_type`."""
        return n

    def test_records_are_there_when_write_returns(self) -> None:
        with self._open() as sink:
            sink.write(Step(0, 0, 3), self._records(0, 1))
            assert self.stored() == self._expected(0, 1)
            sink.write(Step(1, 3, 4), self._records(2))
            assert self.stored() == self._expected(0, 1, 2)

    def test_it_can_be_closed_and_opened_again(self) -> None:
        with self._open() as sink:
            sink.write(Step(0, 0, 3), self._records(0))
        with self._open(fence=2) as sink:
            sink.write(Step(1, 3, 4), self._records(1))
        assert self.stored() == self._expected(0, 1)

    def test_it_is_opened_by_one_thread_and_used_by_another(self) -> None:
        with self._open() as sink, ThreadPoolExecutor(1) as other:
            other.submit(sink.write, Step(0, 0, 3), self._records(0)).result()
            other.submit(sink.close).result()
        assert self.stored() == self._expected(0)

    def test_it_says_where_it_is_the_same_way_each_time(self) -> None:
        assert self.make().describe() == self.make().describe() != ""

    def test_a_check_changes_nothing(self) -> None:
        self.make().check(self._context(fence=0))
        self.make().check(self._context(fence=0))
        with self._open() as sink:
            sink.write(Step(0, 0, 1), self._records(0))
        self.make().check(self._context(fence=0))
        assert self.stored() == self._expected(0)

    # Around them.

    @cached_property
    def _identity(self) -> str:
        return uuid.uuid4().hex

    @cached_property
    def _another(self) -> str:
        return uuid.uuid4().hex

    def _context(self, *, fence: int, identity: str | None = None) -> DeliveryContext:
        return DeliveryContext("out", "numbers", self.value_type, identity or self._identity, fence)

    @contextmanager
    def _open(self, *, fence: int = 1, identity: str | None = None) -> Iterator[Sink]:
        with closing(self.make().open(self._context(fence=fence, identity=identity))) as sink:
            yield sink

    def _records(self, *numbers: int) -> list[Record[Any]]:
        return [Record(f"k{n}", self.value(n), NOON + n * SECOND, False, "numbers/1/", n) for n in numbers]

    def _expected(self, *numbers: int) -> list[tuple[str, Any]]:
        return [(f"k{n}", self.value(n)) for n in numbers]

    def _is_refused(self, sink: Sink, step: Step) -> None:
        try:
            sink.write(step, self._records(99))
        except Fenced:
            return
        raise AssertionError(f"{step} was taken; raise ms.Fenced, and change nothing")


class TransactionalTargetContract(TargetContract):
    """What a target with `transactional = True` keeps to besides."""

    def test_it_says_that_it_has_transactions(self) -> None:
        assert self.make().transactional

    def test_it_knows_its_newest_step(self) -> None:
        with self._open() as sink:
            assert sink.last_step() is None
            sink.write(Step(0, 0, 3), self._records(0))
            assert sink.last_step() == Step(0, 0, 3)
        with self._open(fence=2) as sink:
            assert sink.last_step() == Step(0, 0, 3)

    def test_a_step_without_records_is_recorded(self) -> None:
        with self._open() as sink:
            sink.write(Step(0, 0, 3), self._records(0))
            sink.write(Step(1, 3, 300), [])
            assert sink.last_step() == Step(1, 3, 300)
        assert self.stored() == self._expected(0)

    def test_a_step_that_does_not_follow_is_refused_and_leaves_nothing(self) -> None:
        with self._open() as sink:
            sink.write(Step(0, 0, 3), self._records(0))
            for other in (Step(0, 0, 3), Step(1, 2, 4), Step(1, 4, 5)):
                self._is_refused(sink, other)
        with self._open() as sink:
            assert sink.last_step() == Step(0, 0, 3)
        assert self.stored() == self._expected(0)

    def test_one_that_has_nothing_takes_the_first_step_only(self) -> None:
        with self._open() as sink:
            self._is_refused(sink, Step(1, 3, 4))
            assert sink.last_step() is None
        with self._open() as sink:
            sink.write(Step(0, 3, 4), self._records(0))
        assert self.stored() == self._expected(0)

    def test_an_overtaken_run_is_refused(self) -> None:
        with self._open(fence=1) as old, self._open(fence=2) as new:
            assert new.last_step() is None
            self._is_refused(old, Step(0, 0, 3))
            new.write(Step(0, 0, 4), self._records(1))
            self._is_refused(old, Step(0, 0, 3))
            assert new.last_step() == Step(0, 0, 4)
        assert self.stored() == self._expected(1)

    def test_an_older_run_cannot_come_back(self) -> None:
        with self._open(fence=7) as sink:
            sink.write(Step(0, 0, 4), self._records(1))
        try:
            with self._open(fence=3) as older:
                self._is_refused(older, Step(1, 4, 5))
        except Fenced:
            pass  # at the door already
        with self._open(fence=7) as sink:
            assert sink.last_step() == Step(0, 0, 4)
        assert self.stored() == self._expected(1)

    def test_deliveries_are_told_apart_by_their_identity(self) -> None:
        with self._open() as sink:
            sink.write(Step(0, 0, 3), self._records(0))
        with self._open(identity=self._another) as anew:
            assert anew.last_step() is None
            anew.write(Step(0, 0, 9), self._records(1))
        with self._open() as sink:
            assert sink.last_step() == Step(0, 0, 3)
        assert self.stored() == self._expected(0, 1)
