"""Sources as the planner sees them: pieces that lanes are to read, what is known to be unread, and who cannot be reached now."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Container, Iterable, Mapping
from typing import NamedTuple

from millstream.core.ledger import SourceProgress
from millstream.core.planning import listen_anew, overlook
from millstream.mill.actions import Moment
from millstream.mill.messages import Fed, Range
from millstream.timestamp import START_OF_TIME, Timestamp

AGAIN_AFTER = 1.0  # seconds, until lanes are given a piece again that they could not reach


class Assigned(NamedTuple):
    """A range, and the lane that reads it in this epoch."""

    lane: int
    range: Range


class Offered:
    """What no commit has read. Ranges of a partition are read in the order in which they were offered: its position is one."""

    def __init__(self, lanes: int, sources: Mapping[str, SourceProgress], clock: Timestamp) -> None:
        """`sources` as commits know them: of one that has positions a thread of the driver will say what it has not read."""
        self._lanes = lanes
        self._waiting: dict[str, dict[str, deque[Range]]] = {}  # by injector and partition; only those that have some
        self._unread: dict[str, list[str]] = {}  # by injector, the partitions of which something is still to be given
        self._unheard = {name for name, source in sources.items() if source.positions}  # nobody has said in this run what they have
        self._deaf = set(self._unheard)  # injectors whose source cannot be reached by the driver
        self._listened = clock  # when it last was
        self.listened: dict[str, Timestamp] = {}  # by injector that spoke in this run: when it last did, or could have
        self._put_off: dict[str, float] = {}  # until when, those whose source a lane could not reach
        self._lost: dict[str, set[str]] = {}  # and the partitions of it
        self.troubles: dict[str, str] = {}  # by injector, why lanes cannot read it

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, ranges: Iterable[Range]) -> None:
        for each in ranges:
            self._waiting.setdefault(each.injector, {}).setdefault(each.partition, deque()).append(each)

    def hear(self, injector: str, partitions: list[str] | None) -> None:
        """What a source has that was not given yet; None if it cannot be reached: then it has what it had."""
        if partitions is None:
            self._deaf.add(injector)
            return
        self.listened.setdefault(injector, self._listened)
        self._unread[injector] = partitions
        self._deaf.discard(injector)
        self._unheard.discard(injector)

    def listen(self, sources: Mapping[str, SourceProgress], clock: Timestamp, *, spoke: str | None = None) -> None:
        """What waits to be read is not silent, and of what nobody hears nobody can say. Asked before any of that changes."""
        since, self._listened = clock - self._listened, clock
        for name in self.listened:
            if name in self._deaf or self._known(name):
                self.listened[name] = clock
        if spoke is not None:
            self.listened[spoke] = clock
        for name, source in sources.items():
            partitions = self._known(name)
            if name in self._deaf:
                listen_anew({name: source}, clock=clock)
            elif "" in partitions:  # it may hold something of each, or of one: none was silent while it waited
                overlook({name: source}, since, clock=clock)
            elif partitions:
                listen_anew({name: source}, clock=clock, only=[mark for mark in source.marks if _partition(mark, partitions) is not None])

    def listen_anew(self, sources: Mapping[str, SourceProgress], clock: Timestamp) -> None:
        """Nobody read any source until now: none was silent."""
        listen_anew(sources, clock=clock)
        self.listened = dict.fromkeys(self.listened, clock)

    def holding(self, sources: Mapping[str, SourceProgress]) -> set[str]:
        """Injectors that promise nothing more now: a partition has something to read, and nobody knows how old it is."""
        found = set()
        for name in {*self._unheard, *self._unread, *self._waiting}:
            source = sources.get(name, SourceProgress())
            unmarked = set(self._known(name)) - {""}
            for mark in source.marks:
                unmarked.discard(_partition(mark, unmarked) or "")
            if (unmarked or name in self._unheard) and not source.finished:
                found.add(name)
        return found

    def _known(self, injector: str) -> Collection[str]:
        return {*self._unread.get(injector, ()), *self._waiting.get(injector, ())}

    # Reading.

    def take(
        self,
        limit: int,
        here: Collection[int],
        sources: Mapping[str, SourceProgress],
        *,
        seconds: float,
        but: Container[str] = (),
    ) -> list[Assigned]:
        """For the next epoch: of each injector in turn `but` some, for lanes that are here, up to so many bytes; one at least.

        Of the partitions of an injector, the one that is furthest behind in event time comes first.
        """
        taken: list[Assigned] = []
        size = 0
        turns: dict[str, Turns] = {}
        while here and (able := [name for name in self._waiting if name not in but and self._put_off.get(name, 0.0) <= seconds]):
            for injector in able:
                queues = self._waiting[injector]
                if injector not in turns:
                    turns[injector] = Turns(sources.get(injector), queues)
                partition = turns[injector].next(queues)
                if taken and size + queues[partition][0].size > limit:
                    return taken
                each = queues[partition].popleft()
                if not queues[partition]:
                    del queues[partition]
                del self._waiting[injector]
                if queues:  # it stands last now, also for the next epoch
                    self._waiting[injector] = queues
                taken.append(Assigned(self._lane_for(each, here), each))
                size += each.size
        return taken

    def give_back(self, taken: Iterable[Assigned]) -> None:
        """What an epoch took that was aborted stands first again."""
        for _, each in reversed(list(taken)):
            self._waiting.setdefault(each.injector, {}).setdefault(each.partition, deque()).appendleft(each)

    def settle(self, read: Iterable[tuple[Assigned, Fed]], at: Moment) -> tuple[list[Fed], list[str]]:
        """What lanes have read of an epoch, and what is to be said: what could not be reached is read later, and so is all that
        comes after it in its partition, for its position is one."""
        kept, again, news = list[Fed](), list[Assigned](), list[str]()
        for assigned, fed in read:
            injector, partition = assigned.range.injector, assigned.range.partition
            self.listened[injector] = at.clock
            behind = any((other.range.injector, other.range.partition) == (injector, partition) for other in again)
            if not fed.unreachable and not behind:
                kept.append(fed)
                self._reached(injector, partition)
                continue
            again.append(assigned)
            if fed.unreachable:
                self._put_off[injector] = at.seconds + AGAIN_AFTER
                self._lost.setdefault(injector, set()).add(partition)
                why = f"injector {injector!r} waits: its source cannot be reached by lane {assigned.lane}: {fed.unreachable}"
                news += [] if injector in self.troubles else [why]
                self.troubles[injector] = why
        self.give_back(again)
        return kept, news

    def _reached(self, injector: str, partition: str) -> None:
        lost = self._lost.get(injector, set())
        lost.discard(partition)
        if not lost:
            self.troubles.pop(injector, None)

    def due_in(self, seconds: float) -> float | None:
        """In how many seconds something is to be tried again."""
        waits = (self._put_off[name] - seconds for name in self._waiting if name in self._put_off)
        return min((wait for wait in waits if wait > 0), default=None)

    def _lane_for(self, each: Range, here: Collection[int]) -> int:
        lane = each.lane % self._lanes
        return lane if lane in here else sorted(here)[each.lane % len(here)]


class Turns:
    """Which partition of an injector is read next, in one epoch: what is read in it is not known yet, so all have their turn."""

    def __init__(self, source: SourceProgress | None, partitions: Collection[str]) -> None:
        self._reads: Counter[str] = Counter()
        self._reached: dict[str, Timestamp] = {}
        for name, mark in ({} if source is None else source.marks).items():
            partition = _partition(name, partitions)
            if partition is not None:
                self._reached[partition] = min(mark.complete, self._reached.get(partition, mark.complete))

    def next(self, partitions: Iterable[str]) -> str:
        chosen = min(partitions, key=lambda name: (self._reads[name], self._reached.get(name, START_OF_TIME)))
        self._reads[chosen] += 1
        return chosen


def _partition(mark: str, partitions: Collection[str]) -> str | None:
    """The partition of a source that a mark is of: its injector may tell apart more within each."""
    while mark not in partitions:
        mark, stroke, _ = mark.rpartition("/")
        if not stroke:
            return None
    return mark
