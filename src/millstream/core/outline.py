"""What planning needs to know of a topology: names, who reads what, how long silence counts. Nothing of the user's code."""

from __future__ import annotations

import msgspec

from millstream.timestamp import Duration


class OutlinedInput(msgspec.Struct, frozen=True):
    """One stream as one computation reads it."""

    index: int
    computation: str
    stream: str
    reader: str  # what the ledger knows it by
    rekeyed: bool  # it has parts of its own, under other keys
    aside: bool = False  # without event time, in a computation that has one: what comes by it keeps no low watermark back


class OutlinedNode(msgspec.Struct, frozen=True):
    """A computation: who feeds it."""

    producers: tuple[str, ...]
    injectors: tuple[str, ...]


class OutlinedHistory(msgspec.Struct, frozen=True):
    """What a new reader gets of a stream before its present: an input of its own, brought in as an injector's is."""

    reader: str  # that it is for
    stream: str
    rekeyed: bool

    @property
    def place(self) -> tuple[str, str]:
        """Where the present lies that waits meanwhile: the stream, and the reader if it has parts of its own."""
        return self.stream, self.reader if self.rekeyed else ""


class Outline(msgspec.Struct, frozen=True):
    """A topology as the planner sees it, which may be another process than the one that has its code."""

    injectors: dict[str, Duration | None]  # a partition that is silent for so long is left out
    nodes: dict[str, OutlinedNode]
    inputs: list[OutlinedInput]
    deliveries: dict[str, str]  # → stream
    unkept: list[str]  # streams that the log leaves out
    timeless: list[str] = []  # injectors without event time
    untimed: list[str] = []  # computations that read nothing else, near or far
    histories: dict[str, OutlinedHistory] = {}  # by the name that they have among injectors and readers
