"""The planner's machine on a desk: lanes, sources, disk and time are moved by hand, and what it asks for is kept."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

import millstream as ms
from millstream.core.epoch import BucketReport as BucketReport
from millstream.core.epoch import Summary, Tally
from millstream.core.graph import Graph, compile_topology
from millstream.core.ledger import Checkpoint, Commit, Identity, Ledger
from millstream.core.parts import NO_LANE, Frame, Part, RowsPart
from millstream.core.row import Minima
from millstream.mill.actions import Action, Fed, Moment, Send, Settings, Write
from millstream.mill.beginning import first_commit, plant_of
from millstream.mill.messages import Joining, Redo, Report, Returned, TakeCheckpoint, ToLane, Work
from millstream.mill.planner import Planner
from millstream.timestamp import END_OF_TIME, Timestamp
from tests.conformance.scenes import Obedient, Relay, at, inject

M = TypeVar("M")
CLOCK = at(0)


class Unkept(Obedient):
    """What it says is not in the log."""

    said: ms.Output[str] = ms.output(keep=False)


def graph_of(**options: Any) -> Graph:
    """Events that are read by `it`, whose words are read by `relay`; `said` is delivered to nowhere as `out`."""
    topology = ms.Topology("desk")
    deliver, keep = options.pop("deliver", False), options.pop("keep", True)
    events, it, relay = inject(topology, **options), Obedient() if keep else Unkept(), Relay()
    topology.compute("it", it).reads(events)
    topology.compute("relay", relay).reads(it.said)
    if deliver:
        topology.deliver("out", it.said, ms.function(lambda step, records: None))
    return compile_topology(topology)


class Desk:
    """A planner of one fence. Commits become durable at once, unless `disk_waits`."""

    def __init__(
        self,
        graph: Graph | None = None,
        *,
        lanes: int = 2,
        ledger: Ledger | None = None,
        clock: Timestamp = CLOCK,
        folded: int = 0,
        **settings: Any,
    ) -> None:
        self.graph = graph or graph_of()
        self.clock, self.seconds = clock, 1_000.0
        self.ledger = ledger or Ledger()
        self.commits: list[Commit] = []
        self.asked: list[Action] = []  # all that the planner asked for, but for what is said to lanes
        self.said: dict[int, list[ToLane]] = {}  # by connection
        self.offsets = itertools.count(0, 100)
        self.connections = itertools.count(1)
        self.attempts = itertools.count(100)
        self.ids = itertools.count(1)
        self.sitting: dict[int, int] = {}  # by lane, the connection that joined last
        self.disk_waits = False
        plant = plant_of(self.graph.outline, buckets=2 * lanes, lanes=lanes)
        first = first_commit(self.graph.outline, self.ledger, fence=self.ledger.fence + 1, plant=plant, id_=self._id(), at=self.now)
        self.ledger.apply(first)
        chosen = Settings(**settings)
        self.planner = Planner(self.graph.outline, self.ledger, settings=chosen, redo={}, folded=folded, new_id=self._id, at=self.now)

    def _id(self) -> str:
        return f"c{next(self.ids)}"

    @property
    def now(self) -> Moment:
        return Moment(self.clock, self.seconds)

    @property
    def number(self) -> int:
        return self.planner.ledger.number

    # Events.

    def act(self, actions: list[Action]) -> list[Action]:
        """Do what was asked; returns it, with what followed from its commits."""
        done: list[Action] = []
        todo = list(actions)
        while todo:
            action = todo.pop(0)
            done.append(action)
            if isinstance(action, Send):
                self.said.setdefault(action.connection, []).append(action.message)
                continue
            self.asked.append(action)
            if isinstance(action, Write):
                self.commits.append(action.commit)
                if not self.disk_waits:
                    todo += self.planner.on_committed(self.now)
        return done

    def tick(self, seconds: float = 0.0) -> list[Action]:
        self.seconds += seconds
        self.clock = Timestamp(self.clock + int(seconds * 1_000_000))
        return self.act(self.planner.on_tick(self.now))

    def join(self, lane: int = 0, *, attempt: int | None = None, state: Checkpoint | None = None, commit: str | None = None) -> int:
        """A lane joins, by default with what it last checkpointed; returns its connection."""
        connection = next(self.connections)
        state = state or self.planner.ledger.checkpoints.get(lane, Checkpoint())
        join = Joining(lane, next(self.attempts) if attempt is None else attempt, state, "somewhere")
        known = {c.number: c.id for c in self.commits}
        self.sitting[lane] = connection
        self.act(self.planner.on_join(connection, join, commit or known.get(state.at.epoch, state.at.commit or None), self.now))
        return connection

    def lose(self, lane: int = 0) -> list[Action]:
        return self.act(self.planner.on_lost(self.sitting[lane], self.now))

    def feed(
        self,
        records: int = 1,
        *,
        lane: int = 0,
        upto: int | None = None,
        parts: int = 1,
        second: int = 1,
        position: int | None = None,
        **fed: Any,
    ) -> list[Action]:
        """So many records in each part, all for one lane, of this second; and how far the source is complete."""
        offsets = [next(self.offsets) for _ in range(parts)] if records else []
        made = [Part(offset, 10 * records, 0, lane, "events", "", "events", 0, records, at(second)) for offset in offsets]
        frames = [Frame("values", NO_LANE, made)] if made else []
        marks = {} if upto is None else {"": at(upto)}
        positions: dict[str, int | str] = {} if position is None else {"": position}
        return self.act(self.planner.on_fed(Fed("events", frames, marks, records * parts, positions=positions, **fed), self.now))

    def report(self, lane: int = 0, *, productions: int = 0, rows: int = 0, wall: Timestamp = END_OF_TIME, **changed: Any) -> list[Action]:
        """A lane answers the last epoch that it was given."""
        run = self.last(lane, Work)
        epoch = run.header.epoch
        parts = [Part(next(self.offsets), 10, 0, lane, "it.said", "", "it.said", epoch, productions, at(1))] if productions else []
        rows_part = RowsPart(next(self.offsets), 20 * rows, 0, rows) if rows else None
        frames = [Frame(f"lane{lane}", lane, parts, rows_part)] if parts or rows_part else []
        summary = Summary(2 * lane, {"it": BucketReport(Minima(wall=wall), rows, 0)}, {"it": Tally(received=1, applied=1)})
        report = Report(**{"epoch": epoch, "try_number": run.try_number, "frames": frames, "summaries": [summary], **changed})
        return self.act(self.planner.on_report(self.sitting[lane], report, self.now))

    def checkpoint(self, lane: int = 0) -> int:
        """A lane that was told to writes back, returns, and joins again with that."""
        take, seat = self.last(lane, TakeCheckpoint), self.planner.seats[lane]
        self.act(self.planner.on_returned(self.sitting[lane], Returned(take.at, 1), self.now))
        self.lose(lane)
        return self.join(lane, state=Checkpoint(take.at, seat.state.at), commit=take.at.commit)

    # What was said.

    def last(self, lane: int, kind: type[M]) -> M:
        """The last message to a lane, which is of this kind."""
        message = self.said[self.sitting[lane]][-1]
        assert isinstance(message, kind), message
        return message

    def heard(self, lane: int, kind: type[M]) -> list[M]:
        """All of a kind that was said to whoever sits there now."""
        return [message for message in self.said.get(self.sitting[lane], []) if isinstance(message, kind)]

    def asked_for(self, kind: type[M]) -> list[M]:
        return [action for action in self.asked if isinstance(action, kind)]


def redo_epochs(redo: list[Redo]) -> list[int]:
    return [each.epoch for each in redo]


def identity(desk: Desk, epoch: int, attempt: str = "1") -> Identity:
    """The checkpoint of a commit that this desk has made."""
    return Identity(epoch, next(commit.id for commit in desk.commits if commit.number == epoch), attempt)
