"""What must hold of a stream processor, each as one function over plain values.

The same functions serve a model check in this process and a checker that reads the log of a run on Spark: both give an
`Epoch` for every epoch that was committed to a `Watch`, and what the timers' own diary says. A function that finds its
invariant broken raises `Broken`, which names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from millstream.core.epoch import Header, Tally
from millstream.core.graph import MILL, Graph
from millstream.core.plan import Ledger, Plan, no_ledger
from millstream.timestamp import END_OF_TIME, START_OF_TIME

Id = tuple[str, int, int]  # table, epoch, sequence; a sequence is bucket << 40, and the place within the bucket


class Logged(NamedTuple):
    """A record as it lies in the log."""

    id: Id
    stream: str
    key: str
    value: bytes
    timestamp: int


@dataclass(frozen=True)
class Epoch:
    """One epoch after it was committed. `waiting` and `arrived` are of the same moment, at or after its commit."""

    ledger: Ledger
    made: Sequence[Logged] = ()  # what it produced
    taken: Sequence[Logged] = ()  # what it delivered: each record once, however many read it
    waiting: Sequence[Logged] = ()  # what lies in the log behind its positions
    arrived: Mapping[str, int] = field(default_factory=dict)  # the records of each stream since the beginning


@dataclass(frozen=True)
class Attempt:
    """What one attempt at an epoch was given: its plan, or what a bucket knows of it, and its records in their order."""

    plan: Plan | Header
    arrivals: Sequence[Any] = ()


@dataclass(frozen=True)
class Row:
    """What is kept for a key: the timers that its state tells of, and those that are there, as times by tag."""

    computation: str
    key: str
    told: Mapping[str, int]
    timers: Mapping[str, int]


class Entry(NamedTuple):
    """A line of a computation's diary: what it did with a timer, and the clocks that it saw."""

    computation: str
    key: str
    does: Literal["set", "cancel", "fire"]
    tag: str
    at: int
    wall: bool
    low_watermark: int
    now: int


Book = dict[tuple[str, str], dict[str, Entry]]  # the pending timers by computation and key, then by tag


class Broken(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: Callable[..., None], what: str) -> None:
        super().__init__(f"{invariant.__name__}: {what}")


def conservation(graph: Graph, epoch: Epoch) -> None:
    """No record is lost and none is made up: what came on the streams that a computation reads was received or still waits,
    and what was received was applied, dropped, diverted or buried."""
    waiting = Counter(record.stream for record in epoch.waiting)
    for name, node in graph.nodes.items():
        tally = epoch.ledger.tallies.get(name, Tally())
        if tally.received != tally.applied + tally.dropped + tally.diverted + tally.dead:
            raise Broken(conservation, f"{name!r} received what went nowhere: {tally}")
        came = sum(epoch.arrived.get(read.stream.name, 0) for read in node.inputs)
        left = sum(waiting[read.stream.name] for read in node.inputs)
        if came != tally.received + left:
            raise Broken(conservation, f"{came} records came for {name!r}; it received {tally.received}, and {left} wait")
    for stream, plan in graph.streams.items():
        if plan.tables == (MILL,) and epoch.ledger.produced.get(stream, 0) != epoch.arrived.get(stream, 0):
            raise Broken(conservation, f"{stream!r} has other records than the ledger counts")


def state_equals_fold(found: Mapping[Any, Any], folded: Mapping[Any, Any]) -> None:
    """What is kept, or was said, is what a plain fold over the same records gives: each had its effect once."""
    for place in {*found, *folded}:
        if found.get(place) != folded.get(place):
            raise Broken(state_equals_fold, f"{place}: found {found.get(place)!r}, folded {folded.get(place)!r}")


def productions_unique_and_gap_free(epoch: int, made: Iterable[Logged]) -> None:
    """The records of an epoch carry its number and are counted through in each bucket, over all streams: a missing number is
    a lost record, a repeated one a doubled record."""
    places: dict[tuple[str, int], list[int]] = {}
    for record in made:
        table, of, sequence = record.id
        if of != epoch:
            raise Broken(productions_unique_and_gap_free, f"{record.id} was committed in epoch {epoch}")
        places.setdefault((table, sequence >> 40), []).append(sequence & ((1 << 40) - 1))
    for bucket, found in places.items():
        if sorted(found) != list(range(len(found))):
            raise Broken(productions_unique_and_gap_free, f"epoch {epoch}, bucket {bucket}: {sorted(found)}")


def same_bytes_for_the_same_id(first: Iterable[Logged], again: Iterable[Logged]) -> None:
    """An id stands for one content, for ever: who has acted on a record will find the same one under its id."""
    later = {record.id: record for record in again}
    for record in first:
        if later.get(record.id) != record:
            raise Broken(same_bytes_for_the_same_id, f"{record} became {later.get(record.id)}")


def one_epoch_a_row(rows: Iterable[Row]) -> None:
    """State and timers of a key are from the same epoch. The probe keeps in its state which timers it has, so both must agree."""
    for row in rows:
        if row.told != row.timers:
            raise Broken(one_epoch_a_row, f"{row.computation!r}, key {row.key!r}: told {row.told}, has {row.timers}")


