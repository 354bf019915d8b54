"""The rows of a bucket against a plain dictionary, and what it costs to reach one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core import apart, minima, pages
from millstream.core.apart import length_of
from millstream.core.pages import Pages
from millstream.core.row import HeldRow, Minima, least, minima_of, state_of, timers_of
from millstream.mill.held import Held
from millstream.timestamp import END_OF_TIME, START_OF_TIME
from tests.core.shelf import Shelf, row, timer

Model = dict[str, HeldRow]


@contextmanager
def small() -> Iterator[None]:
    """Pages of two rows, chunks of three pages: a few keys are enough to split, merge and begin new chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "ROWS_PER_PAGE", 2)
        patch.setattr(pages, "ROWS_TO_MERGE", 1)
        patch.setattr(minima, "PAGES_PER_CHUNK", 3)
        patch.setattr(apart, "LARGE", 40)
        yield


def opened(shelf: Shelf) -> tuple[Held, Pages]:
    """The rows of computation "it" in bucket 0, from the store."""
    held = Held(shelf, memory=None)
    return held, held.rows(0, "it")


def flush(held: Held) -> None:
    held.settle()
    held.checkpoint(b"")


def content(of: HeldRow | None) -> tuple[object, ...] | None:
    return None if of is None else (state_of(of), timers_of(of), minima_of(of))


def replace(pages: Pages, model: Model, key: str, new: HeldRow | None) -> None:
    pages.put(key, pages.get(key), new)
    if new is None:
        model.pop(key, None)
    else:
        model[key] = new


def check(shelf: Shelf, model: Model, *, absent: tuple[str, ...] = ()) -> None:
    """What lies in the store is the model, all of it, and nothing beside it."""
    _, it = opened(shelf)
    for key, expected in model.items():
        assert content(it.get(key)) == content(expected), key
    assert all(it.get(key) is None for key in absent)
    report = it.report()
    assert (report.rows, report.timers) == (len(model), sum(len(timers_of(each)) for each in model.values()))
    assert report.minima == least([minima_of(each) for each in model.values()])
    large = {f"0/it/r/{key}" for key, each in model.items() if length_of(each) > apart.LARGE}
    numbers = {f"0/it/p{number}" for number in range(it.count)}
    assert shelf.kept.keys() - {"identity", "0/it/d"} <= large | numbers
    assert large <= shelf.kept.keys()


def check_due(shelf: Shelf, model: Model, low_watermark: int, now: int) -> None:
    found = opened(shelf)[1].due(low_watermark, now)
    assert found == sorted(key for key, each in model.items() if minima_of(each).due(low_watermark, now))


# Any history.

KEYS = [f"key {number}" for number in range(30)] + ["", "ключ", "鍵", "🗝", "a/b", "p0", "directories", "\x00"]
TIMES = st.integers(0, 9)
TIMERS = st.lists(st.builds(timer, st.sampled_from("abc"), TIMES, wall=st.booleans(), hold=st.none() | TIMES), max_size=3)
STATES = st.sampled_from([b"", b"s", b"small", b"l" * 41, b"l" * 200])
CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.builds(lambda s, t: row(s, *t), STATES, TIMERS)), max_size=25)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CHANGES, TIMES, TIMES), max_size=6))
def test_rows_are_as_in_a_dictionary_whatever_happens(epochs: list[tuple[list[tuple[str, HeldRow | None]], int, int]]) -> None:
    with small():
        shelf, model = Shelf(), {}
        for changes, low_watermark, now in epochs:
            held, pages = opened(shelf)
            for key, new in changes:
                replace(pages, model, key, new)
            flush(held)
            check(shelf, model, absent=tuple(key for key in KEYS if key not in model))
            check_due(shelf, model, low_watermark, now)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 150), st.integers(0, 150), st.integers(0, 99))
