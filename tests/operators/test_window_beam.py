"""Windows by the rules that Apache Beam documents, each by its name, and where Millstream differs from it on purpose.

The rules are those of Beam's guide and of its Java API: `FixedWindows`, `SlidingWindows`, `Sessions`, `withAllowedLateness`, the
default trigger. Times are seconds; `promise` is Beam's watermark.
"""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream import aggregate
from millstream.testing import Driver
from millstream.window import Every, Hopping, Session, Tumbling, Window, WindowTable
from tests.operators.shop import Order, at, shop, values

Told = list[tuple[int, int, list[int]]]  # from, up to, and the times of the records in it


class Played:
    """One key, whose records are their times."""

    def __init__(self, windows: Any, *, correct: int | None = None, early: Every | None = None) -> None:
        of = aggregate.collect(Order)
        self.window: Any = Window(Order, windows, of)
        if correct is not None:
            self.window = WindowTable(Order, windows, of, correct=correct * ms.SECOND, early=early)
        self.topology, self.orders = shop(self.window)
        self.driver = Driver(self.topology, now=at(0), ship=False)

    def send(self, *times: int) -> None:
        for time in times:
            self.driver.send(self.orders, Order("ann", 1, time))

    def promise(self, second: int) -> None:
        self.driver.advance(low_watermark=at(second))

    @property
    def told(self) -> Told:
        return [place(one) for one in values(self.driver, self.window.results)]

    @property
    def changes(self) -> list[tuple[Any, Any]]:
        found = values(self.driver, self.window.changes)
        return [(change.before and place(change.before), change.after and place(change.after)) for change in found]

    @property
    def late(self) -> list[int]:
        return [order.at for order in values(self.driver, self.window.late)]


def seconds(moment: ms.Timestamp) -> int:
    return int(moment - at(0)) // 1_000_000


def place(one: Any) -> tuple[int, int, list[int]]:
    return seconds(one.start), seconds(one.end), [order.at for order in one.value]


# As in Beam.


def test_fixed_windows_are_half_open() -> None:
    played = Played(Tumbling(30 * ms.SECOND))
    played.send(0, 29, 30, 59, 60)
    played.driver.finish()
    assert played.told == [(0, 30, [0, 29]), (30, 60, [30, 59]), (60, 90, [60])]


def test_fixed_windows_begin_at_the_epoch_plus_an_offset() -> None:
    played = Played(Tumbling(30 * ms.SECOND, offset=10 * ms.SECOND))
    played.send(9, 10)
    played.driver.finish()
    assert played.told == [(-20, 10, [9]), (10, 40, [10])]


def test_an_element_is_assigned_to_all_sliding_windows_that_hold_its_time() -> None:
    played = Played(Hopping(60 * ms.SECOND, every=20 * ms.SECOND))
    played.send(20, 45)
    played.driver.finish()
    assert played.told == [(-20, 40, [20]), (0, 60, [20, 45]), (20, 80, [20, 45]), (40, 100, [45])]


def test_sessions_are_separated_by_at_least_the_gap() -> None:
    played = Played(Session(10 * ms.SECOND))
    played.send(0, 9, 19, 28)  # nine seconds join, ten part
    played.driver.finish()
    assert played.told == [(0, 19, [0, 9]), (19, 38, [19, 28])]


def test_a_session_reaches_from_its_first_element_to_a_gap_after_its_last() -> None:
    played = Played(Session(10 * ms.SECOND))
    played.send(5)
    played.driver.finish()
    assert played.told == [(5, 15, [5])]


def test_an_element_between_two_sessions_merges_them() -> None:
    played = Played(Session(10 * ms.SECOND))
    played.send(0, 18)
    played.send(9)
    played.driver.finish()
    assert played.told == [(0, 28, [0, 9, 18])]


def test_sessions_are_those_of_a_key() -> None:
    played = Played(Session(10 * ms.SECOND))
    played.driver.send(played.orders, Order("ann", 1, 0), Order("bob", 1, 5))
    played.driver.finish()
    assert sorted(one.key for one in values(played.driver, played.window.results)) == ["ann", "bob"]


def test_a_window_is_told_when_the_watermark_passes_its_end() -> None:
    played = Played(Tumbling(30 * ms.SECOND))
    played.send(5)
    played.driver.advance(low_watermark=at(30) - ms.MICROSECOND)
    assert played.told == []
    played.promise(30)
    assert played.told == [(0, 30, [5])]


def test_a_result_carries_the_last_instant_of_its_window() -> None:
    """In Beam that is a millisecond before the end, by its resolution; here a microsecond."""
    played = Played(Tumbling(30 * ms.SECOND))
    played.send(5)
    played.driver.finish()
    assert [record.timestamp for record in played.driver.read(played.window.results)] == [at(30) - ms.MICROSECOND]


def test_an_element_behind_the_watermark_whose_window_is_open_is_not_too_late() -> None:
    played = Played(Tumbling(30 * ms.SECOND))
    played.promise(25)
    played.send(5)
    played.driver.finish()
    assert (played.told, played.late) == ([(0, 30, [5])], [])


