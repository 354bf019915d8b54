"""Each record with the version that was valid at its time: slowly changing dimensions, trades and quotes."""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

import millstream as ms
from millstream import arguments
from millstream.change import inserted
from millstream.join.sides import Left, Pair, Right, check_stream, check_table, row_type

L = TypeVar("L")
R = TypeVar("R")

_since = attrgetter("since")


class Direction(enum.Enum):
    """Which version counts: the newest at or before the record, the oldest at or after it, or the nearer of the two."""

    BACKWARD = "backward"
    FORWARD = "forward"
    NEAREST = "nearest"


class Version(msgspec.Struct, Generic[R], array_like=True, frozen=True):
    """A row and since when it stands; None: it was deleted then."""

    since: ms.Timestamp
    row: R | None


class Looking(msgspec.Struct, Generic[L], array_like=True):
    """A record that waits: nothing that comes after `until` counts for it."""

    at: ms.Timestamp
    until: ms.Timestamp
    value: L


class Versions(msgspec.Struct, Generic[L, R], array_like=True):
    """What is kept of a key: the versions within reach, one for each time, and the records that wait, both in order."""

    format: Literal[1] = 1
    versions: list[Version[R]] = msgspec.field(default_factory=list)
    looking: list[Looking[L]] = msgspec.field(default_factory=list)


