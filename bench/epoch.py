"""What an epoch of one record costs, planner, lane and journal together, without Spark and its sockets.

After many epochs, with many keys, with computations that have nothing to do: each against a young one, in turns. And how
large the journal gets: at its largest, between two checkpoints, an old one against itself when it was young. The segment that
the source writes to is left out of that: it is let go as a whole, after 64 MiB.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

import millstream as ms
from bench.goals import at_most
from millstream.core.graph import Graph, compile_topology
from millstream.core.lanes import Lanes
from millstream.core.ledger import Plant
from millstream.core.parts import NO_LANE, Columns
from millstream.core.route import Dealer
from millstream.journal.commits import Commits, Snapshot
from millstream.journal.disk import LocalAppending, LocalDisk
from millstream.journal.opening import claim
from millstream.journal.segments import SegmentReader, SegmentWriter, segment_path
from millstream.mill.actions import Action, Fed, Fold, Moment, Remove, Send, Settings, Write
from millstream.mill.beginning import first_commit
from millstream.mill.held import Held
from millstream.mill.lane import Lane
from millstream.mill.messages import Report, Returned
from millstream.mill.planner import Planner

NOON = 1_790_000_000_000_000
TURNS = 60
EPOCHS_PER_TURN = 50
RECORDS_PER_FILL = 50_000
CHECKPOINT_ROWS = 20_000
YOUNG_EPOCHS = 50_000  # two checkpoints and some: the journal keeps what came after the one before the last
SIZE_EVERY = 1_000  # epochs


class Unsynced(LocalDisk):
    """Leaves the syncs out: their time is the disk's, the same for young and old, and hides what is to be compared."""

    def create(self, path: str) -> UnsyncedFile:
        return UnsyncedFile(os.open(self.root / path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND))

    def create_whole(self, path: str, content: bytes) -> bool:
        (self.root / path).write_bytes(content)
        return True

    def sync_folder(self, path: str) -> None:
        pass


class UnsyncedFile(LocalAppending):
    def sync(self) -> None:
        pass


class Count(ms.Computation[int]):
    out: ms.Output[int]

    def process_record(self, record: ms.Record[int]) -> None:
        self.state += 1
        self.out.produce(self.state, timestamp=record.timestamp)


class Idle(ms.Computation[int]):
    out: ms.Output[int]

    def process_record(self, record: ms.Record[int]) -> None:
        raise AssertionError("nothing comes here")


class Store(dict[str, bytes]):
    def put(self, key: str, value: bytes) -> None:
        self[key] = value

    def remove(self, key: str) -> None:
        self.pop(key, None)


def graph_of(idle: int) -> Graph:
    topology = ms.Topology("bench")
    policy = ms.BoundedDisorder(ms.SECOND)
    stream = topology.inject("in", ms.values([], int), key=str, timestamp=lambda n: ms.Timestamp(NOON + n), low_watermark=policy)
    quiet = topology.inject("quiet", ms.values([], int), key=str, timestamp=lambda n: ms.Timestamp(NOON + n), low_watermark=policy)
    topology.compute("count", Count()).reads(stream)
    for n in range(idle):
        topology.compute(f"idle{n}", Idle()).reads(quiet)
    return compile_topology(topology)


