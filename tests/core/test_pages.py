"""The rows of a bucket against a plain dictionary, and what it costs to reach one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core import pages as module
from millstream.core.pages import Bucket, Pages
from millstream.core.row import Minima, Row, least, timers_of
from millstream.timestamp import END_OF_TIME, START_OF_TIME
from tests.core.shelf import Shelf, row, timer

Model = dict[str, Row]


@contextmanager
def small() -> Iterator[None]:
    """Pages of two rows, chunks of three pages: a few keys are enough to split, merge and begin new chunks."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ROWS_A_PAGE": 2, "ROWS_TO_MERGE": 1, "PAGES_A_CHUNK": 3, "LARGE": 40}.items():
            patch.setattr(module, name, value)
        yield


def content(of: Row | None) -> tuple[object, ...] | None:
    return None if of is None else (of.state, timers_of(of), of.count, of.minima)


def replace(pages: Pages, model: Model, key: str, new: Row | None) -> None:
    pages.put(key, pages.get(key), new)
    if new is None:
        model.pop(key, None)
    else:
        model[key] = Row(new.state, new.timers, new.count, new.minima)


def check(shelf: Shelf, model: Model, *, absent: tuple[str, ...] = ()) -> None:
    """What lies in the store is the model, all of it, and nothing beside it."""
    bucket = Bucket(shelf)
    pages = bucket.pages("it")
    for key, expected in model.items():
        assert content(pages.get(key)) == content(expected), key
    assert all(pages.get(key) is None for key in absent)
    directory = bucket.flush()["it"]
    assert (directory.rows, directory.timers) == (len(model), sum(each.count for each in model.values()))
    assert directory.minima() == least([each.minima for each in model.values()])
    large = {f"it/r/{key}" for key, each in model.items() if each.size() > module.LARGE}
    numbers = {f"it/p{number}" for number in range(directory.pages)}
    chunks = {f"it/c{number}" for number in range(-(-directory.pages // module.PAGES_A_CHUNK))}
    assert shelf.kept.keys() - {"directories"} <= large | numbers | chunks
    assert large <= shelf.kept.keys()


def check_due(shelf: Shelf, model: Model, low_watermark: int, now: int) -> None:
    found = Bucket(shelf).pages("it").due(low_watermark, now)
    assert len(found) == len(set(found))
    assert set(found) == {key for key, each in model.items() if each.minima.due(low_watermark, now)}


# Any history.

KEYS = [f"key {number}" for number in range(30)] + ["", "ключ", "鍵", "🗝", "a/b", "p0", "directories", "\x00"]
TIMES = st.integers(0, 9)
TIMERS = st.lists(st.builds(timer, st.sampled_from("abc"), TIMES, wall=st.booleans(), hold=st.none() | TIMES), max_size=3)
STATES = st.sampled_from([b"", b"s", b"small", b"l" * 41, b"l" * 200])
CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.builds(lambda s, t: row(s, *t), STATES, TIMERS)), max_size=25)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CHANGES, TIMES, TIMES), max_size=6))
def test_rows_are_as_in_a_dictionary_whatever_happens(epochs: list[tuple[list[tuple[str, Row | None]], int, int]]) -> None:
    with small():
        shelf, model = Shelf(), {}
        for changes, low_watermark, now in epochs:
            bucket = Bucket(shelf)
            pages = bucket.pages("it")
            for key, new in changes:
                replace(pages, model, key, None if new is None else Row(new.state, new.timers, new.count, new.minima))
            bucket.flush()
            check(shelf, model, absent=tuple(key for key in KEYS if key not in model))
            check_due(shelf, model, low_watermark, now)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 150), st.integers(0, 150), st.integers(0, 99))
