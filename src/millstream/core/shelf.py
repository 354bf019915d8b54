"""What the driver of a test has in place of Spark: state in a dictionary, and records in lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.core.epoch import Arrivals
from millstream.timestamp import Timestamp


class Stored(NamedTuple):
    """A record as it lies in the log. Its id is table, epoch and sequence, numbered as on Spark: bucket, then place."""

    id: tuple[str, int, int]
    key: str
    value: bytes
    timestamp: Timestamp


class Shelf:
    """The state of a bucket in a dictionary, with what an epoch has changed kept apart until it is committed."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._changed: dict[str, bytes | None] = {}

    def get(self, key: str) -> bytes | None:
        return self._changed[key] if key in self._changed else self._kept.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._changed[key] = value

    def remove(self, key: str) -> None:
        self._changed[key] = None

    def commit(self) -> None:
        for key, value in self._changed.items():
            if value is None:
                self._kept.pop(key, None)
            else:
                self._kept[key] = value
        self._changed = {}

    def forget(self) -> None:
        """What was not committed is gone."""
        self._changed = {}


@dataclass(order=True, slots=True)
class Waiting:
    """A record on its way to one reader, in the order in which they come."""

    timestamp: Timestamp
    id: tuple[str, int, int]
    input: int
    key: str = field(compare=False)
    value: bytes = field(compare=False)
    error: str | None = field(compare=False)


def arrivals_of(records: list[Waiting]) -> Arrivals:
    arrivals = Arrivals()
    for position, record in enumerate(records):
        arrivals.inputs.append(record.input)
        arrivals.keys.append(record.key)
        arrivals.values.append(record.value)
        arrivals.timestamps.append(record.timestamp)
        arrivals.ids.append(record.id)
        if record.error is not None:
            arrivals.errors[position] = record.error
    return arrivals
