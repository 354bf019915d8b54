"""What must hold of a stream processor, each as one function over plain values.

The same functions serve a model check in this process and one that follows the journal of a run: both give an `Epoch` for
every epoch that was committed to a `Watch`, and what the timers' own diary says. A function that finds its invariant broken
raises `Broken`, which names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from millstream.change import Change
from millstream.core.epoch import Tally
from millstream.core.graph import Graph
from millstream.core.ledger import Ledger, SourceProgress
from millstream.record import Record
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Timestamp
from tests.observed import Book, Entry, Epoch, Given, Id, Logged, Reached, Row, Visible, reach, write


class Broken(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: Callable[..., None], what: str) -> None:
        super().__init__(f"{invariant.__name__}: {what}")


def conservation(graph: Graph, epoch: Epoch) -> None:
    """No record is lost and none is made up: what came on the streams that a computation reads was received or still waits,
    and what was received was applied, dropped, diverted or dead, or waits for its time."""
    waiting = Counter(given.computation for given in epoch.waiting)
    for name, node in graph.nodes.items():
        tally = epoch.ledger.tallies.get(name, Tally())
        put_off = sum(report.waiting for report in epoch.ledger.reports.get(name, {}).values())
        if tally.received != tally.applied + tally.dropped + tally.diverted + tally.dead + tally.unkeyed + put_off:
            raise Broken(conservation, f"{name!r} received what went nowhere: {tally}, {put_off} wait for their time")
        came = sum(epoch.arrived.get(read.stream.name, 0) for read in node.inputs)
        if came != tally.received + waiting[name]:
            raise Broken(conservation, f"{came} records came for {name!r}; it received {tally.received}, and {waiting[name]} wait")
    for stream in graph.streams:
        source = epoch.ledger.sources.get(stream, SourceProgress())
        counted = source.injected if stream in graph.injections else epoch.ledger.produced.get(stream, 0)
        if counted != epoch.arrived.get(stream, 0):
            raise Broken(conservation, f"{stream!r} has other records than the ledger counts")


def state_equals_fold(found: Mapping[Any, Any], folded: Mapping[Any, Any]) -> None:
    """What is kept, or was said, is what a plain fold over the same records gives: each had its effect once."""
    for place in {*found, *folded}:
        if found.get(place) != folded.get(place):
            raise Broken(state_equals_fold, f"{place}: found {found.get(place)!r}, folded {folded.get(place)!r}")


def productions_unique_and_gap_free(epoch: int, made: Iterable[Logged]) -> None:
    """The records of an epoch carry its number and are counted through in each bucket, over all streams: a missing number is
    a lost record, a repeated one a doubled record."""
    places: dict[int, list[int]] = {}
    for record in made:
        _, of, minor = record.id
        if of != epoch:
            raise Broken(productions_unique_and_gap_free, f"{record.id} was committed in epoch {epoch}")
        places.setdefault(minor >> 40, []).append(minor & ((1 << 40) - 1))
    for bucket, found in places.items():
        if sorted(found) != list(range(len(found))):
            raise Broken(productions_unique_and_gap_free, f"epoch {epoch}, bucket {bucket}: {sorted(found)}")


def same_bytes_for_the_same_id(first: Iterable[Logged], again: Iterable[Logged]) -> None:
    """An id stands for one content, for ever: who has acted on a record will find the same one under its id."""
    later = {record.id: record for record in again}
    for record in first:
        if later.get(record.id) != record:
            raise Broken(same_bytes_for_the_same_id, f"{record} became {later.get(record.id)}")


def one_epoch_per_row(rows: Iterable[Row]) -> None:
    """State and timers of a key are from the same epoch. The probe keeps in its state which timers it has, so both must agree."""
    for row in rows:
        if row.in_state != row.timers:
            raise Broken(one_epoch_per_row, f"{row.computation!r}, key {row.key!r}: told {row.in_state}, has {row.timers}")


def low_watermarks_monotone(before: Ledger, after: Ledger) -> None:
    """A low watermark is a promise, and the clock of the epochs is one too: none moves back."""
    if after.now < before.now:
        raise Broken(low_watermarks_monotone, f"now went back from {before.now} to {after.now}")
    for name in before.low_watermarks:
        if _input(after, name) < _input(before, name):
            raise Broken(low_watermarks_monotone, f"that of {name!r} went back to {_input(after, name)}")
    for name, promise in before.promises.items():
        if after.promises.get(name, START_OF_TIME) < promise:
            raise Broken(low_watermarks_monotone, f"the promise of {name!r} went back to {after.promises.get(name)}")


def outputs_move_back_only_for_cause(before: Epoch, after: Epoch) -> None:
    """An output low watermark bounds what is on its way out. A late record takes it back, and so does a hold set before it;
    nothing else does. Its readers' own do not follow: `low_watermarks_monotone`."""
    for name in before.ledger.low_watermarks:
        (input, was), now = _both(before.ledger, name), _both(after.ledger, name)[1]
        late = [given.record.timestamp for given in after.taken if given.computation == name and given.record.timestamp < input]
        if now < min(was, _held(before.ledger, name), *late):
            raise Broken(outputs_move_back_only_for_cause, f"that of {name!r} went back from {was} to {now}")


