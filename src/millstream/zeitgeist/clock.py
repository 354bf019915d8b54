"""The accelerated clock of the example: one second of event time is one simulated hour, so a week takes 168 seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import millstream as ms

HOUR: Final = ms.SECOND
DAY: Final = 24 * HOUR
WEEK: Final = 7 * DAY
HOURS_OF_WEEK: Final = WEEK // HOUR
START: Final = ms.to_timestamp(datetime(2024, 1, 1, tzinfo=UTC))  # a Monday at midnight, on both clocks


def hour_of_week(timestamp: ms.Timestamp) -> int:
    """0 for Monday's first simulated hour, 167 for Sunday's last."""
    return (timestamp - START) % WEEK // HOUR


def simulated(timestamp: ms.Timestamp) -> datetime:
    """What the simulated calendar shows at a moment of event time."""
    return ms.to_datetime(START + (timestamp - START) * (ms.HOUR // HOUR))
