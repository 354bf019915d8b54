"""The places on which a scene can be played."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import millstream as ms
from millstream.core.epoch import Tally
from millstream.testing import Driver

V = TypeVar("V")


class Stage(Protocol):
    """What a scene may do."""

    def send(self, stream: ms.Stream[V], *values: V) -> None: ...
    def advance(
        self,
        *,
        low_watermark: ms.Timestamp | None = None,
        now: ms.Timestamp | None = None,
        of: ms.Stream[Any] | None = None,
        partition: str = "",
    ) -> None: ...
    def jump(self, now: ms.Timestamp) -> None: ...
    def finish(self, of: ms.Stream[Any] | None = None) -> None: ...
    def crash(self, *, low_watermark: ms.Timestamp | None = None, now: ms.Timestamp | None = None) -> None: ...
    def read(self, stream: ms.Stream[V]) -> list[ms.Record[V]]: ...
    def dead_letters(self) -> list[ms.DeadLetter]: ...
    def low_watermark(self, name: str) -> ms.Timestamp: ...
    def tally(self, computation: str) -> Tally: ...
    def keys(self, computation: str) -> int: ...
    def timers(self, computation: str) -> int: ...


class DriverStage(Driver):
    """In process."""

    def advance(
        self,
        *,
        low_watermark: ms.Timestamp | None = None,
        now: ms.Timestamp | None = None,
        of: ms.Stream[Any] | None = None,
        partition: str = "",
    ) -> None:
        if now is not None:
            super().advance(now=now)
        if low_watermark is not None:
            for name in self._named(of):
                self._mark(name, {partition: low_watermark})
        self.run()

    def crash(self, *, low_watermark: ms.Timestamp | None = None, now: ms.Timestamp | None = None) -> None:
        """The next epoch, which is that of the clocks as they are then, leaves no trace and is planned afresh."""
        super().crash()
        self.advance(low_watermark=low_watermark, now=now)

    def jump(self, now: ms.Timestamp) -> None:
        """The wall clock says this, be it earlier."""
        self._now = now
        self.run()

    def timers(self, computation: str) -> int:  # type: ignore[override]
        return sum(report.timers for report in self._ledger.reports.get(computation, {}).values())