def low_watermarks_monotone(before: Ledger, after: Ledger) -> None:
    """A low watermark is a promise, and the clock of the epochs is one too: none moves back."""
    if after.plan.now < before.plan.now:
        raise Broken(low_watermarks_monotone, f"now went back from {before.plan.now} to {after.plan.now}")
    for name, low_watermark in before.plan.low_watermarks.items():
        if after.plan.low_watermarks[name].input < low_watermark.input:
            raise Broken(low_watermarks_monotone, f"that of {name!r} went back to {after.plan.low_watermarks[name].input}")
    for name, promise in before.plan.promises.items():
        if after.plan.promises[name] < promise:
            raise Broken(low_watermarks_monotone, f"the promise of {name!r} went back to {after.plan.promises[name]}")


def low_watermarks_below_pending_work(graph: Graph, before: Epoch, after: Epoch) -> None:
    """Nothing that still comes is below a low watermark, but what is late already; and all of that is counted."""
    for name, node in graph.nodes.items():
        last, (input, output) = _input(before.ledger, name), _both(after.ledger, name)
        bounds = {f"the promise of {other!r}": after.ledger.plan.promises.get(other, START_OF_TIME) for other in node.injectors}
        bounds |= {f"the output of {other!r}": _both(after.ledger, other)[1] for other in node.producers}
        for what, bound in bounds.items():
            if input > max(last, bound):
                raise Broken(low_watermarks_below_pending_work, f"{name!r} is at {input}, after {what} at {bound}")
        read = Counter(read.stream.name for read in node.inputs)
        for record in after.waiting:
            if record.stream in read and last <= record.timestamp < input:
                raise Broken(low_watermarks_below_pending_work, f"{name!r} is at {input}, after {record}")
        came = [record.timestamp for record in after.taken for _ in range(read[record.stream])]
        held = min(before.ledger.held(name), after.ledger.held(name), *came, input)
        if output > held:
            raise Broken(low_watermarks_below_pending_work, f"the output of {name!r} is at {output}, after what it holds at {held}")
        late = sum(timestamp < last for timestamp in came)
        counted = after.ledger.tallies.get(name, Tally()).late - before.ledger.tallies.get(name, Tally()).late
        if late != counted:
            raise Broken(low_watermarks_below_pending_work, f"{late} records were late for {name!r}, {counted} were counted")


def timers_in_order(book: Book, diary: Iterable[Entry]) -> None:
    """A timer fires when its clock is there, and of those of a key that are due, the earliest first."""
    book = _copy(book)
    for entry in diary:
        others = book.get((entry.computation, entry.key), {})
        if entry.does == "fire":
            if not _due(entry, entry.low_watermark, entry.now):
                raise Broken(timers_in_order, f"before its time: {entry}")
            earlier = [other for other in others.values() if _due(other, entry.low_watermark, entry.now) and _rank(other) < _rank(entry)]
            if earlier:
                raise Broken(timers_in_order, f"{entry} before {earlier}")
        write(book, entry)


def every_timer_once(book: Book, diary: Iterable[Entry], after: Ledger) -> None:
    """What is set and not replaced or cancelled fires once: only pending timers fire, none stays that is due, and the
    rows hold as many as the diary tells of."""
    book = _copy(book)
    for entry in diary:
        if entry.does == "fire":
            pending = book.get((entry.computation, entry.key), {}).get(entry.tag)
            if pending is None or (pending.at, pending.wall) != (entry.at, entry.wall):
                raise Broken(every_timer_once, f"{entry} fired; pending was {pending}")
        write(book, entry)
    pending = [entry for of in book.values() for entry in of.values()]
    for entry in pending:
        if _due(entry, _input(after, entry.computation), after.plan.now):
            raise Broken(every_timer_once, f"{entry} is due and did not fire by epoch {after.plan.epoch}")
    counts = Counter(entry.computation for entry in pending)
    for name in {entry.computation for entry in diary} | set(counts):
        kept = sum(of[name].timers for of in after.reports.values() if name in of)
        if kept != counts[name]:
            raise Broken(every_timer_once, f"{name!r} keeps {kept} timers; its diary tells of {counts[name]}")


def contiguous_ledger(before: Ledger, after: Ledger) -> None:
    """Epochs follow each other without a gap, go on where the last one stopped reading, and forget no count."""
    if after.plan.epoch != before.plan.epoch + 1:
        raise Broken(contiguous_ledger, f"epoch {after.plan.epoch} follows {before.plan.epoch}")
    for table, position in before.plan.positions.items():
        if after.plan.positions[table] < position:
            raise Broken(contiguous_ledger, f"the position in {table!r} went back from {position} to {after.plan.positions[table]}")
    for name, tally in before.tallies.items():
        if any(getattr(after.tallies[name], what) < getattr(tally, what) for what in Tally.__struct_fields__):
            raise Broken(contiguous_ledger, f"counts of {name!r} went back to {after.tallies[name]}")


