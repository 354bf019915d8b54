"""Rows in the order of their times, against a plain dictionary: any history of epochs, checkpoints, crashes and too little memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core import apart, minima, pages
from millstream.core.row import END, Changes, Minima, Row, least, minima_of
from millstream.core.timeline import FIRST, Timeline, where
from millstream.mill.held import COUNTED, Held
from millstream.timestamp import END_OF_TIME, Timestamp
from tests.core.shelf import Shelf

Model = dict[str, Row]


@contextmanager
def small(rows: int = 3) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "ROWS_PER_PAGE", rows)
        patch.setattr(minima, "PAGES_PER_CHUNK", 3)
        patch.setattr(apart, "LARGE", 40)
        yield


def made(time: int, large: bool = False) -> Row:
    return Row(b"x" * (50 if large else 5), None, 0, time + 1, END, time)


def check(timeline: Timeline, model: Model) -> None:
    """All of it is there, found by its address and by its time; and pages lie side by side."""
    for address, row in model.items():
        assert timeline.get(address) == row
    report = timeline.report()
    assert (report.rows, report.timers) == (len(model), 0)
    assert report.minima == (least([minima_of(row) for row in model.values()]) if model else Minima())
    for low_watermark in (0, 5, END):
        due = sorted((row.low, address) for address, row in model.items() if row.low <= low_watermark)
        assert timeline.earliest(Timestamp(low_watermark), 10_000) == due
        assert timeline.earliest(Timestamp(low_watermark), 4) == due[:4]
        assert timeline.due_at_most(Timestamp(low_watermark)) >= len(due)
    bounds = timeline._bounds
    assert bounds[0][:2] == FIRST
    assert all(one[:2] < other[:2] for one, other in pairwise(bounds))
    assert sorted([*(number for _, _, number in bounds), *timeline._free]) == list(range(timeline.count))
    for position, (_, _, number) in enumerate(bounds):
        for address in timeline.decoded.get(number, {}):
            assert timeline._find(where(address)) == position


STEPS = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(st.integers(-3, 9), st.integers(0, 5), st.booleans()), min_size=1, max_size=12)),
    st.tuples(st.just("take"), st.integers(-3, 12)),
    st.tuples(st.just("remove"), st.integers(0, 1_000)),
    st.sampled_from([("settle", 0), ("checkpoint", 0), ("crash", 0), ("write back", 2)]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=30), st.sampled_from([1, 3, 32]), st.sampled_from([None, 1, 3_000]))
def test_any_history_against_a_dictionary(steps: list[tuple[str, object]], rows: int, memory: int | None) -> None:
    with small(rows):
        shelf, model, committed = Shelf(), dict[str, Row](), dict[str, Row]()
        held, changes = Held(shelf, memory=memory), list[Changes]()
        kept = dict(shelf.kept)
        for step in [*steps, ("settle", 0), ("checkpoint", 0), ("crash", 0)]:
            timeline = held.waiting(0, "it")
            match step:
                case ("put", list(of)):
                    for time, number, large in of:
                        address = f"{time}/events/0/{number}"
                        model[address] = made(time, large)
                        timeline.put(address, timeline.get(address), model[address])
                case ("take", int(low_watermark)):
                    taken = timeline.take(Timestamp(low_watermark))
                    assert dict(taken) == {address: row for address, row in model.items() if row.low <= low_watermark}
                    assert len(dict(taken)) == len(taken)
                    for address, _ in taken:
                        del model[address]
                case ("remove", int(number)) if model:
                    address = sorted(model)[number % len(model)]
                    timeline.put(address, timeline.get(address), None)
                    del model[address]
                case ("settle", _):
                    changes.append(held.settle())
                    committed = dict(model)
                    check(held.waiting(0, "it"), model)
                case ("write back", int(most)):
                    changes.append(held.settle())
                    committed = dict(model)
                    held.write_back(most)
                case ("checkpoint", _):
                    held.settle()
                    held.checkpoint(b"")
                    changes, committed, kept = [], dict(model), dict(shelf.kept)
                    there = {f"0/it/waiting/p{number}" for _, _, number in held.waiting(0, "it")._bounds}
                    assert {name for name in kept if name.startswith("0/it/waiting/p")} <= there
                case ("crash", _):
                    shelf.kept = dict(kept)  # Spark gives back what it had at the last checkpoint
                    held.forget()
                    held.redo(changes)
                    model = dict(committed)
                    check(held.waiting(0, "it"), model)
        if not model:
            assert list(shelf.kept) == ["identity"]


@pytest.mark.parametrize("memory", [None, 30_000])
def test_what_is_due_goes_as_whole_pages_and_the_rest_stays_where_it_is(memory: int | None) -> None:
    shelf = Shelf()
    held = Held(shelf, memory=None if memory is None else int(memory / COUNTED))
    timeline = held.waiting(0, "it")
    for number in range(3_000):
        time = number * 7_919 % 3_000
        address = f"{time}/events/0/{number}"
        timeline.put(address, timeline.get(address), made(time))
    held.settle()
    held.checkpoint(b"")
    assert memory is None or held.resident <= memory
    shelf.trips()
    timeline = held.waiting(0, "it")
    assert len(timeline.take(Timestamp(300))) == 300
    held.settle()
    assert shelf.gets <= 300 // (pages.ROWS_PER_PAGE // 2) + 1
    assert timeline.rows == 2_700
    held.checkpoint(b"")
    assert shelf.puts <= 4  # a page that is half due, the directory, where pages begin, the identity


def test_an_empty_timeline_leaves_nothing_in_memory_or_in_the_store() -> None:
    held = Held(Shelf(), memory=None)
    held.waiting(0, "it")
    empty = held.resident
    for _ in range(2):
        timeline = held.waiting(0, "it")
        for number in range(500):
            address = f"{number}/e/0/{number}"
            timeline.put(address, timeline.get(address), made(number))
        timeline.take(END_OF_TIME)
        held.settle()
        assert (timeline.rows, timeline.count) == (0, 1)
        assert held.resident == empty
