"""What a computation has only while it processes, and what it may not do with itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from tests.core.alone import Alone, Event


class Lent(ms.Computation[int]):
    """Calls a function with itself while it processes."""

    out: ms.Output[int]

    def __init__(self, call: Callable[[Lent], Any] = lambda it: None) -> None:
        self.call = call
        self.limit = 3

    def process_record(self, record: ms.Record[Event]) -> None:
        self.call(self)

    def process_timer(self, timer: ms.Timer) -> None:
        self.call(self)


def test_key_now_and_low_watermark_are_those_of_the_epoch() -> None:
    seen: list[tuple[str, int, int]] = []
    it = Alone(Lent(lambda it: seen.append((it.key, it.now, it.low_watermark))), now=7)
    it.send(Event("a"))
    it.advance(5, now=9)
    it.send(Event("b", 5))
    assert seen == [("a", 7, ms.START_OF_TIME), ("b", 9, 5)]


def test_the_wall_clock_never_goes_back() -> None:
    seen: list[int] = []
    it = Alone(Lent(lambda it: seen.append(it.now)), now=7)
    it.advance(now=3)
    it.send(Event())
    assert seen == [7]


# Outside of processing.

USES: dict[str, Callable[[Lent], object]] = {
    "key": lambda it: it.key,
    "now": lambda it: it.now,
    "low_watermark": lambda it: it.low_watermark,
    "state": lambda it: it.state,
    "set_timer": lambda it: it.set_timer("a", at=ms.Timestamp(1)),
    "cancel_timer": lambda it: it.cancel_timer("a"),
    "out.produce": lambda it: it.out.produce(1, timestamp=ms.Timestamp(1)),
}


@pytest.mark.parametrize("name", USES)
def test_use_outside_of_processing_is_an_error(name: str) -> None:
    with pytest.raises(ms.TopologyError, match=rf"^{name} is there only inside process_record and process_timer"):
        USES[name](Lent())


def set_state(it: Lent) -> None:
    it.state = 1


def delete_state(it: Lent) -> None:
    del it.state


@pytest.mark.parametrize("change", [set_state, delete_state])
def test_state_cannot_be_changed_outside_of_processing(change: Callable[[Lent], None]) -> None:
    with pytest.raises(ms.TopologyError, match=r"^state is there only inside process_record and process_timer of Lent$"):
        change(Lent())


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("fails", [False, True], ids=["after an epoch", "after a failure"])
def test_what_was_lent_is_taken_back(name: str, fails: bool) -> None:
    def call(it: Lent) -> None:
        USES[name](it)
        if fails:
            raise ValueError

    computation = Lent(call)
    it = Alone(computation)
    if fails:
        with pytest.raises(ms.RecordError):
            it.send(Event())
    else:
        it.send(Event())
    with pytest.raises(ms.TopologyError, match=f"^{name} is there only inside"):
        USES[name](computation)
    assert computation.limit == 3


# Attributes.


@pytest.mark.parametrize("name", ["limit", "new", "key", "now", "low_watermark", "out"])
@pytest.mark.parametrize("in_timer", [False, True])
def test_an_attribute_set_while_processing_is_an_error(name: str, in_timer: bool) -> None:
    def call(it: Lent) -> None:
        if in_timer and not it.state:
            it.state = 1
            it.set_timer("now", at=it.low_watermark)
        else:
            setattr(it, name, 5)

    with pytest.raises(ms.RecordError, match=f"self.{name} would be lost after this record; keep it in self.state"):
        Alone(Lent(call)).send(Event())


def test_attributes_of_a_computation_can_be_set_and_deleted_before_it_runs() -> None:
    it = Lent()
    it.limit = 4
    assert it.limit == 4
    del it.limit
    assert not hasattr(it, "limit")


@pytest.mark.parametrize("name", ["key", "now", "low_watermark"])
def test_what_the_engine_lends_cannot_be_assigned(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^{name} belongs to the engine; it cannot be assigned$"):
        setattr(Lent(), name, 5)


def test_an_output_cannot_be_assigned() -> None:
    with pytest.raises(AttributeError, match=r"^out is an output; produce to it, do not assign it$"):
        Lent().out = 5  # type: ignore[assignment]
