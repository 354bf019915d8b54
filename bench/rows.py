"""Held rows without Spark: process time of epochs, redo and eviction, as ratios to a plain Python loop in the same run."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

import millstream as ms
from bench.goals import at_most
from millstream.core.arrivals import Packet, gather
from millstream.core.epoch import Header
from millstream.core.graph import Graph, compile_topology
from millstream.core.low_watermark import LowWatermark
from millstream.core.mill import Mill
from millstream.core.parts import Columns
from millstream.mill.held import Held, decode_changes

START = 1_700_000_000_000_000
LOW_WATERMARK = ms.Timestamp(START - 1_000_000_000)
TRIP = 75e-6  # seconds of a round trip to Spark's state, by which those of the store are counted


@dataclass(frozen=True)
class Event:
    key: str
    at: int
    n: int


@dataclass(frozen=True)
class Out:
    at: int
    n: int
    count: int


class Counter(ms.Computation[int]):
    out: ms.Output[Out]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1
        self.out.produce(Out(record.value.at, record.value.n, self.state), timestamp=record.timestamp)


@dataclass(frozen=True)
class Session:
    first: ms.Timestamp
    last: ms.Timestamp
    clicks: int


class Sessions(ms.Computation[list[Session]]):
    """Two timers a key, one on each clock."""

    closed: ms.Output[Session]

    def process_record(self, record: ms.Record[Event]) -> None:
        at, gap = record.timestamp, 30 * ms.MINUTE
        joined, apart = Session(at, at, 1), []
        for other in self.state:
            if other.first < at + gap and at < other.last + gap:
                joined = Session(min(joined.first, other.first), max(joined.last, other.last), joined.clicks + other.clicks)
            else:
                apart.append(other)
        self.state = sorted([*apart, joined], key=lambda session: session.last)
        oldest = self.state[0].last
        self.set_timer("gap", at=oldest + gap, hold=oldest)
        self.set_timer("timeout", at=self.now + 2 * ms.HOUR, clock=ms.Clock.WALL)


KINDS: dict[str, Callable[[], ms.Computation]] = {"counter": Counter, "sessions": Sessions}


class Dictionary:
    """A store that counts its round trips."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.trips = 0

    def get(self, key: str) -> bytes | None:
        self.trips += 1
        return self.kept.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.trips += 1
        self.kept[key] = value

    def remove(self, key: str) -> None:
        self.trips += 1
        self.kept.pop(key, None)


