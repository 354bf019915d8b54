"""What it costs to reach a row: round trips to the state store are what a lane pays for."""

from __future__ import annotations

import pytest

from millstream.core.pages import Pages, hash_key, page_of
from millstream.mill.held import Held
from tests.core.shelf import Shelf, row, timer


@pytest.fixture(scope="module")
def crowded() -> dict[str, bytes]:
    """A bucket of 10,000 rows, each with a timer."""
    shelf = Shelf()
    held = Held(shelf, memory=None)
    it = held.rows(0, "it")
    for number in range(10_000):
        it.put(str(number), it.get(str(number)), row(b"s", timer("t", 1_000 + number)))
    held.settle()
    held.checkpoint(b"")
    return shelf.kept


def full(crowded: dict[str, bytes]) -> tuple[Shelf, Held]:
    shelf = Shelf()
    shelf.kept.update(crowded)
    return shelf, Held(shelf, memory=None)


def change(it: Pages, key: str) -> None:
    it.put(key, it.get(key), row(b"t"))


@pytest.mark.parametrize("key", ["0", "5000", "9999"])
def test_to_change_one_row_of_ten_thousand_takes_two_reads_and_no_write(crowded: dict[str, bytes], key: str) -> None:
    shelf, held = full(crowded)
    change(held.rows(0, "it"), key)
    held.settle()
    assert shelf.trips() == (2, 0, 0)  # the directory and a page


def test_a_row_that_is_held_costs_no_round_trip(crowded: dict[str, bytes]) -> None:
    shelf, held = full(crowded)
    change(held.rows(0, "it"), "77")
    held.settle()
    shelf.trips()
    for _ in range(3):
        change(held.rows(0, "it"), "77")
        held.settle()
    assert shelf.trips() == (0, 0, 0)


def test_a_checkpoint_writes_what_changed_the_directory_and_the_identity_once(crowded: dict[str, bytes]) -> None:
    shelf, held = full(crowded)
    change(held.rows(0, "it"), "0")
    held.settle()
    shelf.trips()
    assert held.dirty_pages == 1
    assert held.checkpoint(b"") == 1
    assert shelf.trips() == (0, 3, 0)
    assert held.checkpoint(b"") == 0
    assert shelf.trips() == (0, 1, 0)


def test_a_directory_that_says_the_same_is_not_written_again() -> None:
    shelf = Shelf()
    held = Held(shelf, memory=None)
    for state, expected in ((b"1", (0, 3, 0)), (b"2", (0, 2, 0))):
        it = held.rows(0, "it")
        it.put("k", it.get("k"), row(state))
        held.settle()
        shelf.trips()
        held.checkpoint(b"")
        assert shelf.trips() == expected


def test_what_is_written_back_is_not_written_again(crowded: dict[str, bytes]) -> None:
    shelf, held = full(crowded)
    for key in ("0", "1", "2"):
        change(held.rows(0, "it"), key)
    held.settle()
    shelf.trips()
    assert [held.write_back(2), held.write_back(2), held.write_back()] == [2, 1, 0]
    assert shelf.trips() == (0, 3, 0)


def test_to_look_at_one_row_of_ten_thousand_takes_two_reads_and_no_write(crowded: dict[str, bytes]) -> None:
    shelf, held = full(crowded)
    assert held.rows(0, "it").get("77") is not None
    held.settle()
    assert held.dirty_pages == 0
    assert shelf.trips() == (2, 0, 0)


def test_rows_of_one_page_share_its_round_trips(crowded: dict[str, bytes]) -> None:
    shelf, held = full(crowded)
    it = held.rows(0, "it")
    it.get("77")
    together = list(it.decoded[page_of(hash_key("77"), 313)])
    assert len(together) > 10
    for key in together:
        change(it, key)
    held.settle()
    assert held.checkpoint(b"") == 1
    assert shelf.trips() == (2, 3, 0)


def test_a_new_row_splits_at_most_one_page(crowded: dict[str, bytes]) -> None:
    shelf, held = full(crowded)
    held.rows(0, "it")
    shelf.trips()
    worst = 0
    for number in range(40):
        change(held.rows(0, "it"), f"new {number}")
        held.settle()
        worst = max(worst, sum(shelf.trips()))
    assert 1 < worst <= 2  # its own page, and the one that is split


def test_to_find_no_due_timer_among_ten_thousand_takes_one_read(crowded: dict[str, bytes]) -> None:
    shelf, held = full(crowded)
    assert held.rows(0, "it").due(999, 999) == []
    assert shelf.trips() == (1, 0, 0)


def test_to_find_one_due_timer_among_ten_thousand_takes_two_reads(crowded: dict[str, bytes]) -> None:
    shelf, held = full(crowded)
    assert held.rows(0, "it").due(1_000, 999) == ["0"]
    assert shelf.trips() == (2, 0, 0)


def test_a_computation_that_nobody_asks_for_costs_nothing(crowded: dict[str, bytes]) -> None:
    shelf, held = full(crowded)
    held.settle()
    held.write_back()
    assert shelf.trips() == (0, 0, 0)