def test_windows_without_elements_are_not_told() -> None:
    played = Played(Tumbling(30 * ms.SECOND))
    played.send(5, 95)
    played.driver.finish()
    assert [(start, end) for start, end, _ in played.told] == [(0, 30), (90, 120)]


def test_late_elements_within_the_allowed_lateness_are_told_as_they_come() -> None:
    """`withAllowedLateness` is `correct`, and the default trigger with panes that accumulate."""
    played = Played(Tumbling(30 * ms.SECOND), correct=60)
    played.send(1, 2)
    played.promise(40)
    played.send(3)
    played.send(4)
    first, second, third = (0, 30, [1, 2]), (0, 30, [1, 2, 3]), (0, 30, [1, 2, 3, 4])
    assert played.changes == [(None, first), (first, second), (second, third)]


@pytest.mark.parametrize(("promise", "late"), [(89, []), (90, [3])])
def test_the_allowed_lateness_ends_when_the_watermark_is_so_far_past_the_end(promise: int, late: list[int]) -> None:
    played = Played(Tumbling(30 * ms.SECOND), correct=60)
    played.send(1)
    played.promise(promise)
    played.send(3)
    assert played.late == late
    assert len(played.changes) == 2 - len(late)


def test_nothing_is_kept_of_a_window_after_its_allowed_lateness() -> None:
    played = Played(Tumbling(30 * ms.SECOND), correct=60)
    played.send(1)
    played.promise(90)
    assert played.driver.keys(played.window) == 0


def test_an_early_firing_is_followed_by_one_on_time_only_if_there_is_news() -> None:
    """Beam's `FIRE_IF_NON_EMPTY`."""
    early = Every(10 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK)
    for news in (True, False):
        played = Played(Tumbling(30 * ms.SECOND), correct=60, early=early)
        played.send(1)
        played.promise(10)
        if news:
            played.send(25)
        played.promise(100)
        first = (0, 30, [1])
        assert played.changes == [(None, first), *([(first, (0, 30, [1, 25]))] if news else [])]


def test_of_sliding_windows_a_late_element_counts_in_those_that_are_open() -> None:
    played = Played(Hopping(60 * ms.SECOND, every=20 * ms.SECOND))
    played.promise(50)
    played.send(30)  # its windows end at 40, 60 and 80
    played.driver.finish()
    assert [end for _, end, _ in played.told] == [60, 80]


# Otherwise than in Beam; the guide says so.


def test_what_is_too_late_is_told_where_beam_drops_it() -> None:
    played = Played(Hopping(60 * ms.SECOND, every=20 * ms.SECOND))
    played.promise(50)
    played.send(30)  # also one that counts in some of its windows only
    assert played.late == [30]


def test_a_window_is_told_once_where_beams_default_trigger_goes_on() -> None:
    """Whoever wants late firings says `WindowTable`, and gets another type."""
    played = Played(Tumbling(30 * ms.SECOND))
    played.send(1)
    played.promise(30)
    played.send(2)
    assert (played.told, played.late) == ([(0, 30, [1])], [2])


def test_a_late_element_joins_a_session_that_is_open_where_beam_judges_its_own_span_before_it_merges() -> None:
    for correct in (None, 0):
        played = Played(Session(10 * ms.SECOND), correct=correct)
        played.send(0, 9, 18, 27)
        played.promise(30)
        played.send(5)  # its own span ended at 15
        played.driver.finish()
        found = played.told if correct is None else [after for _, after in played.changes]
        assert (found, played.late) == ([(0, 37, [0, 5, 9, 18, 27])], [])


def test_a_late_element_that_has_a_session_begin_earlier() -> None:
    """Told once, it joins. As a row, which stands under its start, its own span judges, as in Beam."""
    for correct, late in ((None, []), (0, [-5])):
        played = Played(Session(10 * ms.SECOND), correct=correct)
        played.send(0, 9, 18, 27)
        played.promise(30)
        played.send(-5)
        played.driver.finish()
        assert played.late == late


def test_sessions_that_merge_delete_rows_where_beam_tells_a_new_pane_only() -> None:
    played = Played(Session(10 * ms.SECOND), correct=60)
    played.send(0, 18)
    played.promise(30)
    played.send(9)
    first, second = (0, 10, [0]), (18, 28, [18])
    assert played.changes == [(None, first), (None, second), (second, None), (first, (0, 28, [0, 9, 18]))]


@pytest.mark.parametrize(("size", "every"), [(60, 25), (60, 90)])
def test_sliding_windows_whose_size_is_no_whole_number_of_periods_are_refused(size: int, every: int) -> None:
    """Beam has those, and those with gaps between them; here what is kept is shared between windows."""
    with pytest.raises(ms.TopologyError, match="size is no whole number of every"):
        Hopping(size * ms.SECOND, every=every * ms.SECOND)
