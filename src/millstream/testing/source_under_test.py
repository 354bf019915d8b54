"""A source and the system that it reads, as the tests of a contract see them: what is added, and whether that is what was read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from millstream.core.codec import value_decoder
from millstream.source import Position, Source, SourceContext
from millstream.testing.source_reading import ReadUpTo, ReadValue, SourceReading, by_partition

FEW = 6  # values of each partition


class SourceUnderTest(ABC):
    """What whoever tests a source says of it, and what the tests do with that."""

    value_type: Any = int
    partitions: int = 1  # that values are added to: 0, 1, …
    bounded: bool = False  # it has what it has when it is opened
    backlog: int | None = None  # how many values there must be for it to give pieces; None if it never does
    max_bytes: int = 2 << 20  # that a piece should have: fewer bytes make more pieces
    tells_lag: bool = False  # a source with several partitions must

    @abstractmethod
    def make(self) -> Source[Any]:
        """A source of a place that is the test's own, the same for all calls in one test."""

    @abstractmethod
    def add(self, values: Sequence[Any], partition: int) -> None:
        """The system has these values now, after those that the partition had."""

    def value(self, n: int) -> Any:
        """The nth value, as it is added."""
        return n

    def read_as(self, value: Any) -> Any:
        """What was added, as it is read: of `value_type`."""
        return value

    def add_bad(self, partition: int) -> None:
        """One that is not of `value_type`, if the system can hold such."""
        raise NotImplementedError

    def cut_off(self) -> None:
        """The system cannot be reached from now on, if that can be."""
        raise NotImplementedError

    def reconnect(self) -> None:
        """It can again."""
        raise NotImplementedError

    # What the tests do.

    @cached_property
    def _added(self) -> list[list[Any]]:
        return [[] for _ in range(self.partitions)]

    @property
    def _count(self) -> int:
        return sum(map(len, self._added))

    @cached_property
    def _kept(self) -> TemporaryDirectory[str]:
        return TemporaryDirectory(prefix="millstream-source-")

    def teardown_method(self) -> None:
        if "_kept" in vars(self):
            self._kept.cleanup()

    def _add(self, values: list[Any], partition: int) -> None:
        self._added[partition] += values
        self.add(values, partition)

    def _fill(self, each: int = FEW) -> None:
        """So many values more in each partition."""
        first = self._count
        for partition in range(self.partitions):
            self._add([self.value(first + partition + n * self.partitions) for n in range(each)], partition)

    def _context(self, positions: Mapping[str, Position] | None = None, *, finished: bool = False) -> SourceContext:
        folder = Path(self._kept.name, "numbers")
        return SourceContext("numbers", self.value_type, dict(positions or {}), folder=folder, max_bytes=self.max_bytes, finished=finished)

    @contextmanager
    def _reading(
        self, positions: Mapping[str, Position] | None = None, *, at_most: int = 100, confirms: bool = False
    ) -> Iterator[SourceReading]:
        with closing(SourceReading(self.make(), self._context(positions), at_most=at_most, confirms=confirms)) as reading:
            yield reading

    def _read_all(self, positions: Mapping[str, Position] | None = None, *, at_most: int = 100) -> SourceReading:
        """What there is now, to the end."""
        with self._reading(positions, at_most=at_most, confirms=True) as reading:
            if not self.bounded:
                reading.finish()
            reading.until_ended()
        return reading

    def _fill_backlog(self) -> None:
        assert self.backlog is not None
        self._fill(-(-self.backlog // self.partitions))

    def _is_said(self, reading: SourceReading) -> None:
        def said() -> bool:
            assert not reading.ended, "ended() must not be True of a source that cannot be reached"
            return reading.unreachable is not None or (reading.reader is not None and reading.reader.trouble is not None)

        reading.until(said, "where its system does not answer, raise ms.Unreachable, or say so in `trouble`")

    def _can_be_decoded(self, value: ReadValue) -> bool:
        try:
            self._decode(value.text)
        except (msgspec.MsgspecError, ValueError):
            return False
        return True

    @cached_property
    def _decode(self) -> Callable[[bytes | str], Any]:
        return value_decoder(self.value_type, strict=not self.make().lenient)

    def _check_values(self, values: list[ReadValue]) -> None:
        refused = [value for value in values if value.reason is not None]
        assert not refused, f"these values are right, and were refused: {refused[:3]}"
        found = [[self._decode(value.text) for value in those] for those in by_partition(values).values()]
        expected = [[self.read_as(value) for value in those] for those in self._added if those]
        same = len(found) == len(expected) and all(those in expected for those in found)
        assert same, (
            f"each value must be given once, in the order of its partition and under its name; "
            f"there were {_shown(expected)}, and it gave {_shown(found)}"
        )
        ids = {value.id for value in values}
        assert len(ids) == len(values), f"{len(values)} values have {len(ids)} ids; no two may have the same origin, major and number"

    def _check_rest(self, first: SourceReading, place: ReadUpTo, again: SourceReading) -> None:
        expected, found = by_partition(first.values[place.values :]), by_partition(again.values)
        assert expected == found, (
            f"opened at {dict(place.positions)}, it must give what comes after that, with the ids that it had; "
            f"that is {_shown(list(expected.values()))}, and it gave {_shown(list(found.values()))}"
        )


def _shown(partitions: list[list[Any]]) -> str:
    return " and ".join(f"{len(those)} values {those[:12]}{'…' if len(those) > 12 else ''}" for those in partitions) or "none"
