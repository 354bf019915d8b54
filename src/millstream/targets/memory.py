"""This process's memory as a target."""

from __future__ import annotations

from typing import Any

from millstream.delivery import MemoryTarget
from millstream.record import Record


class Memory:
    """Keeps the records of each step; one that comes again replaces itself."""

    durable = False  # the records do not outlive this process, so nothing that a power loss takes is missed

    def __init__(self, target: MemoryTarget) -> None:
        self._take = target.take

    def call(self, k: int, records: list[Record[Any]]) -> None:
        self._take(k, records)