class Silence:
    """What idle injectors and inputs without event time make of a graph, found by asking for each computation what lies before it."""

    def __init__(self, graph: Graph, before: Epoch, after: Epoch) -> None:
        self._graph, ledger = graph, after.ledger
        self.timeless = {name for name, injection in graph.injections.items() if injection.is_timeless}
        ended = {name for name in graph.injections if ledger.promises.get(name) == END_OF_TIME}
        all_before = {name: self._before(name) for name in graph.nodes}
        self.untimed = {name for name, of in all_before.items() if of and of <= self.timeless}
        self.resting = set()
        for name, of in all_before.items():
            active = of - ended - self.timeless - set(ledger.idle)
            if not active and ((of - ended) & set(ledger.idle) or (name in self.untimed and of - ended)):
                self.resting.add(name)
        self._number, self._took_aside = ledger.number, {given.computation for given in after.taken if self.is_aside(given)}
        self.passed = {name: int(END_OF_TIME) for name in graph.nodes}
        for _ in graph.nodes:
            self.passed = {name: self._passes(name, before, after) for name in graph.nodes}

    def _before(self, computation: str) -> set[str]:
        """The injectors whose records reach it, near or far."""
        seen, ahead = {computation}, [computation]
        while ahead:
            more = [producer for producer in self._graph.nodes[ahead.pop()].producers if producer not in seen]
            seen |= set(more)
            ahead += more
        return {injector for name in seen for injector in self._graph.nodes[name].injectors}

    def _passes(self, name: str, before: Epoch, after: Epoch) -> int:
        """Up to where it lets its readers go: its output low watermark, or, where it rests, what it has still to do."""
        if name not in self.resting:
            return _both(after.ledger, name)[1]
        last = _input(before.ledger, name)
        waits = [g.record.timestamp for g in after.waiting if g.computation == name and g.record.timestamp >= last]
        comes = [self.passed[producer] for producer in self._graph.nodes[name].producers]
        came = [given.record.timestamp for given in after.taken if given.computation == name]
        return min(max(last, min([*waits, *comes], default=int(END_OF_TIME))), *came, _held(before.ledger, name))

    def is_timeless(self, stream: str) -> bool:
        return stream in self.timeless or (stream not in self._graph.injections and stream.rpartition(".")[0] in self.untimed)

    def has_no_end(self, computation: str) -> bool:
        """Whether it has no event time, and what it reads goes on."""
        return computation in self.untimed and computation in self.resting

    def may_be_past(self, given: Given) -> bool:
        """Whether nobody waits for it: it has no event time, or was made just now where something came that has none."""
        origin, epoch, _ = given.record.id
        made = origin not in self._graph.injections and epoch == self._number
        return self.is_aside(given) or (made and origin.rpartition(".")[0] in self._took_aside)

    def is_aside(self, given: Given) -> bool:
        """Whether it has no event time, and its reader has."""
        return self.is_timeless(given.record.stream) and given.computation not in self.untimed


