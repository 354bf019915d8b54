"""The machine of a delivery: what it does at each event, without threads and files."""

from __future__ import annotations

import pytest

from millstream.core.parts import Columns
from millstream.target import Step
from millstream.targets.delivery import (
    QUIET_EPOCHS,
    CallTarget,
    Content,
    DeliveryMachine,
    ReadHistory,
    ReadParts,
    ReadTail,
    Say,
    Skip,
    State,
)
from millstream.targets.lacking import Epoch, Place, Tail
from tests.targets.fakes import part


def places(number: int, *counts: int) -> list[Place]:
    dealt = [part(range(count), at=[0] * count, major=number, minors=range(count)) for count in counts]
    return [(f"s{number}", each.placed(n, 0, 0)) for n, each in enumerate(dealt)]


def content(count: int = 1) -> list[Content]:
    return [Content("numbers", 1, Columns(["k"] * count, [b"1"] * count, [], range(count)))]


def machine(position: int = 0, *, open: Step | None = None, newest: int | None = None, **bounds: int) -> DeliveryMachine:
    return DeliveryMachine(position=position, open=open, newest=position if newest is None else newest, **bounds)


def test_a_commit_is_read_called_and_said() -> None:
    made = machine()
    assert made.on_start() == []
    assert made.on_commit(1, places(1, 2)) == [ReadParts(places(1, 2))]
    read = content(2)
    assert made.on_read(read) == [CallTarget(0, 1, None, read)]
    assert made.on_done() == [Say(1)]
    assert made.has(1)


def test_how_far_it_is_is_said_at_a_start() -> None:
    """A run that was killed had perhaps not said it, or no commit had recorded it: it would show as behind until something comes."""
    assert machine(5).on_start() == [Say(5)]


def test_it_is_said_at_once_that_the_log_had_nothing() -> None:
    made = machine(newest=9)
    assert made.on_start() == [ReadTail(0)]
    assert made.on_tail(Tail(9, 9)) == [ReadHistory(0, 9, 1_000_000)]
    assert made.on_read([], upto=9) == [Skip(9)]
    assert made.on_commit(10, []) == []


def test_what_comes_meanwhile_is_one_step() -> None:
    made = machine()
    made.on_commit(1, places(1, 1))
    for number in (2, 3, 4):
        assert made.on_commit(number, places(number, 1)) == []
    made.on_read(content())
    assert made.on_done() == [Say(1), ReadParts([*places(2, 1), *places(3, 1), *places(4, 1)])]
    assert made.on_read(content(3))[0] == CallTarget(1, 4, None, content(3))


def test_a_step_has_whole_epochs_up_to_its_bound() -> None:
    made = machine(max_records=10)
    made.on_commit(1, places(1, 25))  # larger than a step may be, and yet whole
    for number, count in ((2, 6), (3, 4), (4, 1), (5, 0)):
        made.on_commit(number, places(number, count) if count else [])
    spans = []
    for _ in range(3):
        (call,) = made.on_read(content())
        assert isinstance(call, CallTarget)
        spans.append((call.a, call.b))
        made.on_done()
    assert spans == [(0, 1), (1, 3), (3, 5)]


def test_an_epoch_of_a_million_records_is_one_step() -> None:
    made = machine()
    made.on_commit(1, places(1, *[65_536] * 16))  # 1,048,576
    made.on_commit(2, places(2, 1))
    assert made.on_read(content())[0] == CallTarget(0, 1, None, content())


def test_empty_epochs_move_the_position_and_are_recorded_once_in_a_while() -> None:
    made = machine()
    for number in range(1, QUIET_EPOCHS + 1):
        assert made.on_commit(number, []) == []
        assert made.has(number)
    assert made.on_commit(QUIET_EPOCHS + 1, []) == [Skip(QUIET_EPOCHS + 1)]
    assert made.on_commit(QUIET_EPOCHS + 2, []) == []
    assert made.on_stop() == [Skip(QUIET_EPOCHS + 2)]
    assert made.on_stop() == []
    made.on_commit(QUIET_EPOCHS + 3, places(QUIET_EPOCHS + 3, 1))
    assert made.on_read(content()) == [CallTarget(QUIET_EPOCHS + 2, QUIET_EPOCHS + 3, None, content())]


def test_history_comes_before_the_journal() -> None:
    made = machine(newest=9, max_records=10)
    assert made.on_start() == [ReadTail(0)]
    assert made.on_tail(Tail(7, 9, [Epoch(8, places(8, 1))])) == [ReadHistory(0, 7, 10)]
    assert made.on_read(content(), upto=4) == [CallTarget(0, 4, None, content())]
    assert made.on_done() == [Say(4), ReadHistory(4, 7, 10)]
    assert made.on_read([], upto=7) == [Skip(7), ReadParts(places(8, 1))]  # nothing of this stream: no step
    assert made.on_read(content()) == [CallTarget(7, 9, None, content())]


