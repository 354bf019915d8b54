"""What a target must keep to, as tests: derive a class from the contract, say how a target is made and read back, and run pytest."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

from millstream.errors import Fenced, TopologyError, Unreachable
from millstream.record import Record
from millstream.target import DeliveryContext, Sink, Step, Target
from millstream.testing.source_reading import eventually
from millstream.timestamp import SECOND, Timestamp

NOON = Timestamp(1_700_000_000_000_000)

Checked = TypeVar("Checked", bound=Callable[..., None])
_needs: dict[str, tuple[str, Callable[..., None]]] = {}


def _only_with(hook: str) -> Callable[[Checked], Checked]:
    """A test that a class has only if it says how to do this."""

    def mark(test: Checked) -> Checked:
        _needs[test.__name__] = (hook, test)
        return test

    return mark


class Stopped(BaseException):
    """The process ends here."""


class TornRecords(Sequence[Record[Any]]):
    """The records of a step in whose middle the process is stopped: after the first ones there are no others to be had."""

    def __init__(self, whole: Sequence[Record[Any]], there: int) -> None:
        self._whole, self._there = whole, there

    def __len__(self) -> int:
        return len(self._whole)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return TornRecords(self._whole[at], max(0, self._there - at.indices(len(self))[0]))
        if range(len(self))[at] >= self._there:
            raise Stopped
        return self._whole[at]


class TargetContract(ABC):
    """Made anew for each test, as pytest does with classes.

    class TestMyTarget(TargetContract):
        def make(self) -> ms.Target:
            return MyTarget(...)  # at a place of its own, the same for all calls in one test

        def stored(self) -> list[tuple[str, object]]:
            return [(row.key, row.value) for row in ...]  # what is there now, in order

    The rest is optional, and brings more tests: which value does not fit, how its system is cut off.
    """

    value_type: Any = int
    repeats: bool = True  # of a step that comes again, records may be there twice

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, (hook, test) in _needs.items():
            if getattr(cls, hook) is getattr(TargetContract, hook):
                setattr(cls, name, None)  # pytest passes over it
            elif getattr(cls, name) is None:  # a class above had no use for it
                setattr(cls, name, test)

    @abstractmethod
    def make(self) -> Target: ...

    @abstractmethod
    def stored(self) -> list[tuple[str, Any]]:
        """The key and value of each record that can be read there now, in the order in which they were written."""

    def value(self, n: int) -> Any:
        """The nth value, of `value_type`."""
        return n

    def bad_value(self) -> Any:
        """One that the system does not take, if there is such. Asked for just before it is written, as the second of two records."""
        raise NotImplementedError

    def cut_off(self) -> None:
        """The system cannot be reached from now on, if that can be."""
        raise NotImplementedError

    def reconnect(self) -> None:
        """It can again."""
        raise NotImplementedError

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

    # What breaks.

    def test_a_step_that_was_interrupted_comes_again_whole(self) -> None:
        """For the run has ended in its middle."""
        with self._open() as sink:
            sink.write(Step(0, 0, 3), self._records(0))
            error = _error_of(lambda: sink.write(Step(1, 3, 4), TornRecords(self._records(1, 2, 3, 4), 2)))
            assert error is not None, "write returned without having read all of its records; let pass what reading them raises"
        self._check_interrupted(0)
        with self._open(fence=2) as sink:
            sink.write(Step(1, 3, 4), self._records(1, 2, 3, 4))
            sink.write(Step(2, 4, 5), self._records(5))
        self._check_stored(0, 1, 2, 3, 4, 5)

    @_only_with("bad_value")
    def test_a_value_that_does_not_fit_ends_the_run_and_the_next_one_goes_on(self) -> None:
        """With code that makes another value."""
        with self._open() as sink:
            sink.write(Step(0, 0, 3), self._records(0))
            bad = Record("k2", self.bad_value(), NOON + 2 * SECOND, False, "numbers/1/", 2)
            error = _error_of(lambda: sink.write(Step(1, 3, 4), [*self._records(1), bad]))
            assert error is not None, "a value that does not fit was taken, or passed over in silence; raise an error that names the record"
            assert not isinstance(error, Unreachable | Fenced), (
                f"no system and no other run is to blame, but a record; {error!r} was raised"
            )
            assert str(error), "an error says which record does not fit, and why"
        self._check_interrupted(0)
        with self._open(fence=2) as sink:
            sink.write(Step(1, 3, 4), self._records(1, 2))
        self._check_stored(0, 1, 2)

    @_only_with("cut_off")
    def test_one_that_cannot_be_reached_is_waited_for(self) -> None:
        self.cut_off()
        with suppress(TopologyError, Unreachable):  # as it may say
            self.make().check(self._context(fence=0))

        def attempt() -> None:
            with self._open() as sink:
                sink.write(Step(0, 0, 3), self._records(0))

        self._is_unreachable(attempt)
        self.reconnect()
        self._deliver(Step(0, 0, 3), 0)
        self._deliver(Step(1, 3, 4), 1)
        self._check_stored(0, 1)

    @_only_with("cut_off")
    def test_a_break_between_two_steps_loses_nothing(self) -> None:
        with self._open() as sink:
            sink.write(Step(0, 0, 3), self._records(0))
            self.cut_off()
            self._is_unreachable(lambda: sink.write(Step(1, 3, 4), self._records(1, 2)))
        self.reconnect()
        self._deliver(Step(1, 3, 4), 1, 2)
        self._deliver(Step(2, 4, 5), 3)
        self._check_stored(0, 1, 2, 3)

    # Around them.

    def _check_interrupted(self, *numbers: int) -> None:
        """What is there of a step that did not end: without transactions that may be anything."""
        return

    def _is_unreachable(self, attempt: Callable[[], None]) -> None:
        error = _error_of(attempt)
        assert error is not None, "it cannot be reached, and the step was taken; raise ms.Unreachable, or the step is lost"
        assert isinstance(error, Unreachable), (
            f"raise ms.Unreachable where the system does not answer, or the run ends; {error!r} was raised"
        )
        assert str(error), "say why it cannot be reached"

    def _has(self, sink: Sink, step: Step) -> bool:
        return False

    def _deliver(self, step: Step, *numbers: int) -> None:
        """As a delivery does: it is opened anew until it answers, and asked whether the step went in."""

        def attempt() -> bool:
            with self._open() as sink:
                if not self._has(sink, step):
                    sink.write(step, self._records(*numbers))
            return True

        assert eventually(attempt), f"{step} must be taken as soon as the system can be reached, by a sink that is opened then"

    def _check_stored(self, *numbers: int) -> None:
        stored, found = self.stored(), list[tuple[str, Any]]()
        for each in stored:
            if not self.repeats or each not in found:
                found.append(each)
        assert found == self._expected(*numbers), (
            f"each record must be there{'' if self.repeats else ' once'}, in order, and nothing else; "
            f"that is {self._expected(*numbers)}, and there is {stored}"
        )

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
        sink = self.make().open(self._context(fence=fence, identity=identity))
        try:
            yield sink
        finally:
            with suppress(Unreachable):  # it is gone already
                sink.close()

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


def _error_of(attempt: Callable[[], None]) -> BaseException | None:
    try:
        attempt()
    except (Stopped, Exception) as error:
        return error
    return None


class TransactionalTargetContract(TargetContract):
    """What a target with `transactional = True` keeps to besides."""

    repeats = False

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

    def _check_interrupted(self, *numbers: int) -> None:
        with self._open() as sink:
            last = sink.last_step()
            assert last == Step(0, 0, 3), (
                f"a step that did not end must leave nothing; last_step() must be the one before it, and is {last}"
            )
        stored = self.stored()
        assert stored == self._expected(*numbers), f"a step that did not end must leave nothing; there is {stored}"

    def _has(self, sink: Sink, step: Step) -> bool:
        return sink.last_step() == step