def graph_of(kind: str, idle: int = 0) -> Graph:
    topology = ms.Topology("bench")
    stream = topology.inject(
        "in",
        ms.values([], Event),
        key=lambda event: event.key,
        timestamp=lambda event: ms.Timestamp(event.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    for number in range(1 + idle):  # only the first is given records
        topology.compute(f"c{number}", KINDS[kind]()).reads(stream)
    return compile_topology(topology)


class Lane:
    """One bucket, with so many keys."""

    def __init__(self, kind: str, keys: int, *, idle: int = 0, memory: int | None = None, store: Any = None) -> None:
        graph = graph_of(kind, idle)
        self.store = Dictionary() if store is None else store
        self.mill, self.held = Mill(graph, lambda key: 0), Held(self.store, memory=memory)
        self.names = list(graph.nodes)
        self.keys = [f"k{number}" for number in range(keys)]
        self.time, self.number = START, 0
        self.random = random.Random(1)
        for start in range(0, keys, 20_000):
            self.run(self.packet(self.keys[start : start + 20_000]))

    def packet(self, keys: list[str]) -> Packet:
        self.time += 1_000_000
        stamps = [ms.Timestamp(self.time + position) for position in range(len(keys))]
        values = [b'{"key":"%s","at":%d,"n":%d}' % (key.encode(), at, n) for n, (key, at) in enumerate(zip(keys, stamps, strict=True))]
        return Packet((0,), "in", "in", self.number, Columns(keys, values, stamps, list(range(len(keys)))))

    def some(self, records: int) -> Packet:
        return self.packet(self.random.choices(self.keys, k=records))

    def run(self, packet: Packet) -> bytes:
        """An epoch, and what it writes into the journal of its rows."""
        self.number += 1
        marks = dict.fromkeys(self.names, LowWatermark(LOW_WATERMARK, LOW_WATERMARK))
        header = Header(self.number, ms.Timestamp(self.time), marks, dict.fromkeys(self.names, LOW_WATERMARK))
        return self.mill.run(header, gather([packet], {"in"}), {}, self.held).changes.encode()


def plain(packets: list[Packet]) -> float:
    """Seconds a packet of the loop that anyone would write: decode, count in a dictionary, encode."""
    decode, encode = msgspec.json.Decoder(Event).decode, msgspec.json.Encoder().encode
    counts: dict[str, int] = {}
    began = time.process_time()
    for packet in packets:
        made = []
        for key, value in zip(packet.columns.keys, packet.columns.values, strict=True):
            event = decode(value)
            counts[key] = counts.get(key, 0) + 1
            made.append(encode(Out(event.at, event.n, counts[key])))
    return (time.process_time() - began) / len(packets)


def timed(lane: Lane, packets: list[Packet]) -> float:
    """Seconds an epoch."""
    gc.collect()
    began = time.process_time()
    for packet in packets:
        lane.run(packet)
    return (time.process_time() - began) / len(packets)


def epochs(keys: int) -> None:
    for kind in KINDS:
        lane = Lane(kind, keys)
        for records, times in ((1, 2_000), (1_000, 30)):
            packets = [lane.some(records) for _ in range(times)]
            took, loop = min(timed(lane, packets) for _ in range(3)), min(plain(packets) for _ in range(3))
            print(f"  {kind}, epoch of {records:,}: {took * 1e6:,.0f} µs, {took / loop:.1f} times the plain loop", flush=True)
    alone, among = Lane("counter", keys), Lane("counter", keys, idle=20)
    one, many = (min(timed(lane, [lane.some(1) for _ in range(2_000)]) for _ in range(3)) for lane in (alone, among))
    print(f"  20 computations with nothing to do: {(many - one) * 1e6:+.1f} µs an epoch of {one * 1e6:.0f}", flush=True)


def redo(keys: int) -> None:
    for kind in KINDS:
        lane = Lane(kind, keys)
        lane.held.checkpoint(b"")
        kept = dict(lane.store.kept)
        parts = [lane.run(lane.some(1_000)) for _ in range(1_000)]
        rows = sum(decode_changes(part).rows for part in parts)

        def again(kept: dict[str, bytes] = kept, parts: list[bytes] = parts) -> None:
            store = Dictionary()
            store.kept = dict(kept)
            Held(store, memory=None).redo(decode_changes(part) for part in parts)

        def loop(parts: list[bytes] = parts) -> None:
            found: dict[str, object] = {}
            for part in parts:
                for of_computation in decode_changes(part).changed.values():
                    for of_key in of_computation.values():
                        found.update(of_key)

        took, least = (min(_cpu(what) for _ in range(3)) for what in (again, loop))
        print(f"  {kind}: {rows:,} rows, {rows / took:,.0f} rows/s", flush=True)
        at_most("against a loop that decodes them into a dictionary", took / least, 3.0)


def _cpu(what: Callable[[], None]) -> float:
    gc.collect()
    began = time.process_time()
    what()
    return time.process_time() - began


def eviction(keys: int) -> None:
    """Ten times the keys that fit decoded."""
    everything = Lane("counter", keys)
    for name, lane in (("all fits", everything), ("a tenth fits", Lane("counter", keys, memory=everything.held.resident // 10))):
        packets = [lane.some(1_000) for _ in range(60)]
        for packet in packets[:30]:
            lane.run(packet)
        trips = lane.store.trips
        took = timed(lane, packets[30:]) / 1_000
        trips_each = (lane.store.trips - trips) / 30_000
        loop = plain(packets) / 1_000
        print(
            f"  {name}: {1 / took:,.0f} records/s, {took / loop:.1f} times the plain loop; {trips_each:.2f} round trips a record, "
            f"so {1 / (took + trips_each * TRIP):,.0f} records/s on Spark",
            flush=True,
        )


def main(keys: int) -> None:
    print(f"held rows, {keys:,} keys, process time")
    epochs(keys)
    print("redo of a million changed rows, in 1,000 epochs")
    redo(keys)
    print("memory")
    eviction(keys)
