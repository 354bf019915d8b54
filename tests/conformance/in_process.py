"""The mill without Spark: the real planner and real lanes, on a disk in memory, without threads or sockets.

There are two lanes, and each checkpoints after every few rows, so that scenes go through what a long run does: write-back,
joins, redo, records dealt to the other lane.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import millstream as ms
from millstream.core.ledger import Commit, Ledger
from millstream.journal.commits import Commits, Snapshot
from millstream.journal.disk import Disk
from millstream.journal.opening import claim
from millstream.journal.segments import SegmentReader, SegmentWriter, segment_path
from millstream.mill.actions import Action, Close, End, Fed, Fold, Inform, Look, Moment, Remove, Send, Settings, Warn, Write
from millstream.mill.beginning import first_commit, plant_of, rows_to_redo
from millstream.mill.held import Held
from millstream.mill.lane import Lane
from millstream.mill.messages import Failed, Report, Returned, decode_from_lane, decode_to_lane, encode_message
from millstream.mill.planner import Planner
from tests.conformance.journaled import JournaledStage
from tests.journal.simdisk import SimDisk

BUCKETS, LANES = 4, 2
SETTINGS = Settings(checkpoint_rows=5, fold_every=7)
TICK = 0.011  # seconds; longer than an epoch without lanes is put off


class Store:
    """The state that Spark keeps for a lane, and what an attempt has written over it."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes | None] = {}
        self._written: dict[str, bytes | None] = {}

    def get(self, key: str) -> bytes | None:
        return self._written[key] if key in self._written else self._kept.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._written[key] = value

    def remove(self, key: str) -> None:
        self._written[key] = None

    def commit(self) -> None:
        self._kept.update(self._written)
        self._written = {}

    def abort(self) -> None:
        self._written = {}


class InProcessStage(JournaledStage):
    """One run after another on one disk; each message is heard before the next is said."""

    def __init__(self, topology: ms.Topology) -> None:
        super().__init__(topology, buckets=BUCKETS, lanes=LANES)
        self._disk = SimDisk()
        self._commits = Commits(self._disk)
        self._stores = [Store() for _ in range(LANES)]
        self._numbers = itertools.count(1)
        self._seconds = 0.0
        self.checkpoints = 0
        self._begin()

    @property
    def disk(self) -> Disk:
        return self._disk

    def unique(self) -> str:
        return f"{next(self._numbers)}"

    def ledger(self) -> Ledger:
        return self._planner.ledger

    def feed(self, fed: Fed) -> None:
        self._act(self._planner.on_fed(fed, self._moment()))

    def tell_unread(self, injector: str, partitions: list[str]) -> None:
        self._act(self._planner.on_unread(injector, partitions, self._moment()))

    def settle(self) -> None:
        """All messages are heard; and after another tick there is none, and nothing was committed."""
        rested = -1
        while rested != self._planner.ledger.number or not self._planner.idle or self._mail:
            rested = self._planner.ledger.number
            while self._mail:
                self._hear(*self._mail.popleft())
            self._seconds += TICK
            self._act(self._planner.on_tick(self._moment()))

    def take_over(self, while_away: Callable[[], None]) -> None:
        """What was on its way is gone, and so is what lanes held and had not written back."""
        self.close_source()
        while_away()
        self._begin()

    def _begin(self) -> None:
        plant = plant_of(self.graph.outline, buckets=BUCKETS, lanes=LANES)

        def make(ledger: Ledger) -> Commit:
            return first_commit(self.graph.outline, ledger, fence=ledger.fence + 1, plant=plant, id_=self.unique(), at=self._moment())

        ledger = claim(self._commits, make)
        redo = rows_to_redo(self._commits, ledger, lanes=LANES)
        folded, at = self._commits.newest_snapshot(), self._moment()
        self._planner = Planner(self.graph.outline, ledger, settings=SETTINGS, redo=redo, folded=folded, new_id=self.unique, at=at)
        self._lanes: dict[int, Lane] = {}  # by connection
        self._mail: deque[tuple[int, bytes]] = deque()
        self.open_source(ledger)
        for number in range(LANES):
            self._attempt(number)

    def _moment(self) -> Moment:
        return Moment(self.now, self._seconds)

    # Lanes.

    def _attempt(self, number: int, lane: Lane | None = None) -> None:
        """A lane joins: one that returned, with what it holds, or a new one."""
        if lane is None:
            self._stores[number].abort()
            writer = SegmentWriter(self._disk, f"lane{number}", self.unique)
            reader = SegmentReader(self._disk, sleep=lambda seconds: None)
            lane = Lane(self.graph, number, self.lanes, Held(self._stores[number], memory=None), writer, reader)
        connection = next(self._numbers)
        join = lane.join(connection, "here")
        self._lanes[connection] = lane
        commit = self._commits.id_of(join.state.at.epoch) if join.state.at.epoch else None
        self._act(self._planner.on_join(connection, join, commit, self._moment()))

    def _hear(self, connection: int, message: bytes) -> None:
        lane = self._lanes.get(connection)
        if lane is None:
            return
        answer = lane.hear(decode_to_lane(message))
        if answer is not None:
            self._answer(connection, lane, encode_message(answer))

    def _answer(self, connection: int, lane: Lane, answer: bytes) -> None:
        planner, said = self._planner, decode_from_lane(answer)
        if isinstance(said, Report):
            self._act(planner.on_report(connection, said, self._moment()))
        elif isinstance(said, Failed):
            self._act(planner.on_failed(connection, said, self._moment()))
        elif isinstance(said, Returned):
            self._act(planner.on_returned(connection, said, self._moment()))
            self._stores[lane.number].commit()
            self.checkpoints += 1
            del self._lanes[connection]
            self._act(planner.on_lost(connection, self._moment()))
            self._attempt(lane.number, lane)

    # What the planner asks for.

    def _act(self, actions: list[Action]) -> None:
        todo = deque(actions)
        while todo:
            match todo.popleft():
                case Send(connection, message):
                    self._mail.append((connection, encode_message(message)))
                case Close(connection):
                    if (lane := self._lanes.pop(connection, None)) is not None:
                        self._attempt(lane.number)
                case Write(commit):
                    assert self._commits.create(commit)
                    todo.extend(self._planner.on_committed(self._moment()))
                case Remove(segments, _):
                    for segment in segments:
                        self._disk.remove(segment_path(segment))
                case Fold(_, needed_from):
                    self._commits.compact(Snapshot.of(self._planner.ledger))
                    self._commits.drop_merged(needed_from)
                case Look(message) | End(_, message):
                    raise ms.RunFailed(message)
                case Inform(_):
                    pass
                case Warn(message):
                    raise AssertionError(f"nothing here takes long: {message}")