@pytest.mark.parametrize("logged", range(8))
def test_an_open_step_is_repeated_exactly_wherever_it_lies(logged: int) -> None:
    step = Step(5, 2, 5)
    made = machine(1, open=step, newest=7)
    assert made.on_start() == [Say(1), ReadTail(2)]
    epochs = [Epoch(number, places(number, 1)) for number in range(max(2, logged) + 1, 8)]
    actions = made.on_tail(Tail(logged, 7, epochs))
    seen = []
    while not isinstance(actions[0], CallTarget):
        seen += actions
        actions = made.on_read(content())
    assert actions[0].open is step
    history = [(read.after, read.upto, read.at_most) for read in seen if isinstance(read, ReadHistory)]
    assert history == ([(2, min(5, logged), None)] if logged > 2 else [])
    parts = [segment for read in seen if isinstance(read, ReadParts) for segment, _ in read.places]
    assert parts == [f"s{number}" for number in range(max(2, logged) + 1, 6)]
    after = made.on_done()
    assert after[0] == Say(5)
    assert after[1] == (ReadHistory(5, logged, 1_000_000) if logged > 5 else ReadParts([*places(6, 1), *places(7, 1)]))


def test_what_the_log_leaves_out_comes_from_the_journal_before_what_it_has_again() -> None:
    """Of a stream that was not kept up to epoch 5, and is since."""
    made = machine(3, newest=9)
    assert made.on_start() == [Say(3), ReadTail(3)]
    assert made.on_tail(Tail(3, 5, [Epoch(4, places(4, 1))])) == [ReadParts(places(4, 1))]
    assert made.on_read(content()) == [CallTarget(3, 5, None, content())]
    assert made.on_done() == [Say(5), ReadTail(5)]
    assert made.on_tail(Tail(8, 9, [Epoch(9, places(9, 1))])) == [ReadHistory(5, 8, 1_000_000)]
    assert made.on_read(content(), upto=8) == [CallTarget(5, 8, None, content())]
    assert made.on_done() == [Say(8), ReadParts(places(9, 1))]


def test_an_open_step_is_repeated_though_it_lies_in_the_journal_in_the_log_and_in_the_journal() -> None:
    step = Step(1, 3, 9)
    made = machine(3, open=step, newest=10)
    made.on_start()
    assert made.on_tail(Tail(3, 5, [Epoch(4, places(4, 1)), Epoch(5, places(5, 1))])) == [ReadTail(5)]
    actions = made.on_tail(Tail(8, 10, [Epoch(9, places(9, 1)), Epoch(10, places(10, 1))]))
    reads = []
    while not isinstance(actions[0], CallTarget):
        reads += actions
        actions = made.on_read(content())
    assert reads == [ReadParts([*places(4, 1), *places(5, 1)]), ReadHistory(5, 8), ReadParts(places(9, 1))]
    assert actions == [CallTarget(3, 9, step, content() * 3)]
    assert made.on_done() == [Say(9), ReadParts(places(10, 1))]


def test_an_open_step_that_is_told_of_in_two_answers_is_not_looked_for_in_the_log() -> None:
    """A slow target may have a step of many epochs. The second answer begins after the first, and not with the log."""
    made = machine(2, open=Step(0, 2, 7), newest=7)
    assert made.on_start() == [Say(2), ReadTail(2)]
    assert made.on_tail(Tail(2, 4, [Epoch(3, places(3, 1)), Epoch(4, places(4, 1))])) == [ReadTail(4)]
    assert made.on_tail(Tail(4, 7, [Epoch(6, places(6, 1))])) == [ReadParts([*places(3, 1), *places(4, 1), *places(6, 1)])]


def test_it_is_not_at_an_epoch_before_its_open_step_is_done() -> None:
    made = machine(5, open=Step(0, 5, 6), newest=6)
    assert not made.has(5)


def test_what_is_not_remembered_is_asked_for_again() -> None:
    made = machine(max_places=2)
    made.on_commit(1, places(1, 1))
    for number in range(2, 100):
        assert made.on_commit(number, places(number, 1)) == []
    assert made._lacking.places == 2
    made.on_read(content())
    made.on_done()
    made.on_read(content(2))
    assert made.on_done() == [Say(3), ReadTail(3)]
    assert made.on_commit(100, places(100, 1)) == []  # while it asks
    epochs = [Epoch(number, places(number, 1)) for number in range(51, 100)]
    assert made.on_tail(Tail(50, 99, epochs)) == [ReadHistory(3, 50, 1_000_000)]
    made.on_read(content(), upto=50)
    assert made.on_done()[1] == ReadParts([place for epoch in epochs for place in epoch.places])
    made.on_read(content())
    assert made.on_done() == [Say(99), ReadTail(99)]


def test_a_missing_commit_is_asked_for() -> None:
    made = machine(3)
    assert made.on_commit(5, places(5, 1)) == [ReadTail(3)]


@pytest.mark.parametrize("end", ["failed", "overtaken"])
@pytest.mark.parametrize("state", [State.WAITING, State.ASKING, State.READING, State.CALLING])
def test_nothing_is_done_after_the_end(end: str, state: State) -> None:
    made = machine(newest=1 if state is State.ASKING else 0)
    made.on_start()
    if state in (State.READING, State.CALLING):
        made.on_commit(1, places(1, 1))
    if state is State.CALLING:
        made.on_read(content())
    assert made.state is state
    assert (made.on_failed(ValueError()) if end == "failed" else made.on_overtaken()) == []
    assert made.on_commit(2, places(2, 1)) == []
    assert made.on_stop() == []
    assert not made.has(1)
