"""Planning an epoch on the journal: which parts it takes, how far the low watermarks move, which timers may be due."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from millstream.core.epoch import Header
from millstream.core.lanes import Lanes
from millstream.core.ledger import Ledger, Reader, SourceChange, SourceProgress
from millstream.core.low_watermark import Known, LowWatermark, Mark, advance, input_of, is_idle, next_idle, promise
from millstream.core.outline import Outline
from millstream.core.parts import Part, injector_of
from millstream.core.standing import Standing
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Duration, Timestamp

NOBODY: Mapping[str, Timestamp] = {}  # is listened to
UNKNOWN = SourceProgress()  # of which no commit says anything


class Limits(msgspec.Struct, frozen=True):
    """How much an epoch takes at most; one part is always taken, or nothing would ever move."""

    records: int
    size: int


class Waiting(NamedTuple):
    """A part that no commit has taken, and the epoch that named it."""

    epoch: int
    segment: str
    part: Part


class _Queue:
    """Parts of one stream for one lane and, where it has parts of its own, one reader; in the order in which they came."""

    __slots__ = ("computations", "falling", "injected", "keeps_back", "parts", "timeless")

    def __init__(self, computations: tuple[str, ...], *, keeps_back: tuple[str, ...], injected: bool, timeless: bool) -> None:
        self.computations, self.injected, self.timeless = computations, injected, timeless
        self.keeps_back = keeps_back  # those whose low watermark waits for what is in here
        self.parts: deque[Waiting] = deque()
        self.falling: deque[Waiting] = deque()  # those that are older than all that follow them: the first is the oldest of all

    def add(self, waiting: Waiting) -> None:
        self.parts.append(waiting)
        oldest = waiting.part.oldest
        while self.falling and self.falling[-1].part.oldest >= oldest:
            self.falling.pop()
        self.falling.append(waiting)

    def take(self) -> Waiting:
        taken = self.parts.popleft()
        if self.falling[0] is taken:
            self.falling.popleft()
        return taken

    def order(self) -> tuple[bool, int, Timestamp, str, int]:
        """What is under way is finished before new input is let in; inputs advance side by side in event time, and what has none
        is not kept waiting by what is old."""
        head = self.parts[0]
        oldest = START_OF_TIME if self.timeless else head.part.oldest
        return self.injected, 0 if self.injected else head.epoch, oldest, head.part.stream, head.part.lane


class Backlog:
    """Parts that no commit has taken. Taking and asking cost by the streams that have some, not by how much waits."""

    def __init__(self, outline: Outline) -> None:
        self._injectors, self._timeless, self._histories = outline.injectors, outline.timeless, outline.histories
        self._readers: dict[tuple[str, str], tuple[str, ...]] = {}  # by stream and reader (none: the plain ones)
        self._kept_back: dict[tuple[str, str], tuple[str, ...]] = {}  # those among them whose low watermark waits for it
        for read in outline.inputs:
            place = (read.stream, read.reader if read.rekeyed else "")
            self._readers[place] = (*self._readers.get(place, ()), read.computation)
            self._kept_back[place] = (*self._kept_back.get(place, ()), *(() if read.aside else (read.computation,)))
        self._queues: dict[tuple[int, str, str], _Queue] = {}  # only those that have parts
        self.records = self.size = self.parts = 0

    def add(self, waiting: Waiting) -> None:
        part = waiting.part
        readers = self._readers.get((part.stream, part.reader))
        if readers is None:
            return  # whoever read it is gone
        place = (part.lane, part.stream, part.reader)
        queue = self._queues.get(place)
        if queue is None:
            injector, kept_back = injector_of(part.origin), self._kept_back[part.stream, part.reader]
            injected, timeless = injector in self._injectors, injector in self._timeless
            queue = self._queues[place] = _Queue(readers, keeps_back=kept_back, injected=injected, timeless=timeless)
        queue.add(waiting)
        self._count(part, 1)

    def take(self, limits: Limits, here: Collection[int], held: Collection[tuple[str, str]] = ()) -> list[Waiting]:
        """Parts for the next epoch, of the lanes that are here, up to the limits; none of the places that are `held`."""
        taken: list[Waiting] = []
        records = size = 0
        able = {place: queue for place, queue in self._queues.items() if place[0] in here and place[1:] not in held}
        while able:
            place, queue = min(able.items(), key=lambda item: item[1].order()) if len(able) > 1 else next(iter(able.items()))
            part = queue.parts[0].part
            if taken and (records + part.records > limits.records or size + part.length > limits.size):
                break
            taken.append(queue.take())
            records, size = records + part.records, size + part.length
            self._count(part, -1)
            if not queue.parts:
                del able[place], self._queues[place]
        return taken

    def held(self, sources: Mapping[str, SourceProgress]) -> set[tuple[str, str]]:
        """Where the present of a stream waits until a new reader has its history, for all who read the same parts."""
        found = set()
        for name, history in self._histories.items():
            if not sources.get(name, UNKNOWN).finished or any(place[2] == name for place in self._queues):
                found.add(history.place)
        return found

    def give_back(self, taken: Iterable[Waiting]) -> None:
        """What an epoch took that was aborted stands first again."""
        again = list(taken)  # in the order in which it was taken
        places = {(waiting.part.lane, waiting.part.stream, waiting.part.reader) for waiting in again}
        behind = [waiting for place in places if place in self._queues for waiting in self._queues.pop(place).parts]
        for waiting in behind:
            self._count(waiting.part, -1)
        for waiting in (*again, *behind):
            self.add(waiting)

    def oldest(self) -> dict[str, Timestamp]:
        """The oldest record that waits for each computation and keeps it back, where any does."""
        found: dict[str, Timestamp] = {}
        for queue in self._queues.values():
            oldest = queue.falling[0].part.oldest
            for name in queue.keeps_back:
                if oldest < found.get(name, END_OF_TIME):
                    found[name] = oldest
        return found

    def readers(self, part: Part) -> tuple[str, ...]:
        """The computations that a part is for."""
        return self._readers.get((part.stream, part.reader), ())

    def keeps_back(self, part: Part) -> tuple[str, ...]:
        """Those among them whose low watermark waits for it. A stream without event time keeps back none that has one."""
        return self._kept_back.get((part.stream, part.reader), ())

    def lanes(self) -> set[int]:
        """The lanes that something waits for."""
        return {place[0] for place in self._queues}

    def streams(self) -> set[str]:
        """The streams of which something waits."""
        return {place[1] for place in self._queues}

    def _count(self, part: Part, sign: int) -> None:
        self.records += sign * part.records
        self.size += sign * part.length
        self.parts += sign


class Plan(NamedTuple):
    """An epoch before it runs."""

    header: Header
    low_watermarks: dict[str, LowWatermark]  # those that it moves
    promises: dict[str, Timestamp]
    taken: list[Waiting]
    due: dict[str, list[int]]  # by computation, the buckets in which a timer may be due
    idle: list[str] | None = None  # the injectors that are left out, where they are others than before


def plan_epoch(
    outline: Outline,
    ledger: Ledger,
    standing: Standing,
    backlog: Backlog,
    sources: Mapping[str, SourceProgress],
    *,
    clock: Timestamp,
    limits: Limits,
    lanes: Lanes,
    here: Collection[int],
    always: bool = False,
    holding: Collection[str] = (),
    listened: Mapping[str, Timestamp] = NOBODY,
) -> Plan | None:
    """The next epoch; None if nothing is due.

    It is due when a lane that is here has records or a due timer, when the promise of an injector moves the low watermark of
    one of its readers, when the silence of one moves any, or when all low watermarks have reached the end of time and no commit
    says so yet. What waits for a lane that is away keeps the low watermarks back and makes nothing due. `always` makes an epoch
    due all the same. The promise of an injector that is `holding` stays where it is. `listened` says when each injector that
    somebody listens to last spoke, or could have.
    """
    now = max(ledger.now, clock)
    taken = backlog.take(limits, here, backlog.held(sources))
    # Who is silent is asked by the clock that the marks are stamped with, not by the epochs': it may have been set back.
    promises = {
        name: promised(None if name in holding else sources.get(name), ledger.promises.get(name, START_OF_TIME), idle_after, clock)
        for name, idle_after in outline.injectors.items()
        if name not in outline.timeless
    }
    promises.update({name: _end_alone(sources.get(name), ledger.promises.get(name, START_OF_TIME)) for name in outline.timeless})
    idle = idle_injectors(outline, sources, listened, clock=clock, holding=holding)
    low_watermarks, last = standing.solver.solution, ledger.low_watermarks
    delivered: dict[str, Timestamp] = {}
    for waiting in taken:
        oldest, kept_back = waiting.part.oldest, backlog.keeps_back(waiting.part)
        for name in backlog.readers(waiting.part):
            # What has no event time keeps back nobody: what is made of it may be dated with the low watermark of the code that sees it.
            bound = oldest if name in kept_back else max(oldest, input_of(last.get(name)))
            delivered[name] = min(bound, delivered.get(name, END_OF_TIME))
    moved = standing.solver.solve(Known(promises, backlog.oldest(), delivered, standing.holds, idle), last)
    due = standing.due(now, lanes, here)
    other = idle if idle != ledger.idle else None
    promises_moved = any(
        (other is not None or outline.nodes[name].injectors) and lw.input > input_of(last.get(name)) for name, lw in moved.items()
    )
    over = ended(low_watermarks) and bool(moved)
    if not (taken or due or promises_moved or over or always):
        return None
    busy = {**delivered, **due}
    header = Header(ledger.number + 1, now, {n: low_watermarks[n] for n in busy}, {n: input_of(last.get(n)) for n in busy})
    return Plan(header, moved, promises, taken, due, other)


def ended(low_watermarks: Mapping[str, LowWatermark]) -> bool:
    """Nothing will come any more: every low watermark stands at the end of time."""
    return bool(low_watermarks) and all(lw.output == END_OF_TIME for lw in low_watermarks.values())


def promised(source: SourceProgress | None, last: Timestamp, idle_after: Duration | None, clock: Timestamp) -> Timestamp:
    """What an injector promises now."""
    if source is None:
        return last
    return promise(source.marks, last=last, finished=source.finished, idle_after=idle_after, now=clock)


def _end_alone(source: SourceProgress | None, last: Timestamp) -> Timestamp:
    """What an injector without event time promises: that it has ended, and nothing before."""
    return END_OF_TIME if source is not None and source.finished else last


def idle_injectors(
    outline: Outline,
    sources: Mapping[str, SourceProgress],
    listened: Mapping[str, Timestamp],
    *,
    clock: Timestamp,
    holding: Collection[str] = (),
) -> list[str]:
    """Those that are left out of their readers' low watermarks: somebody listened, and none of their partitions spoke for so long."""
    found = []
    for name, idle_after in outline.injectors.items():
        if idle_after is None or name not in listened or name in holding:
            continue
        source = sources.get(name, UNKNOWN)
        heard = [listened[name], *(mark.heard for mark in source.marks.values())]
        if not source.finished and clock - max(heard) > idle_after:
            found.append(name)
    return found


