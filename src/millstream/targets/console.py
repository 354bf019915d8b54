"""The console as a target."""

from __future__ import annotations

from typing import Any

from millstream.delivery import ConsoleTarget
from millstream.record import Record
from millstream.timestamp import describe


class Console:
    """Prints the newest records of each step, and how many there were before them."""

    durable = False  # a step has no number for who reads it, and after a kill it may be printed twice

    def __init__(self, delivery: str, target: ConsoleTarget) -> None:
        self._delivery, self._at_most = delivery, target.at_most

    def call(self, k: int, records: list[Record[Any]]) -> None:
        newest = records[max(0, len(records) - self._at_most) :]
        lines = [f"{self._delivery}: … {len(records) - len(newest):,} more"] if len(newest) < len(records) else []
        lines += [f"{self._delivery}: {describe(record.timestamp)}  {record.key}  {record.value}" for record in newest]
        print("\n".join(lines), flush=True)  # at once: other deliveries print too