class Mill:
    """One planner and one lane in this thread."""

    def __init__(self, base: Path, *, idle: int = 0) -> None:
        graph, self._seconds = graph_of(idle), itertools.count()
        disk = Unsynced(base)
        self._commits, lanes = Commits(disk), Lanes(16, 1)
        self._commits.make_folders()
        disk.make_folder("segments")
        ids = itertools.count()
        plant = Plant(list(graph.nodes), list(graph.injections), buckets=16, lanes=1)
        ledger = claim(
            self._commits, lambda known: first_commit(graph.outline, known, fence=1, plant=plant, id_="first", at=self._moment())
        )
        settings = Settings(checkpoint_rows=CHECKPOINT_ROWS)
        self.planner = Planner(
            graph.outline, ledger, settings=settings, redo={}, folded=0, new_id=lambda: f"c{next(ids)}", at=self._moment()
        )
        self._source = SegmentWriter(disk, "values", lambda: f"{next(ids)}")
        self._dealer = Dealer(graph, lanes)
        writer = SegmentWriter(disk, "lane0", lambda: f"{next(ids)}")
        self.lane = Lane(graph, 0, lanes, Held(Store(), memory=None), writer, SegmentReader(disk, sleep=time.sleep))
        self._disk, self._attempt, self._numbers = disk, itertools.count(1), itertools.count()
        self._base, self._open = base, ""
        self._join()

    def epoch(self, key: str) -> None:
        self._feed([key])

    def fill(self, keys: int) -> None:
        """Rows for so many keys, made by epochs of many records."""
        for start in range(0, keys, RECORDS_PER_FILL):
            names = [f"k{n}" for n in range(start, min(keys, start + RECORDS_PER_FILL))]
            self._feed(names)

    def size(self) -> int:
        """Bytes of the journal, without the segment that the source writes to."""
        open_segment = self._base / segment_path(self._open)
        return sum(file.stat().st_size for file in self._base.rglob("*") if file.is_file() and file != open_segment)

    def _feed(self, keys: list[str]) -> None:
        numbers = [next(self._numbers) for _ in keys]
        columns = Columns(keys, [b"1"] * len(keys), [ms.Timestamp(NOON + number) for number in numbers], numbers)
        frame = self._source.append(self._dealer.deal("in", "in", 0, columns, lane=NO_LANE), lane=NO_LANE)
        self._open = frame.segment
        fed = Fed("in", [frame], {"": ms.Timestamp(NOON)}, len(keys), positions={"": numbers[-1] + 1}, open_segments=[frame.segment])
        self._act(self.planner.on_fed(fed, self._moment()))
        self.planner.on_logged(self.planner.ledger.number, self._moment())

    def _moment(self) -> Moment:
        return Moment(ms.Timestamp(NOON), next(self._seconds) * 0.001)

    def _join(self) -> None:
        join = self.lane.join(next(self._attempt), "here")
        commit = self._commits.id_of(join.state.at.epoch) if join.state.at.epoch else None
        self._act(self.planner.on_join(join.attempt, join, commit, self._moment()))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(connection, message):
                    answer = self.lane.hear(message)
                    if isinstance(answer, Report):
                        self._act(self.planner.on_report(connection, answer, self._moment()))
                    elif isinstance(answer, Returned):
                        self._act(self.planner.on_returned(connection, answer, self._moment()))
                        self._act(self.planner.on_lost(connection, self._moment()))
                        self._join()
                case Write(commit):
                    assert self._commits.create(commit)
                    self._act(self.planner.on_committed(self._moment()))
                case Fold(_, needed_from):
                    self._commits.compact(Snapshot.of(self.planner.ledger))
                    self._commits.drop_merged(needed_from)
                case Remove(segments):
                    for segment in segments:
                        self._disk.forget(segment_path(segment))
                        self._disk.remove(segment_path(segment))
                case other:
                    raise AssertionError(other)


def compare(what: str, old: Mill, young: Mill, most: float) -> None:
    took: dict[str, list[float]] = {"old": [], "young": []}
    for turn in range(TURNS):
        for name, mill in (("old", old), ("young", young)):
            began = time.process_time()
            for n in range(EPOCHS_PER_TURN):
                mill.epoch(f"k{(turn * EPOCHS_PER_TURN + n) % 1000}")
            took[name].append((time.process_time() - began) / EPOCHS_PER_TURN * 1e6)
    old_, young_ = statistics.median(took["old"]), statistics.median(took["young"])
    at_most(f"an epoch {what}, {old_:.0f} µs against {young_:.0f}", old_ / young_, most)


def grow(mill: Mill, epochs: int) -> list[int]:
    """The sizes of its journal, all the way."""
    sizes = []
    for n in range(epochs):
        mill.epoch(f"k{n % 1000}")
        if n % SIZE_EVERY == SIZE_EVERY - 1:
            sizes.append(mill.size())
    return sizes


def main(epochs: int, keys: int) -> None:
    print("an epoch of one record, process time (the goals are for 10,000,000 epochs and keys: --epochs, --keys)", flush=True)
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        base = Path(folder)
        young = Mill(base / "young")
        for n in range(2_000):
            young.epoch(f"k{n % 1000}")
        compare("with 20 computations that have nothing to do", Mill(base / "idle", idle=20), young, 1.3)
        many = Mill(base / "keys")
        many.fill(keys)
        compare(f"with {keys:,} keys", many, young, 1.3)
        old = Mill(base / "old")
        sizes = grow(old, epochs)
        compare(f"after {epochs:,} epochs", old, young, 1.2)
        first, last = sizes[: YOUNG_EPOCHS // SIZE_EVERY], sizes[-YOUNG_EPOCHS // SIZE_EVERY :]
        if epochs < 2 * YOUNG_EPOCHS:
            print(f"    its journal: too few epochs to compare it with a young one, which has {YOUNG_EPOCHS:,}", flush=True)
            return
        at_most(f"its journal, {max(last) / 2**20:.1f} MB against {max(first) / 2**20:.1f}", max(last) / max(first), 1.2)
