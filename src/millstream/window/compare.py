"""A window beside an earlier one."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from millstream import arguments
from millstream.computation import Computation
from millstream.record import Record, Timer
from millstream.stream import Output
from millstream.timestamp import END_OF_TIME, MICROSECOND, Duration, Timestamp
from millstream.window.spans import Windowed

R = TypeVar("R")

FORMAT = 1


class Compared(msgspec.Struct, Generic[R], frozen=True):
    """What a window amounts to, and what the one `back` before it did, if there was one."""

    key: str
    start: Timestamp
    end: Timestamp
    value: R
    earlier: R | None


class ComparableWindow(msgspec.Struct, Generic[R], array_like=True):
    window: Windowed[R]
    at: Timestamp
    told: bool = False


class ComparableWindows(msgspec.Struct, Generic[R], array_like=True):
    """What is kept for a key, by the starts of the windows."""

    format: int = FORMAT
    windows: list[ComparableWindow[R]] = []


class Compare(Computation[ComparableWindows[R]], Generic[R]):
    """Each window beside the one that began `back` before it: the minute before, or the same hour yesterday.

        compared = Compare(int, back=ms.MINUTE)
        topology.compute("compared", compared).reads(per_minute.results)

    `R` is the type of the windows' values. A window is told with its own timestamp, once the low watermark is past that, so
    that the earlier one is there whatever the order in which they came. It is kept for `back` after its end. Of several
    windows of a key with the same start, the last that came counts as the earlier one.

    `late` has the windows that came after that: those which they would stand beside may be told already, or forgotten. They
    are beside none.
    """

    compared: Output[Compared[R]]
    late: Output[Windowed[R]]

    def __init__(self, of: type[R], *, back: Duration) -> None:
        arguments.value_type("Compare", of)
        self.of, self.back = of, arguments.span("Compare", "back", back)

    def type_arguments(self) -> dict[str, Any]:
        return {"R": self.of}

    def process_record(self, record: Record[Windowed[R]]) -> None:
        if record.timestamp < self.low_watermark:
            self.late.produce(record.value, timestamp=record.timestamp)
            return
        self.state.windows.append(ComparableWindow(record.value, record.timestamp))
        self._wait()

    def process_timer(self, timer: Timer) -> None:
        windows = self.state.windows
        for one in sorted(windows, key=lambda one: int(one.at)):
            if not one.told and one.at < self.low_watermark:
                one.told = True
                self._tell(one)
        self.state.windows = [one for one in windows if not one.told or one.window.end + self.back > self.low_watermark]
        self._wait()

    def _tell(self, one: ComparableWindow[R]) -> None:
        window, earlier = one.window, None
        for other in self.state.windows:
            if other.window.key == window.key and other.window.start == window.start - self.back:
                earlier = other.window.value
        self.compared.produce(Compared(window.key, window.start, window.end, window.value, earlier), timestamp=one.at)

    def _wait(self) -> None:
        """Be called when the next window is certain to have its earlier one beside it, or when one is no longer needed."""
        waiting = [one.at for one in self.state.windows if not one.told]
        if waiting:
            first = min(waiting, key=int)
            self.set_timer("tell", at=first + MICROSECOND, hold=first)
        else:
            self.cancel_timer("tell")
        last = min((one.window.end + self.back for one in self.state.windows if one.told), default=END_OF_TIME, key=int)
        if last < END_OF_TIME:
            self.set_timer("forget", at=last)
        else:
            self.cancel_timer("forget")