def equal_input_on_replay(first: Attempt, again: Attempt) -> None:
    """An epoch that is run again sees the same clocks and the same records, in the same order, under the same ids."""
    if first.plan != again.plan:
        raise Broken(equal_input_on_replay, f"planned {first.plan}, then {again.plan}")
    if list(first.arrivals) != list(again.arrivals):
        raise Broken(equal_input_on_replay, f"epoch {first.plan.epoch} was given other records: {first.arrivals}, then {again.arrivals}")


def readers_see_prefixes(earlier: Sequence[Id], later: Sequence[Id]) -> None:
    """What a reader saw of a stream is how it begins, whenever it is read again: nothing is taken back or slipped in."""
    if list(later[: len(earlier)]) != list(earlier):
        raise Broken(readers_see_prefixes, f"a reader saw {list(earlier)}, then {list(later)}")


def lag_returns_to_zero(graph: Graph, epoch: Epoch) -> None:
    """When the input has ended and nothing fails any more, all work is done: nothing waits, no timer that can fire is left."""
    if epoch.waiting:
        raise Broken(lag_returns_to_zero, f"{len(epoch.waiting)} records wait, first {epoch.waiting[0]}")
    for name in graph.nodes:
        if _both(epoch.ledger, name) != (END_OF_TIME, END_OF_TIME):
            raise Broken(lag_returns_to_zero, f"{name!r} stays at {_both(epoch.ledger, name)}")
        for of in epoch.ledger.reports.values():
            if name in of and of[name].minima.due(END_OF_TIME, epoch.ledger.plan.now):
                raise Broken(lag_returns_to_zero, f"a timer of {name!r} is due: {of[name].minima}")


INVARIANTS: tuple[Callable[..., None], ...] = (
    conservation,
    state_equals_fold,
    productions_unique_and_gap_free,
    same_bytes_for_the_same_id,
    one_epoch_a_row,
    low_watermarks_monotone,
    low_watermarks_below_pending_work,
    timers_in_order,
    every_timer_once,
    contiguous_ledger,
    equal_input_on_replay,
    readers_see_prefixes,
    lag_returns_to_zero,
)


class Watch:
    """Sees a run epoch by epoch, from its first, and checks all that can be said of it from outside."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._book: Book = {}
        self._read: dict[str, list[Logged]] = {}
        self.last = Epoch(no_ledger(graph))

    def see(self, epoch: Epoch, diary: Sequence[Entry] = ()) -> None:
        """The next epoch, and what the diaries of the computations got in it, in the order of production."""
        before, after = self.last.ledger, epoch.ledger
        contiguous_ledger(before, after)
        low_watermarks_monotone(before, after)
        low_watermarks_below_pending_work(self._graph, self.last, epoch)
        conservation(self._graph, epoch)
        productions_unique_and_gap_free(after.plan.epoch, epoch.made)
        timers_in_order(self._book, diary)
        every_timer_once(self._book, diary, after)
        for entry in diary:
            write(self._book, entry)
        self.last = epoch

    def read(self, stream: str, records: Sequence[Logged]) -> None:
        """All that a reader of the stream sees now."""
        earlier = self._read.get(stream, [])
        readers_see_prefixes([record.id for record in earlier], [record.id for record in records])
        same_bytes_for_the_same_id(earlier, records)
        self._read[stream] = list(records)

    def end(self) -> None:
        """The input has ended, and the run has come to rest."""
        lag_returns_to_zero(self._graph, self.last)


def replayed(first: Attempt, made: Sequence[Logged], again: Attempt, made_again: Sequence[Logged]) -> None:
    """Two attempts at one epoch are given the same, and make the same: no more and no less."""
    equal_input_on_replay(first, again)
    same_bytes_for_the_same_id(made, made_again)
    same_bytes_for_the_same_id(made_again, made)


def write(book: Book, entry: Entry) -> None:
    """Take a line of a diary into the book of pending timers."""
    of = book.setdefault((entry.computation, entry.key), {})
    if entry.does == "set":
        of[entry.tag] = entry
    else:
        of.pop(entry.tag, None)
    if not of:
        del book[entry.computation, entry.key]


def _copy(book: Book) -> Book:
    return {place: dict(of) for place, of in book.items()}


def _due(entry: Entry, low_watermark: int, now: int) -> bool:
    return entry.at <= (now if entry.wall else low_watermark) and entry.at < END_OF_TIME


def _rank(entry: Entry) -> tuple[int, bool, str]:
    """The order in which timers that are due fire: at the same time, those of the low watermark first, then by tag."""
    return entry.at, entry.wall, entry.tag


def _input(ledger: Ledger, name: str) -> int:
    return _both(ledger, name)[0]


def _both(ledger: Ledger, name: str) -> tuple[int, int]:
    found = ledger.plan.low_watermarks.get(name)
    return (int(START_OF_TIME), int(START_OF_TIME)) if found is None else (int(found.input), int(found.output))