def low_watermarks_below_pending_work(graph: Graph, before: Epoch, after: Epoch) -> None:
    """Nothing that still comes is below a low watermark, but what is late already; and all of that is counted."""
    silence = Silence(graph, before, after)
    for name, node in graph.nodes.items():
        last, (input, output) = _input(before.ledger, name), _both(after.ledger, name)
        if name in silence.resting and input != last:
            raise Broken(low_watermarks_below_pending_work, f"{name!r} moved from {last} to {input}, and all that it reads is silent")
        heard = [other for other in node.injectors if other not in after.ledger.idle and other not in silence.timeless]
        bounds = {f"the promise of {other!r}": after.ledger.promises.get(other, START_OF_TIME) for other in heard}
        timed = [other for other in node.producers if not silence.has_no_end(other) or name in silence.untimed]
        bounds |= {f"what {other!r} lets pass": silence.passed[other] for other in timed}
        for what, bound in bounds.items():
            if input > max(last, bound):
                raise Broken(low_watermarks_below_pending_work, f"{name!r} is at {input}, after {what} at {bound}")
        for given in after.waiting:
            if given.computation == name and last <= given.record.timestamp < input and not silence.may_be_past(given):
                raise Broken(low_watermarks_below_pending_work, f"{name!r} is at {input}, after {given.record}")
        taken = [given for given in after.taken if given.computation == name]
        came = [given.record.timestamp for given in taken if not silence.is_aside(given)]
        set_now = [] if any(map(silence.is_aside, taken)) else [_held(after.ledger, name)]  # for what has no time, any may be set
        held = min(_held(before.ledger, name), *set_now, *came, input)
        if output > held:
            raise Broken(low_watermarks_below_pending_work, f"the output of {name!r} is at {output}, after what it holds at {held}")
        late = sum(given.record.timestamp < last for given in taken if not silence.is_timeless(given.record.stream))
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


def events_in_order(book: Book, reached: Reached, diary: Iterable[Entry]) -> None:
    """With the order of event time, no record comes after one of its key that is newer, nor after a timer of a later time, nor
    before a timer of the same time, nor before the low watermark is there."""
    book, reached = _copy(book), dict(reached)
    for entry in diary:
        place = (entry.computation, entry.key)
        if entry.does == "record":
            if entry.at < reached.get(place, entry.at):
                raise Broken(events_in_order, f"{entry} after {reached[place]}")
            if earlier := [other for other in book.get(place, {}).values() if _due(other, entry.at, min(entry.now, entry.at))]:
                raise Broken(events_in_order, f"{entry} before {earlier}")
            if entry.low_watermark < entry.at:
                raise Broken(events_in_order, f"too early: {entry}")
        reach(reached, entry)
        write(book, entry)


def every_timer_once(book: Book, diary: Iterable[Entry], after: Ledger, *, lanes_come_and_go: bool = False) -> None:
    """What is set and not replaced or cancelled fires once: only pending timers fire, none stays that is due, and the
    rows hold as many as the diary tells of. Where lanes come and go, one that is away has timers that are due, and the
    ledger knows of it."""
    book = _copy(book)
    for entry in diary:
        if entry.does == "fire":
            pending = book.get((entry.computation, entry.key), {}).get(entry.tag)
            if pending is None or (pending.at, pending.wall) != (entry.at, entry.wall):
                raise Broken(every_timer_once, f"{entry} fired; pending was {pending}")
        write(book, entry)
    pending = [entry for of in book.values() for entry in of.values()]
    for entry in pending:
        if _due(entry, _input(after, entry.computation), after.now) and not (lanes_come_and_go and _is_awaited(after, entry.computation)):
            raise Broken(every_timer_once, f"{entry} is due and did not fire by epoch {after.number}")
    counts = Counter(entry.computation for entry in pending)
    for name in {entry.computation for entry in diary} | set(counts):
        kept = sum(report.timers for report in after.reports.get(name, {}).values())
        if kept != counts[name]:
            raise Broken(every_timer_once, f"{name!r} keeps {kept} timers; its diary tells of {counts[name]}")


