"""How files spell records."""

from __future__ import annotations

import enum


class Format(enum.Enum):
    """How a file spells its records."""

    JSON_LINES = "jsonl"
    TEXT = "text"
    CSV = "csv"
    PARQUET = "parquet"
