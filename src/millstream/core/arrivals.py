"""What an epoch brings to a lane: packets of records put together into one set of columns, in the order of timestamps and ids."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Sequence
from itertools import islice, repeat
from typing import TypeVar

import msgspec

from millstream.core.parts import Columns, injector_of
from millstream.timestamp import Timestamp

T = TypeVar("T")


class Packet(msgspec.Struct, frozen=True):
    """Some records of a stream on their way in, under the keys that all these readers see them under."""

    inputs: tuple[int, ...]  # of the graph; each of them gets every record
    stream: str
    origin: str  # of the ids: the injector and a place in its source, or the stream that was produced
    major: int
    columns: Columns


class Arrivals(msgspec.Struct):
    """Records on their way into computations, as columns: still encoded, their keys already extracted.

    They stand in the order of their timestamps and ids. `packet_of` says for each the number of the packet it came in;
    `errors` says, by position, why a key could not be extracted. `own` are the keys that they were produced under, where a
    reader sees records whole and has them under others; else it is empty.
    """

    keys: list[str] = []
    values: list[bytes] = []
    timestamps: list[Timestamp] = []
    minors: Sequence[int] = []
    packet_of: list[int] = []
    packets: list[Packet] = []
    errors: dict[int, str] = {}
    own: list[str] = []

    def id(self, position: int) -> str:
        """The id of a record, for people; made only when it is asked for."""
        packet = self.packets[self.packet_of[position]]
        return f"{packet.origin}/{packet.major}/{self.minors[position]}"


def place_of_origin(origin: str, injectors: Container[str]) -> str:
    """Where records of an origin stand among those of the same time: what was produced comes first of all."""
    return origin if injector_of(origin) in injectors else ""


def gather(packets: Iterable[Packet], injectors: Container[str]) -> Arrivals:
    """Put packets together. Ids are in the order of (injector, or first of all what was produced; major; minor)."""

    def place(packet: Packet) -> tuple[str, int]:
        return place_of_origin(packet.origin, injectors), packet.major

    ordered = sorted((p for p in packets if p.columns.keys), key=lambda p: (*place(p), p.columns.minors[0], p.inputs))
    if len(ordered) == 1:
        (only,) = ordered
        c = only.columns  # not copied: nobody changes what has arrived
        arrivals = Arrivals(c.keys, c.values, c.timestamps, c.minors, [0] * len(c.keys), ordered, c.errors, c.own)
        return arrivals if _ascending(c.timestamps) else _arranged(arrivals, sorted(range(len(c.keys)), key=c.timestamps.__getitem__))
    minors: list[int] = []
    arrivals = Arrivals([], [], [], minors, [], ordered, {}, [])
    shows_own = any(packet.columns.own for packet in ordered)
    groups: list[int] = []  # of each packet: those of one place count their minors together
    overlap, last = False, -1
    for number, packet in enumerate(ordered):
        c = packet.columns
        same = number > 0 and place(packet) == place(ordered[number - 1])
        overlap |= same and c.minors[0] <= last
        last = max(last, c.minors[-1]) if same else c.minors[-1]
        groups.append(groups[-1] + (not same) if groups else 0)
        for position, error in c.errors.items():
            arrivals.errors[len(arrivals.keys) + position] = error
        arrivals.keys += c.keys
        arrivals.values += c.values
        arrivals.timestamps += c.timestamps
        minors += c.minors
        arrivals.packet_of += repeat(number, len(c.keys))
        if shows_own:
            arrivals.own += c.own or c.keys
    order: Iterable[int] | None = None
    if overlap:  # several streams of one producer, or a stream under several keys
        order = sorted(sorted(range(len(minors)), key=minors.__getitem__), key=lambda position: groups[arrivals.packet_of[position]])
    if order is not None or not _ascending(arrivals.timestamps):
        stamps = arrivals.timestamps
        return _arranged(arrivals, sorted(range(len(minors)) if order is None else order, key=stamps.__getitem__))
    return arrivals


def _ascending(timestamps: Sequence[Timestamp]) -> bool:
    return all(map(operator.le, timestamps, islice(timestamps, 1, None)))


def has_ties(timestamps: Sequence[Timestamp]) -> bool:
    """Whether two are of one time, where they stand in order."""
    return any(map(operator.eq, timestamps, islice(timestamps, 1, None)))


def _arranged(arrivals: Arrivals, order: Sequence[int]) -> Arrivals:
    """The same in another order."""
    errors = {after: arrivals.errors[before] for after, before in enumerate(order) if before in arrivals.errors} if arrivals.errors else {}

    def pick(column: Sequence[T]) -> list[T]:
        return list(map(column.__getitem__, order))

    return Arrivals(
        pick(arrivals.keys),
        pick(arrivals.values),
        pick(arrivals.timestamps),
        pick(arrivals.minors),
        pick(arrivals.packet_of),
        arrivals.packets,
        errors,
        pick(arrivals.own) if arrivals.own else [],
    )
