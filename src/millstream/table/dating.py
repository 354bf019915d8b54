"""When a table changes, and when it forgets a row that is gone."""

from __future__ import annotations

from typing import Any

import millstream as ms

BY_LOW_WATERMARK, BY_WALL_CLOCK = "forget", "forget by the wall clock"


def date_of_change(record: ms.Timestamp, last: ms.Timestamp, low_watermark: ms.Timestamp) -> ms.Timestamp:
    """The time of a change: that of the record that caused it, but never before the last change of the row, nor late.

    The low watermark counts for two reasons. What a late record changes, the table has changed only now: no reader has to take
    it for late. And a row that is gone is forgotten once the low watermark has reached its last change, so that what comes
    afterwards is not dated before that either.
    """
    return max(record, last, low_watermark, key=int)


def forget(table: ms.Computation[Any], at: ms.Timestamp, *, since: ms.Timestamp, remember: ms.Duration = ms.DAY) -> None:
    """Have a row that is gone `since` a time forgotten when the low watermark is at `at`.

    One that has not begun may never do: a table without event time has none. So long the wall clock counts, from the later of
    now and `since`; what comes later still, and is older than what is forgotten, is dated by itself.
    """
    table.set_timer(BY_LOW_WATERMARK, at=at)
    if table.low_watermark == ms.START_OF_TIME:
        table.set_timer(BY_WALL_CLOCK, at=max(table.now, since, key=int) + remember, clock=ms.Clock.WALL)


def keep(table: ms.Computation[Any]) -> None:
    """The row is back, or forgotten already."""
    table.cancel_timer(BY_LOW_WATERMARK)
    table.cancel_timer(BY_WALL_CLOCK)


def is_over(table: ms.Computation[Any], timer: ms.Timer) -> bool:
    """Whether a row that is gone is to be forgotten now: by the wall clock only as long as there is no low watermark."""
    over = timer.tag == BY_LOW_WATERMARK or table.low_watermark == ms.START_OF_TIME
    if over:
        keep(table)
    return over