class AsOf(ms.Computation[Versions[L, R]], Generic[L, R]):
    """Each record with the version of its key that was valid then, whatever comes first.

        then = AsOf(Trade, Quote, tolerance=ms.MINUTE)
        topology.compute("then", then).reads(*then.of(trades, versions=quotes))

    BACKWARD: the newest version at or before the record. FORWARD: the oldest at or after it. NEAREST: the nearer of the two; of
    two equally near, the earlier. A version at the very time of the record counts in each. None counts that is further away
    than `tolerance`, which FORWARD and NEAREST need: so long they wait. Of versions at one time, the last stands.

    `pairs` are dated with the later of their two times; where a NEAREST record had to wait for a nearer version that did not
    come, with the first instant at which none could. `unmatched` has the records without a version, dated likewise. A row that
    was deleted is no version.

    `late` and `late_versions` have what came too late. It is never joined: the history that it belongs to is gone.

    Versions may be without event time (`ms.Timeless()`): nobody waits for them, and an old one counts for what comes after it.
    The records may not.

    Kept: the newest version, and those that a waiting record can reach; records that wait. Nothing of a key whose versions are
    all out of reach of the low watermark.
    """

    order = ms.Order.EVENT_TIME

    pairs: ms.Output[Pair[L, R]]
    unmatched: ms.Output[L]
    late: ms.Output[L]
    late_versions: ms.Output[R]

    def __init__(
        self, value: type[L], version: type[R], *, direction: Direction = Direction.BACKWARD, tolerance: ms.Duration | None = None
    ) -> None:
        self.value, self.version = arguments.value_type("AsOf", value), row_type("AsOf", version)
        self.direction = arguments.choice("AsOf", "direction", direction, Direction)
        if tolerance is None and direction is not Direction.BACKWARD:
            raise ms.TopologyError(
                f"AsOf(direction=Direction.{direction.name}) waits for what comes after a record; say for how long, with tolerance="
            )
        self.tolerance = None if tolerance is None else arguments.span("AsOf", "tolerance", tolerance, least=0)
        self.versions_first = True  # of one time, unless `of` finds that nobody can say
        # How far a record looks back, and ahead. Ahead is for those that wait only.
        self.back = 0 * ms.SECOND if direction is Direction.FORWARD else self.tolerance
        self.ahead = 0 * ms.SECOND if direction is Direction.BACKWARD or self.tolerance is None else self.tolerance

    def type_arguments(self) -> dict[str, Any]:
        return {"L": self.value, "R": self.version}

    @overload
    def of(self, stream: ms.Stream[L], *, table: ms.Table[R]) -> tuple[ms.Stream[Left[L] | Right[ms.Change[R]]], ...]: ...
    @overload
    def of(self, stream: ms.Stream[L], *, versions: ms.Stream[R]) -> tuple[ms.Stream[Left[L] | Right[ms.Change[R]]], ...]: ...
    def of(
        self, stream: ms.Stream[L], *, table: ms.Table[R] | None = None, versions: ms.Stream[R] | None = None
    ) -> tuple[ms.Stream[Left[L] | Right[ms.Change[R]]], ...]:
        """All that it reads: `reads(*as_of.of(trades, versions=quotes))`, under the key of the versions.

        With `versions`, each record of a plain stream is a version, in whatever order they come. With `table`, each change is
        one; a table that has passed over an older record does not have it as a version.
        """
        check_stream("AsOf.of", "the stream", stream, self.value)
        origin = stream.origin()
        if isinstance(origin, ms.InjectedStream) and origin.injection.is_timeless:
            raise ms.TopologyError(
                f"AsOf.of: {origin.name!r} is injected with ms.Timeless(), and nobody keeps the versions of a time that is past; inject it "
                f"with ms.BoundedDisorder(...), or use Lookup for the row as it stands"
            )
        if versions is not None and table is None:
            check_stream("AsOf.of", "versions=", versions, self.version)
            table = versions.map(inserted)
        elif table is None or versions is not None:
            raise ms.TopologyError("AsOf.of: give either table=, a stream of changes, or versions=, a stream of rows")
        check_table("AsOf.of", "table=", table, self.version)
        self.versions_first &= _maker(stream) is not _maker(table)
        return table.map(Right), stream.map(Left)

    def process_record(self, record: ms.Record[Left[L] | Right[ms.Change[R]]]) -> None:
        at, kept = record.timestamp, self.state
        match record.value:
            case Left(value=value) if record.late or (kept.versions and kept.versions[-1].since > at):
                self.late.produce(value, timestamp=at)  # what stood then may be forgotten
            case Right(value=change) if record.late:
                row = change.before if change.after is None else change.after
                assert row is not None
                self.late_versions.produce(row, timestamp=at)
            case Left(value=value):
                one = Looking(at, at, value)
                if not self.versions_first or not self._settle(one, at + ms.MICROSECOND):
                    kept.looking.append(one)
                    self._look_again()
            case Right(value=change):
                place = bisect_left(kept.versions, at, key=_since)  # the last, unless it has no event time and is old
                if place < len(kept.versions) and kept.versions[place].since == at:
                    del kept.versions[place]  # it was replaced the very instant that it came
                kept.versions.insert(place, Version(at, change.after))
                if not kept.looking:
                    self._forget(at)
                elif self.direction is not Direction.BACKWARD:
                    self._wake("come", at)
                self._wait_to_forget()

    def _wake(self, tag: str, at: ms.Timestamp) -> None:
        """When all records of this time are here: no sooner, for of two that come at one time either may be first."""
        self.set_timer(tag, at=at + ms.MICROSECOND, hold=at)

    def _look_again(self) -> None:
        self._wake("look", min((one.until for one in self.state.looking), key=int))

    def process_timer(self, timer: ms.Timer) -> None:
        kept, waiting = self.state, list[Looking[L]]()
        for one in kept.looking:
            if (one.until >= timer.at and timer.tag != "come") or not self._settle(one, timer.at):
                waiting.append(one)
        kept.looking = waiting
        if waiting:
            self._look_again()
        self._forget(timer.at)
        self._wait_to_forget()

    def _settle(self, one: Looking[L], ahead_of: ms.Timestamp) -> bool:
        """Tell what becomes of a record, if that is certain now that all before `ahead_of` is here; else say until when it waits."""
        at, place = one.at, bisect_right(self.state.versions, one.at, key=_since)
        back = self._valid(at, place)
        if self.direction is Direction.BACKWARD or (back is not None and back.since == at):
            self._tell(one, back, at)
            return True
        last = at + self.ahead if back is None else min(at + self.ahead, at + (at - back.since) - ms.MICROSECOND, key=int)
        for version in self.state.versions[place:]:
            if version.row is not None and version.since <= last:
                self._tell(one, version, version.since)
                return True
        if last < ahead_of:
            self._tell(one, back, last + ms.MICROSECOND)
            return True
        one.until = last
        return False

    def _valid(self, at: ms.Timestamp, place: int) -> Version[R] | None:
        """The version before `place`, if it is a row and within reach."""
        found = self.state.versions[place - 1] if place else None
        if found is None or found.row is None or (self.back is not None and found.since < at - self.back):
            return None
        return found

    def _tell(self, one: Looking[L], version: Version[R] | None, at: ms.Timestamp) -> None:
        if version is None or version.row is None:
            self.unmatched.produce(one.value, timestamp=at)
        else:
            self.pairs.produce(Pair(one.value, version.row), timestamp=at)

    def _forget(self, coming: ms.Timestamp) -> None:
        """Let go of the versions that nobody can reach: those that wait see their own past, and what comes from now on the newest."""
        versions, looking = self.state.versions, self.state.looking
        newest = versions[-1].since if versions else coming
        oldest = looking[0].at if looking else max(coming, newest, key=int)
        first = max(bisect_right(versions, oldest, key=_since) - 1, 0)
        while first < len(versions) and self._is_nothing(versions[first], oldest):
            first += 1
        del versions[:first]

    def _is_nothing(self, version: Version[R], oldest: ms.Timestamp) -> bool:
        """Out of reach, or a deletion with nothing before it, which is as good as no version."""
        return version.row is None or (self.back is not None and version.since < oldest - self.back)

    def _wait_to_forget(self) -> None:
        if self.back is None or not self.state.versions or self.state.looking:
            self.cancel_timer("forget")  # or later, when nobody waits any more
        else:
            self.set_timer("forget", at=self.state.versions[-1].since + self.back + ms.MICROSECOND)


def _maker(stream: ms.Stream[Any]) -> object:
    """Streams of one maker have one place in `reads`: records of one time then come as they were made."""
    origin = stream.origin()
    return origin.owner if isinstance(origin, ms.Output) else origin