def contiguous_ledger(before: Ledger, after: Ledger) -> None:
    """Epochs follow each other without a gap, sources go on where they were, and no count is forgotten."""
    if after.number != before.number + 1:
        raise Broken(contiguous_ledger, f"epoch {after.number} follows {before.number}")
    for name, source in before.sources.items():
        for partition, position in source.positions.items():
            if partition == "" and after.sources[name].positions[partition] < position:  # type: ignore[operator]
                raise Broken(contiguous_ledger, f"the position of {name!r} went back from {source} to {after.sources[name]}")
        for what in ("batch", "injected", "dead", "finished"):
            if getattr(after.sources[name], what) < getattr(source, what):
                raise Broken(contiguous_ledger, f"{what} of {name!r} went back from {source} to {after.sources[name]}")
    for name, tally in before.tallies.items():
        if any(getattr(after.tallies[name], what) < getattr(tally, what) for what in Tally.__struct_fields__):
            raise Broken(contiguous_ledger, f"counts of {name!r} went back to {after.tallies[name]}")


def uncommitted_leaves_nothing(before: Visible, after: Visible) -> None:
    """An epoch that ran and was not committed was not: rows, timers, productions, counts and marks are as they were, and what
    it took waits again, in its old place."""
    for what in fields(Visible):
        was, now = getattr(before, what.name), getattr(after, what.name)
        if was != now:
            raise Broken(uncommitted_leaves_nothing, f"{what.name} were {was}, and are {now}")


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
        for report in epoch.ledger.reports.get(name, {}).values():
            if report.waiting:
                raise Broken(lag_returns_to_zero, f"{report.waiting} records of {name!r} wait for their time")
            if report.minima.due(END_OF_TIME, epoch.ledger.now):
                raise Broken(lag_returns_to_zero, f"a timer of {name!r} is due: {report.minima}")


def changes_join_up(table: Iterable[Record[Change[Any]]]) -> None:
    """Of a table's key, each change begins with the row that the one before it left."""
    rows: dict[str, Any] = {}
    for record in table:
        if rows.get(record.key) != record.value.before:
            raise Broken(changes_join_up, f"{record.key!r} stood at {rows.get(record.key)!r}, then came {record.value}")
        rows[record.key] = record.value.after


def changes_never_go_back(table: Iterable[Record[Change[Any]]]) -> None:
    """Of a table's key, no change is older than the one before it: who sorts them by their times ends with the same rows."""
    last: dict[str, Timestamp] = {}
    for record in table:
        if record.timestamp < last.get(record.key, START_OF_TIME):
            raise Broken(changes_never_go_back, f"{record} came after a change at {last[record.key]}")
        last[record.key] = record.timestamp


INVARIANTS: tuple[Callable[..., None], ...] = (
    conservation,
    state_equals_fold,
    productions_unique_and_gap_free,
    same_bytes_for_the_same_id,
    one_epoch_per_row,
    low_watermarks_monotone,
    outputs_move_back_only_for_cause,
    low_watermarks_below_pending_work,
    timers_in_order,
    events_in_order,
    every_timer_once,
    contiguous_ledger,
    uncommitted_leaves_nothing,
    readers_see_prefixes,
    lag_returns_to_zero,
    changes_join_up,
    changes_never_go_back,
)


def _copy(book: Book) -> Book:
    return {place: dict(of) for place, of in book.items()}


def _due(entry: Entry, low_watermark: int, now: int) -> bool:
    return entry.at <= (now if entry.wall else low_watermark) and entry.at < END_OF_TIME


def _rank(entry: Entry) -> tuple[int, bool, str]:
    """The order in which timers that are due fire: at the same time, those of the low watermark first, then by tag."""
    return entry.at, entry.wall, entry.tag


def _is_awaited(ledger: Ledger, name: str) -> bool:
    """Whether a bucket of a computation has said that something is due there now."""
    return any(report.minima.due(Timestamp(_input(ledger, name)), ledger.now) for report in ledger.reports.get(name, {}).values())


def _input(ledger: Ledger, name: str) -> int:
    return _both(ledger, name)[0]


def _both(ledger: Ledger, name: str) -> tuple[int, int]:
    found = ledger.low_watermarks.get(name)
    return (int(START_OF_TIME), int(START_OF_TIME)) if found is None else (int(found.input), int(found.output))


def _held(ledger: Ledger, name: str) -> int:
    return min((int(report.minima.hold) for report in ledger.reports.get(name, {}).values()), default=int(END_OF_TIME))
