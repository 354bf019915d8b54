"""A store in a dictionary that counts its round trips, and rows to keep in it."""

from __future__ import annotations

from millstream.core.row import HeldRow, KeptTimer, keep


class Shelf:
    """What rows are kept in."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.gets = self.puts = self.removes = 0

    def get(self, key: str) -> bytes | None:
        self.gets += 1
        return self.kept.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.puts += 1
        self.kept[key] = value

    def remove(self, key: str) -> None:
        self.removes += 1
        self.kept.pop(key, None)

    def trips(self) -> tuple[int, int, int]:
        """Gets, puts and removes since the last time of asking."""
        counted = self.gets, self.puts, self.removes
        self.gets = self.puts = self.removes = 0
        return counted


def timer(tag: str, at: int, *, wall: bool = False, hold: int | None = None) -> KeptTimer:
    return KeptTimer(tag, at, wall, hold)  # type: ignore[arg-type]


def row(state: bytes | None = b"state", *timers: KeptTimer) -> HeldRow:
    """A row that is not empty."""
    made = keep(state, {pending.tag: pending for pending in timers})
    assert made is not None
    return made
