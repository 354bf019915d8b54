"""Computations to place in a topology: of events, of numbers, of anything."""

from __future__ import annotations

from typing import Any

import millstream as ms
from tests.core.alone import Event


class Count(ms.Computation[int]):
    counts: ms.Output[int]
    late: ms.Output[Event]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1


class Add(ms.Computation[int]):
    sums: ms.Output[int]

    def process_record(self, record: ms.Record[int]) -> None:
        self.state += record.value


class Anything(ms.Computation[int]):
    whatever: ms.Output[Any]

    def process_record(self, record: ms.Record[Any]) -> None:
        self.state += 1
