"""When a table changes."""

from __future__ import annotations

import millstream as ms


def date_of_change(record: ms.Timestamp, last: ms.Timestamp, low_watermark: ms.Timestamp) -> ms.Timestamp:
    """The time of a change: that of the record that caused it, but never before the last change of the row, nor late.

    The low watermark counts for two reasons. What a late record changes, the table has changed only now: no reader has to take
    it for late. And a row that is gone is forgotten once the low watermark has reached its last change, so that what comes
    afterwards is not dated before that either.
    """
    return max(record, last, low_watermark, key=int)
