"""The smallest topology: one computation that reads one stream of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import millstream as ms
from millstream.core.epoch import Tally
from millstream.testing import Driver


@dataclass(frozen=True)
class Event:
    """What the tests send: a word, under a key, at a time."""

    key: str = "k"
    at: int = 0
    word: str = ""


def inject(topology: ms.Topology, name: str = "events", *, low_watermark: Any = None) -> ms.Stream[Event]:
    """A stream of events that the test feeds by itself."""
    return topology.inject(
        name,
        ms.values([], Event),
        key=lambda event: event.key,
        timestamp=lambda event: ms.Timestamp(event.at),
        low_watermark=low_watermark or ms.BoundedDisorder(0 * ms.SECOND),
    )


def tally(driver: Driver, computation: str) -> Tally:
    """Where the records of a computation went, since the beginning."""
    return driver._ledger.tallies.get(computation, Tally())


class Alone:
    """A computation called "it", its stream and its driver."""

    def __init__(
        self,
        computation: ms.Computation[Any],
        *,
        errors: ms.Errors = ms.Errors.FAIL,
        late: Any = ms.Late.PROCESS,
        read: Callable[[ms.Stream[Event]], ms.Stream[Any]] = lambda stream: stream,
        now: int = 0,
    ) -> None:
        self.topology = ms.Topology("test")
        self.events = inject(self.topology)
        self.topology.compute("it", computation, errors=errors).reads(read(self.events), late=late)
        self.driver = Driver(self.topology, now=ms.Timestamp(now), ship=False)

    def send(self, *events: Event) -> None:
        """All of them in one epoch."""
        self.driver.send(self.events, *events)

    def advance(self, low_watermark: int | None = None, *, now: int | None = None) -> None:
        self.driver.advance(low_watermark=low_watermark, now=now)  # type: ignore[arg-type]

    def state(self, key: str = "k") -> Any:
        return self.driver.state("it", key)

    def timers(self, key: str = "k") -> list[ms.Timer]:
        return self.driver.timers("it", key)

    def take_over(self, older: Alone) -> None:
        """Begin with the state that another left, as a restart with changed code does."""
        older.driver._run._checkpoint()
        self.driver._run._store.kept = dict(older.driver._run._store.kept)
        self.driver._run.held.forget()

    @property
    def tally(self) -> Tally:
        return tally(self.driver, "it")

    @property
    def epoch(self) -> int:
        """The number of the last epoch."""
        return self.driver._ledger.number
