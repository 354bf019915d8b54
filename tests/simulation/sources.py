"""Sources that a thread of the driver reads, by turns as `millstream.sources.thread` does: it feeds batches, and offers pieces to lanes."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from millstream.core.graph import Graph
from millstream.core.lanes import Lanes
from millstream.core.ledger import Commit
from millstream.core.parts import NO_LANE, Dealt, Slice
from millstream.core.route import Dealer
from millstream.errors import Unreachable
from millstream.journal.names import VALUES, ByThread, prefix_of
from millstream.journal.segments import SegmentWriter
from millstream.mill.actions import Action, Fed, Moment
from millstream.mill.lane import ReadRange
from millstream.mill.messages import Range
from millstream.mill.planner import Planner
from millstream.timestamp import Timestamp
from tests.core.cases import SECOND, START
from tests.simulation.inputs import columns_of, complete_upto
from tests.simulation.profile import Profile
from tests.simulation.scene import QUIET, Entry
from tests.simulation.turns import Event

if TYPE_CHECKING:
    from tests.simulation.driver import Run
    from tests.simulation.world import World


PlannerEvent = Callable[[Planner, Moment], list[Action]]


class Way(enum.Enum):
    """What the source gives."""

    BATCHES = "batches"
    PIECES = "pieces"
    BOTH = "both"


class SimSource:
    """What there is, by partition: each is in order for itself. It may be out of reach for a while, of the driver, the lanes, or both."""

    def __init__(self, rng: random.Random, profile: Profile, name: str, entries: list[Entry]) -> None:
        self.name = name
        self.way = rng.choice((Way.PIECES, Way.BOTH)) if rng.randrange(100) < profile.ranged else Way.BATCHES
        count = rng.choice((1, 2, 3)) if profile.partitions is None else profile.partitions
        self.partitions = {"": entries} if count == 1 else _shared_out(rng, entries, [f"p{n}" for n in range(count)])
        self.driver_reaches = self.lanes_reach = True

    def origin(self, partition: str) -> str:
        """Of the ids of its records."""
        return f"{self.name}/{partition}" if partition else self.name

    def events(self, world: World) -> Iterator[Event]:
        who = ("source", self.name)
        if not (self.driver_reaches and self.lanes_reach):
            yield Event(0.7, f"{self.name} is reached again", who, world, self.come_back)
        elif world.profile.unreachable:
            yield Event(world.profile.unreachable * 0.3, f"{self.name} is out of reach", who, world, lambda: self._go(world))

    def _go(self, world: World) -> None:
        self.driver_reaches, self.lanes_reach = world.rng.choice(((False, True), (True, False), (False, False)))
        world.say(f"  driver reaches it: {self.driver_reaches}, lanes: {self.lanes_reach}")

    def come_back(self) -> None:
        self.driver_reaches = self.lanes_reach = True


def _shared_out(rng: random.Random, entries: list[Entry], names: list[str]) -> dict[str, list[Entry]]:
    """Items go to any; what the whole is complete up to, each of them is; and each knows more of itself than the whole."""
    found: dict[str, list[Entry]] = {name: [] for name in names}
    for entry in entries:
        for name in names if entry.item is None else [rng.choice(names)]:
            found[name].append(entry)
    return {name: list(_with_promises(rng, of)) for name, of in found.items()}


def _with_promises(rng: random.Random, entries: list[Entry]) -> Iterator[Entry]:
    for place, entry in enumerate(entries, 1):
        yield entry
        if rng.random() < 0.3:
            yield Entry(complete=min((later.item.at for later in entries[place:] if later.item is not None), default=START + 9 * SECOND))


class Given(NamedTuple):
    """Entries of a partition, for the driver to feed or for a lane to read."""

    partition: str
    begin: int
    end: int
    is_piece: bool


class ThreadInput:
    """The thread of a source in one run. What no commit has is asked for again by the next run, or after it was out of reach."""

    def __init__(self, world: World, run: Run, source: SimSource) -> None:
        self.world, self.run, self.source, self.name = world, run, source, source.name
        known = run.planner.ledger.sources.get(self.name)
        self.positions = {} if known is None else {name: int(upto) for name, upto in known.positions.items()}
        self._dealer = Dealer(run.graph, Lanes(world.sizes.buckets, world.sizes.lanes))
        self._writer = SegmentWriter(world.disk, prefix_of(ByThread(VALUES, run.fence)), world.unique)
        self._segments: list[str] = []
        self._reader: dict[str, int] | None = None  # by partition, how far it has given; None while it is not open
        self._given: list[Given] = []  # and not passed on
        self.pieces = 0  # offered and not read
        self._hidden: set[str] = set()  # partitions of which more comes while nobody listens: nobody knows of it
        self._told: list[str] | None = []
        self._begun = self._ended = False

    def events(self) -> Iterator[Event]:
        for what, act in self._next():
            who, label = ("reads", self.run.number, self.name), f"run {self.run.number} {what} {self.name} at {self.positions}"
            yield Event(1.0, label, who, self.run.process, lambda act=act: self.run.guarded(act))

    def _next(self) -> Iterator[tuple[str, Callable[[], None]]]:
        if self._ended or self.run.stopping:
            return
        if not self._begun:
            yield "begins to read", self._begin
        elif self._reader is None:
            if self.source.driver_reaches and self.may_open():
                yield "opens", self._open
        elif self._given:
            if self._given[0].is_piece:
                yield "offers", self._offer
            elif self.may_feed():
                yield "feeds", self._feed
        elif not self.source.driver_reaches:
            yield "cannot reach", self._close
        elif self.lag():
            yield "asks", self._poll
        elif not self.pieces and (self.name != QUIET or self.world.healed):  # that one stays open, and says nothing
            yield "has read all of", self._end

    def may_open(self) -> bool:
        """Of what lanes read only commits say how far."""
        return not self.pieces

    def may_feed(self) -> bool:
        """What a batch holds comes after all pieces before it."""
        return not self.pieces and self.run.planner.has_room

    def lag(self) -> set[str]:
        """Partitions of which something was not given."""
        reader = self._reader or {}
        unread = {name for name, entries in self.source.partitions.items() if reader.get(name, 0) < len(entries)}
        return unread - self._hidden

    def notify(self, commit: Commit) -> None:
        change = commit.sources.get(self.name)
        if change is not None and change.pieces:
            self.pieces -= change.pieces
            self.positions.update({name: int(upto) for name, upto in change.positions.items()})

    # Turns.

    def _begin(self) -> None:
        self._begun = True
        self.tell(None)

    def _open(self) -> None:
        self._reader, self._hidden = dict(self.positions), set()
        self.tell(self.lag())

    def _close(self) -> None:
        self._reader = None
        self.tell(None)

    def _poll(self) -> None:
        rng, reader = self.world.rng, self._reader
        assert reader is not None
        for _ in range(rng.choice((1, 1, 2, 4))):
            if not (lag := sorted(self.lag())):
                break
            partition, is_piece = rng.choice(lag), self.source.way is Way.PIECES or (self.source.way is Way.BOTH and rng.random() < 0.5)
            begin = reader.get(partition, 0)
            reader[partition] = min(len(self.source.partitions[partition]), begin + rng.choice((1, 2, 4, 9)))
            self._given.append(Given(partition, begin, reader[partition], is_piece))
        self.tell(self.lag() | self.given())
        if self.world.chance(self.world.profile.unreachable * 0.3):
            self._break_off()

    def _break_off(self) -> None:
        """What it gave was the last before it is out of reach. The rest comes meanwhile; each partition that has a mark keeps to it."""
        self.world.say(f"  {self.name} breaks off")
        self.source.driver_reaches = False
        for name in self.lag():
            entries = self.source.partitions[name][: (self._reader or {}).get(name, 0)]
            if any(entry.complete is not None for entry in entries):
                self._hidden.add(name)

    def given(self) -> set[str]:
        """Partitions of which something was given and not passed on: until then the planner knows nothing of it."""
        return {each.partition for each in self._given}

    def _take_step(self) -> list[Given]:
        """What goes at once."""
        step = list(next(groupby(self._given, key=lambda each: each.is_piece))[1])
        del self._given[: len(step)]
        return step

    def _offer(self) -> None:
        rng, ranges = self.world.rng, list[Range]()
        for each in self._take_step():
            content = msgspec.msgpack.encode((each.begin, each.end))
            ranges.append(Range(self.name, rng.randrange(4), rng.choice((1, 10, 1 << 22)), content, each.partition))
        self.pieces += len(ranges)
        self._pass_on("offered", lambda planner, at: planner.on_offered(ranges, at))

    def _feed(self) -> None:
        dealt, fed = list[Dealt](), Fed(self.name, [], {})
        for each in self._take_step():
            entries = list(enumerate(self.source.partitions[each.partition]))[each.begin : each.end]
            made = _slice(self.source, self._dealer, each.partition, entries, each.end)
            dealt += made.dealt
            fed.add(made)
        if dealt:
            fed.frames = [self._writer.append(dealt, lane=NO_LANE)]
            self._segments = [fed.frames[0].segment]
        fed.open_segments = self._segments
        self.positions.update({name: int(upto) for name, upto in fed.positions.items()})
        self._pass_on("fed", lambda planner, at: planner.on_fed(fed, at))

    def _pass_on(self, what: str, event: PlannerEvent) -> None:
        if not self._hidden or self._given:
            self.run.desk.put(f"what {self.name} {what}", event)
            if not self._given:
                self.tell(self.lag())
            return
        # At once: if time went by in between, who listens would call it silence, and rightly so.
        self._reader, self._told, left = None, None, sorted(self.lag())

        def all_of_it(planner: Planner, at: Moment) -> list[Action]:
            events = event, lambda p, at: p.on_unread(self.name, left, at), lambda p, at: p.on_unread(self.name, None, at)
            return [action for each in events for action in each(planner, at)]

        self.run.desk.put(f"what {self.name} {what}", all_of_it)

    def tell(self, unread: set[str] | None) -> None:
        """Before anything is fed: what was not read yet holds the promise."""
        partitions = None if unread is None else sorted(unread)
        if partitions != self._told:
            self._told = partitions
            self.run.desk.put(f"what {self.name} has unread", lambda planner, at: planner.on_unread(self.name, partitions, at))

    def _end(self) -> None:
        self._ended = True
        self.run.desk.feed(Fed(self.name, [], {}, positions=dict(self.positions), finished=True))


def _slice(source: SimSource, dealer: Dealer, partition: str, entries: Sequence[tuple[int, Entry]], upto: int) -> Slice:
    columns = columns_of(entries)
    dealt = dealer.deal(source.name, source.origin(partition), 0, columns, lane=NO_LANE)
    complete = complete_upto(entries)
    return Slice(dealt, {} if complete is None else {partition: complete}, len(columns), 0, {partition: upto})


def reader_of(world: World, graph: Graph) -> ReadRange:
    """What a lane reads of them, an entry or two at a time; it may find that a source is out of reach before any of these, or after."""
    dealer = Dealer(graph, Lanes(world.sizes.buckets, world.sizes.lanes))

    def read(of: Range, now: Timestamp) -> Iterator[Slice]:
        source = world.sources[of.injector]
        begin, end = msgspec.msgpack.decode(of.content)
        entries = list(enumerate(source.partitions[of.partition]))[begin:end]
        step = world.rng.choice((1, 2, 9))
        reaches = source.lanes_reach or world.rng.random() < 0.3  # of a source that is many machines, some
        fails_at = None if reaches else world.rng.randint(0, len(entries))
        for first in range(0, len(entries), step):
            if fails_at is not None and first >= fails_at:
                raise Unreachable(f"{source.name} is out of reach")
            some = entries[first : first + step]
            yield _slice(source, dealer, of.partition, some, begin + first + len(some))
        if fails_at is not None:
            raise Unreachable(f"{source.name} is out of reach")

    return read
