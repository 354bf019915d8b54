"""What goes in and what is looked for."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

import millstream as ms


@dataclass(frozen=True)
class Query:
    """Somebody searched for `text`."""

    text: str
    at: datetime


class AnomalyKind(enum.Enum):
    """How traffic can differ from what is expected."""

    SPIKE = "spike"
    DIP = "dip"


@dataclass(frozen=True)
class Anomaly:
    """A query had much more or much less traffic than usual, from `start` until before `end`."""

    query: str
    kind: AnomalyKind
    start: ms.Timestamp
    end: ms.Timestamp

    def meets(self, other: Anomaly, *, within: ms.Duration) -> bool:
        """Whether both tell of the same thing; their times may miss each other by `within`."""
        same = (self.query, self.kind) == (other.query, other.kind)
        return same and self.start < other.end + within and other.start < self.end + within