def next_silence(
    outline: Outline, sources: Mapping[str, SourceProgress], clock: Timestamp, listened: Mapping[str, Timestamp] = NOBODY
) -> Timestamp:
    """When the silence of a partition may move a promise, or that of an injector a low watermark, though nothing comes."""
    moments = [END_OF_TIME]
    for name, idle_after in outline.injectors.items():
        marks = sources.get(name, UNKNOWN).marks
        moments.append(next_idle(marks, idle_after=idle_after, now=clock))
        if name in listened:
            moments.append(next_idle({"": Mark(START_OF_TIME, listened[name])}, idle_after=idle_after, now=clock))
    return min(moments)


def hear(source: SourceProgress, complete: Mapping[str, Timestamp], *, clock: Timestamp, idle_after: Duration | None) -> SourceChange:
    """Partitions of a source spoke: their marks move on, never back; those that are idle are forgotten, for they may come and go."""
    moved: dict[str, Mark] = {}
    for partition, upto in complete.items():
        old = source.marks.get(partition)
        moved[partition] = Mark(upto if old is None else advance(old.complete, upto), clock)
    forgotten = [] if idle_after is None else [p for p, mark in source.marks.items() if p not in moved and is_idle(mark, idle_after, clock)]
    return SourceChange(marks=moved, forgotten=forgotten)


