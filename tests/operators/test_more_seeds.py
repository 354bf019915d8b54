"""The splits of all operators with more seeds than a usual run has time for: `SEEDS=1000 pytest -m soak tests/operators`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from millstream.table import Kind
from tests.operators import (
    test_as_of,
    test_join,
    test_join_lookup,
    test_sketches,
    test_table_grouped,
    test_table_joined,
    test_table_newest,
    test_table_view,
    test_timeless,
    test_window_compare,
    test_window_errors,
    test_window_rolling,
    test_window_splits,
)

pytestmark = pytest.mark.soak

SEEDS = range(1_000, 1_000 + int(os.environ.get("SEEDS", "20")))  # others than the tests themselves have
SPLITS: list[Any] = [
    test_join_lookup.test_every_record_is_told_once_and_one_row_a_key_is_kept,
    test_sketches.test_windows_of_sketches_in_any_order,
    test_table_grouped.test_the_rows_are_the_same_however_they_come,
    test_table_newest.test_the_laws_hold_where_deletions_are_soon_forgotten,
    test_table_newest.test_the_rows_are_the_same_however_they_come,
    test_table_view.test_the_rows_are_the_same_however_they_come,
    test_timeless.test_the_newest_that_has_come_counts,
    test_window_compare.test_the_same_in_any_order,
    test_window_compare.test_windows_are_beside_those_that_came_in_time,
    test_window_errors.test_all_that_can_be_told_is_told_however_it_comes,
    test_window_rolling.test_the_same_in_any_order,
    test_window_splits.test_a_few_records_one_by_one,
    test_window_splits.test_a_late_record_counts_wherever_it_can_and_is_told_if_it_missed_anything,
    test_window_splits.test_a_table_is_right_in_the_end_however_late_its_records_come,
    test_window_splits.test_days_in_any_order,
    test_window_splits.test_patience_loses_and_doubles_nothing,
    test_window_splits.test_sessions_with_late_records,
    test_window_splits.test_windows_in_any_order,
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split.__module__.rpartition('.')[2]}:{split.__name__}")
def test_a_split(split: Any, seed: int) -> None:
    split(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_joins(seed: int) -> None:
    for before, after in test_join.SHAPES:
        test_join.test_the_same_is_told_however_it_comes(before, after, seed)
    for direction, tolerance in test_as_of.WAYS:
        test_as_of.test_it_says_what_pandas_says_however_it_comes(direction, tolerance, seed % 2 == 0, seed)
    for kind in Kind:
        test_table_joined.test_the_rows_are_the_same_however_they_come(kind, seed)