def test_rows_survive_growth_over_many_chunks_and_back(most: int, least_: int, now: int) -> None:
    with small():
        shelf, model = Shelf(), {}
        sizes = []
        for target in (most, least_, most):
            bucket = Bucket(shelf)
            pages = bucket.pages("it")
            for number in range(max(most, least_)):
                key = f"key {number}"
                wanted = number < target
                if wanted != (key in model):
                    replace(pages, model, key, row(b"s", timer("t", number % 100, wall=number % 2 == 0)) if wanted else None)
            sizes.append(bucket.flush()["it"].pages)
            check(shelf, model)
            check_due(shelf, model, START_OF_TIME, now)
        assert sizes[0] <= max(1, most)
        assert sizes[0] >= -(-most // 2)


def test_one_page_after_the_other_grows_and_shrinks_with_the_rows() -> None:
    shelf, model = Shelf(), {}
    sizes = []
    for rows in (0, 32, 33, 64, 65, 3_000, 3_000, 300, 8, 7, 0):
        bucket = Bucket(shelf)
        pages = bucket.pages("it")
        for key in sorted(set(model) - {str(number) for number in range(rows)}):
            replace(pages, model, key, None)
        for number in range(len(model), rows):
            replace(pages, model, str(number), row(b"s", timer("t", number)))
        sizes.append(bucket.flush()["it"].pages)
        check(shelf, model, absent=(str(rows), "never"))
        check_due(shelf, model, rows // 2, START_OF_TIME)
    assert sizes == [1, 1, 2, 2, 3, 94, 94, 37, 1, 1, 1]


def test_a_bucket_that_grew_to_thousands_and_emptied_keeps_next_to_nothing() -> None:
    shelf = Shelf()
    for wanted in (True, False):
        bucket = Bucket(shelf)
        pages = bucket.pages("it")
        for number in range(5_000):
            pages.put(str(number), pages.get(str(number)), row(b"s" * 10) if wanted else None)
        bucket.flush()
    assert set(shelf.kept) == {"directories", "it/p0", "it/c0"}
    assert sum(map(len, shelf.kept.values())) < 100


def test_computations_do_not_see_each_others_rows() -> None:
    shelf = Shelf()
    bucket = Bucket(shelf)
    bucket.pages("one").put("k", None, row(b"1", timer("t", 5)))
    bucket.pages("other").put("k", None, row(b"2"))
    assert {name: (of.rows, of.timers) for name, of in bucket.flush().items()} == {"one": (1, 1), "other": (1, 0)}
    again = Bucket(shelf)
    assert again.pages("one").get("k").state == b"1"  # type: ignore[union-attr]
    assert again.pages("other").get("k").state == b"2"  # type: ignore[union-attr]
    assert again.pages("other").due(9, 9) == []


def test_what_is_put_shows_before_it_is_flushed_and_is_not_stored() -> None:
    shelf = Shelf()
    pages = Bucket(shelf).pages("it")
    pages.put("k", None, row(b"s"))
    assert pages.get("k") == row(b"s")
    assert shelf.kept == {}


def test_nothing_put_for_nothing_is_no_change() -> None:
    shelf = Shelf()
    bucket = Bucket(shelf)
    bucket.pages("it").put("k", None, None)
    bucket.flush()
    assert shelf.kept == {}


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
        bucket = Bucket(shelf)
        replace(bucket.pages("it"), model, "k", new)
        assert bucket.flush()["it"].minima() == expected, number


@pytest.mark.parametrize(
    ("low_watermark", "now", "expected"),
    [(4, 9, set()), (5, 9, {"lw"}), (4, 10, {"wall"}), (9, 99, {"lw", "wall"}), (END_OF_TIME, 9, {"lw"})],
)
def test_due_keys_are_those_whose_own_clock_has_come(low_watermark: int, now: int, expected: set[str]) -> None:
    shelf = Shelf()
    bucket = Bucket(shelf)
    bucket.pages("it").put("lw", None, row(b"", timer("t", 5, hold=1)))
    bucket.pages("it").put("wall", None, row(b"", timer("t", 10, wall=True, hold=1)))
    bucket.pages("it").put("neither", None, row(b"", timer("t", END_OF_TIME)))
    bucket.flush()
    assert set(Bucket(shelf).pages("it").due(low_watermark, now)) == expected


# Large rows.

LARGE = b"l" * (module.LARGE + 1)


def test_a_row_as_large_as_the_bound_lives_on_its_page_a_larger_one_alone() -> None:
    for state, alone in ((LARGE[1:], False), (LARGE, True)):
        shelf = Shelf()
        bucket = Bucket(shelf)
        bucket.pages("it").put("k", None, row(state))
        bucket.flush()
        assert ("it/r/k" in shelf.kept) is alone
        assert (len(shelf.kept["it/p0"]) < 1_000) is alone
        assert Bucket(shelf).pages("it").get("k").state == state  # type: ignore[union-attr]


def test_timers_count_for_the_size_of_a_row() -> None:
    shelf, model = Shelf(), {}
    bucket = Bucket(shelf)
    replace(bucket.pages("it"), model, "k", row(None, *(timer(f"tag {number}", number) for number in range(2_000))))
    bucket.flush()
    assert "it/r/k" in shelf.kept
    check(shelf, model)
    check_due(shelf, model, 0, START_OF_TIME)


def test_a_large_row_moves_out_and_in_again() -> None:
    shelf, model = Shelf(), {}
    for state in (b"small", LARGE, LARGE + b"!", b"small again", LARGE, None):
        bucket = Bucket(shelf)
        replace(bucket.pages("it"), model, "k", None if state is None else row(state, timer("t", 5)))
        bucket.flush()
        check(shelf, model)
    assert "it/r/k" not in shelf.kept


def test_a_large_row_is_not_read_or_written_with_its_neighbours() -> None:
    shelf = Shelf()
    bucket = Bucket(shelf)
    bucket.pages("it").put("large", None, row(LARGE))
    bucket.pages("it").put("small", None, row(b"s"))
    bucket.flush()
    before = shelf.kept["it/r/large"]
    shelf.trips()
    bucket = Bucket(shelf)
    pages = bucket.pages("it")
    pages.put("small", pages.get("small"), row(b"t"))
    bucket.flush()
    assert shelf.trips() == (3, 3, 0)
    assert shelf.kept["it/r/large"] is before
    assert Bucket(shelf).pages("it").get("large").state == LARGE  # type: ignore[union-attr]


def test_a_large_row_that_is_lost_is_an_error() -> None:
    shelf = Shelf()
    bucket = Bucket(shelf)
    bucket.pages("it").put("k", None, row(LARGE))
    bucket.flush()
    shelf.remove("it/r/k")
    with pytest.raises(LookupError, match=r"the row of 'k' of 'it' is missing from the state"):
        Bucket(shelf).pages("it").get("k")