def listen_anew(sources: Mapping[str, SourceProgress], *, clock: Timestamp, only: Collection[str] | None = None) -> None:
    """Silence counts only while somebody listened: nobody did before this moment, so every partition has spoken just now."""
    for source in sources.values():
        source.marks = {
            partition: Mark(mark.complete, max(mark.heard, clock)) if only is None or partition in only else mark
            for partition, mark in source.marks.items()
        }


def overlook(sources: Mapping[str, SourceProgress], took: Duration, *, clock: Timestamp) -> None:
    """Nor does the time count in which an epoch read a source: what it read was there before."""
    for source in sources.values():
        source.marks = {name: Mark(mark.complete, max(mark.heard, min(clock, mark.heard + took))) for name, mark in source.marks.items()}


def readers_of(outline: Outline, known: Mapping[str, Reader], *, since: int) -> dict[str, Reader | None]:
    """What a start changes in the readers that the ledger knows: those that came begin with epoch `since`; those that are gone go.

    One that reads under other keys than before, by its code, goes on: what waits keeps the key it was dealt under.
    """
    changes: dict[str, Reader | None] = dict.fromkeys(known)
    for read in outline.inputs:
        old = known.get(read.reader)
        if old is not None and old.rekeyed == read.rekeyed:
            del changes[read.reader]
        else:
            changes[read.reader] = Reader(read.stream, read.rekeyed, since)
    return changes
