"""What the scenes have in common: events, and a computation that does as it is told."""

from __future__ import annotations

from dataclasses import dataclass

import millstream as ms
from millstream.injector import InjectedStream


@dataclass(frozen=True)
class Event:
    """`does` are commands for `Obedient`, separated by spaces."""

    key: str
    at: int
    does: str = ""


def at(seconds: int) -> ms.Timestamp:
    return ms.Timestamp(10**15 + seconds * 1_000_000)


def seconds(n: int) -> ms.Timestamp:
    """On the wall clock, which starts at 1970."""
    return ms.Timestamp(n * 1_000_000)


def inject(topology: ms.Topology, name: str = "events", **options: object) -> InjectedStream[Event]:
    usual: dict[str, object] = {"key": lambda e: e.key, "timestamp": lambda e: at(e.at), "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    return topology.inject(name, ms.values([], Event), **{**usual, **options})  # type: ignore[arg-type]


class Obedient(ms.Computation[list[str]]):
    """Keeps the words that it is told, and says them; says which of its timers fired.

    A timer called `chain` sets the next one a second later; one called `swap` sets the next on the other clock.

    Commands: `timer:tag:seconds`, `hold:tag:seconds:held`, `wall:tag:seconds`, `cancel:tag`, `forget`, `fail`.
    """

    said: ms.Output[str]
    late: ms.Output[Event]

    def process_record(self, record: ms.Record[Event]) -> None:
        mark = "late " if record.late else ""
        for command in record.value.does.split():
            match command.split(":"):
                case ["timer", tag, seconds]:
                    self.set_timer(tag, at=at(int(seconds)))
                case ["hold", tag, seconds, held]:
                    self.set_timer(tag, at=at(int(seconds)), hold=at(int(held)))
                case ["wall", tag, seconds]:
                    self.set_timer(tag, at=ms.Timestamp(int(seconds) * 1_000_000), clock=ms.Clock.WALL)
                case ["cancel", tag]:
                    self.cancel_timer(tag)
                case ["forget"]:
                    del self.state
                case ["fail"]:
                    raise RuntimeError("told to fail")
                case [word]:
                    self.state.append(word)
                    self.said.produce(f"{mark}{word} {len(self.state)}", timestamp=record.timestamp)
                case _:
                    raise ValueError(command)

    def process_timer(self, timer: ms.Timer) -> None:
        when = (timer.at - at(0)) // ms.SECOND if timer.clock is ms.Clock.LOW_WATERMARK else timer.at // ms.Timestamp(1_000_000)  # type: ignore[operator]
        self.said.produce(f"{timer.tag}@{when}", timestamp=timer.at if timer.clock is ms.Clock.LOW_WATERMARK else at(0))
        if timer.tag == "chain" and when < 5:
            self.set_timer("chain", at=timer.at + ms.SECOND)
        if timer.tag == "swap" and timer.clock is ms.Clock.LOW_WATERMARK:
            self.set_timer("swap", at=ms.Timestamp(50_000_000), clock=ms.Clock.WALL)
        elif timer.tag == "swap":
            self.set_timer("back", at=at(7))


class InOrder(Obedient):
    """The same in the order of event time."""

    order = ms.Order.EVENT_TIME


class Relay(ms.Computation[int]):
    """Numbers what passes."""

    passed: ms.Output[str]

    def process_record(self, record: ms.Record[str]) -> None:
        self.state += 1
        self.passed.produce(f"{record.value}#{self.state}", timestamp=record.timestamp)


def said(stage: object, output: ms.Stream[str]) -> list[tuple[str, str]]:
    """Keys and words, in the order of keys, then as they were said."""
    return sorted(((record.key, record.value) for record in stage.read(output)), key=lambda pair: pair[0])  # type: ignore[attr-defined]


def alone(**options: object) -> tuple[ms.Topology, ms.Stream[Event], Obedient]:
    """A topology of one obedient computation."""
    topology = ms.Topology("scene")
    errors = options.pop("errors", ms.Errors.FAIL)
    late = options.pop("late", None)
    it = InOrder() if options.pop("in_order", False) else Obedient()
    events = inject(topology, **options)
    policy = ms.Divert(it.late) if late == "divert" else late or ms.Late.PROCESS
    topology.compute("it", it, errors=errors).reads(events, late=policy)  # type: ignore[arg-type]
    return topology, events, it