def test_rows_survive_growth_over_many_chunks_and_back(most: int, least_: int, now: int) -> None:
    with small():
        shelf, model = Shelf(), {}
        sizes = []
        for target in (most, least_, most):
            held, pages = opened(shelf)
            for number in range(max(most, least_)):
                key = f"key {number}"
                wanted = number < target
                if wanted != (key in model):
                    replace(pages, model, key, row(b"s", timer("t", number % 100, wall=number % 2 == 0)) if wanted else None)
            flush(held)
            sizes.append(pages.count)
            check(shelf, model)
            check_due(shelf, model, START_OF_TIME, now)
        assert sizes[0] <= max(1, most)
        assert sizes[0] >= -(-most // 2)


def test_one_page_after_the_other_grows_and_shrinks_with_the_rows() -> None:
    shelf, model = Shelf(), {}
    sizes = []
    for rows in (0, 32, 33, 64, 65, 3_000, 3_000, 300, 8, 7, 0):
        held, pages = opened(shelf)
        for key in sorted(set(model) - {str(number) for number in range(rows)}):
            replace(pages, model, key, None)
        for number in range(len(model), rows):
            replace(pages, model, str(number), row(b"s", timer("t", number)))
        flush(held)
        sizes.append(pages.count)
        check(shelf, model, absent=(str(rows), "never"))
        check_due(shelf, model, rows // 2, START_OF_TIME)
    assert sizes == [1, 1, 2, 2, 3, 94, 94, 37, 1, 1, 1]


def test_a_bucket_that_grew_to_thousands_and_emptied_keeps_nothing() -> None:
    shelf = Shelf()
    for wanted in (True, False):
        held, it = opened(shelf)
        for number in range(5_000):
            it.put(str(number), it.get(str(number)), row(b"s" * 10) if wanted else None)
        flush(held)
    assert set(shelf.kept) == {"identity"}


def test_computations_and_buckets_do_not_see_each_others_rows() -> None:
    shelf = Shelf()
    held = Held(shelf, memory=None)
    for bucket, name, new in ((0, "one", row(b"1", timer("t", 5))), (0, "other", row(b"2")), (1, "one", row(b"3"))):
        it = held.rows(bucket, name)
        it.put("k", it.get("k"), new)
    flush(held)
    again = Held(shelf, memory=None)
    assert [(again.rows(*place).report().rows, again.rows(*place).report().timers) for place in ((0, "one"), (0, "other"), (1, "one"))] == [
        (1, 1),
        (1, 0),
        (1, 0),
    ]
    assert [state_of(again.rows(*place).get("k")) for place in ((0, "one"), (0, "other"), (1, "one"), (1, "other"))] == [
        b"1",
        b"2",
        b"3",
        None,
    ]
    assert again.rows(0, "other").due(9, 9) == []


def test_what_is_put_shows_at_once_and_is_not_stored() -> None:
    shelf = Shelf()
    held, it = opened(shelf)
    it.put("k", it.get("k"), row(b"s"))
    assert it.get("k") == row(b"s")
    held.settle()
    assert it.get("k") == row(b"s")
    assert shelf.kept == {}


def test_nothing_put_for_nothing_is_no_change() -> None:
    shelf = Shelf()
    held, it = opened(shelf)
    it.put("k", it.get("k"), None)
    assert held.settle().changed == {}
    assert held.checkpoint(b"") == 0
    assert set(shelf.kept) == {"identity"}


# Minima.


def test_minima_come_back_when_the_earliest_is_gone() -> None:
    shelf, model = Shelf(), {}
    for number, (new, expected) in enumerate(
        [
            (row(b"", timer("a", 5, hold=4), timer("b", 7, wall=True, hold=3)), Minima(5, 7, 3)),
            (row(b"", timer("a", 6, hold=6)), Minima(6, END_OF_TIME, 6)),
            (row(b"", timer("b", 7, wall=True)), Minima(END_OF_TIME, 7, END_OF_TIME)),
            (row(b"s"), Minima()),
            (None, Minima()),
        ]
    ):
        held, it = opened(shelf)
        replace(it, model, "k", new)
        flush(held)
        assert it.report().minima == opened(shelf)[1].report().minima == expected, number


@pytest.mark.parametrize(
    ("low_watermark", "now", "expected"),
    [(4, 9, []), (5, 9, ["lw"]), (4, 10, ["wall"]), (9, 99, ["lw", "wall"]), (END_OF_TIME, 9, ["lw"])],
)
def test_due_keys_are_those_whose_own_clock_has_come(low_watermark: int, now: int, expected: list[str]) -> None:
    shelf, model = Shelf(), {}
    held, it = opened(shelf)
    replace(it, model, "wall", row(b"", timer("t", 10, wall=True, hold=1)))
    replace(it, model, "lw", row(b"", timer("t", 5, hold=1)))
    replace(it, model, "neither", row(b"", timer("t", END_OF_TIME)))
    flush(held)
    assert opened(shelf)[1].due(low_watermark, now) == expected


# Large rows.

LARGE = b"l" * (apart.LARGE + 1)


def test_a_row_as_large_as_the_bound_lives_on_its_page_a_larger_one_apart() -> None:
    for state, alone in ((LARGE[1:], False), (LARGE, True)):
        shelf, model = Shelf(), {}
        held, it = opened(shelf)
        replace(it, model, "k", row(state))
        flush(held)
        assert ("0/it/r/k" in shelf.kept) is alone
        assert (len(shelf.kept["0/it/p0"]) < 1_000) is alone
        check(shelf, model)


def test_timers_count_for_the_size_of_a_row() -> None:
    shelf, model = Shelf(), {}
    held, it = opened(shelf)
    replace(it, model, "k", row(None, *(timer(f"tag {number}", number) for number in range(2_000))))
    flush(held)
    assert "0/it/r/k" in shelf.kept
    check(shelf, model)
    check_due(shelf, model, 0, START_OF_TIME)


def test_a_large_row_moves_out_and_in_again() -> None:
    shelf, model = Shelf(), {}
    for state in (b"small", LARGE, LARGE + b"!", b"small again", LARGE, None):
        held, it = opened(shelf)
        replace(it, model, "k", None if state is None else row(state, timer("t", 5)))
        flush(held)
        check(shelf, model)
    assert "0/it/r/k" not in shelf.kept


def test_a_large_row_is_not_read_or_written_with_its_neighbours() -> None:
    shelf, model = Shelf(), {}
    held, it = opened(shelf)
    replace(it, model, "large", row(LARGE))
    replace(it, model, "small", row(b"s"))
    flush(held)
    before = shelf.kept["0/it/r/large"]
    shelf.trips()
    held, it = opened(shelf)
    replace(it, model, "small", row(b"t"))
    held.settle()
    assert held.write_back() == 1
    assert shelf.trips() == (2, 1, 0)
    assert shelf.kept["0/it/r/large"] is before
    check(shelf, model)


def test_the_neighbours_of_a_large_row_are_not_written_with_it() -> None:
    shelf, model = Shelf(), {}
    held, it = opened(shelf)
    replace(it, model, "large", row(LARGE))
    replace(it, model, "small", row(b"s"))
    flush(held)
    page = shelf.kept["0/it/p0"]
    replace(held.rows(0, "it"), model, "large", row(LARGE + b"!"))
    flush(held)
    assert shelf.kept["0/it/p0"] is page
    check(shelf, model)


def test_a_large_row_that_is_lost_is_an_error() -> None:
    shelf = Shelf()
    held, it = opened(shelf)
    it.put("k", it.get("k"), row(LARGE))
    flush(held)
    shelf.remove("0/it/r/k")
    with pytest.raises(LookupError, match=r"^the row 0/it/r/k is missing from the state$"):
        opened(shelf)[1].get("k")
