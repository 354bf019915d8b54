"""The writer's machine: which parts go to which output, and when. Events in, actions out; no file, thread or clock.

    an output is   and then                         becomes   because
    waiting        its open commit is all there     writing   a start repeats exactly what was begun
    waiting        the log has what it lacks        writing   it is further behind than the journal
    waiting        `every` has passed, or there is  writing   one commit for what has come, whole epochs of it
                   a full commit, or a stop
    waiting        no record for `IDLE`, or a stop  writing   the position moves on, for what waits for it to be let go
    waiting        commits are missing              asking    it just began, or more came than are remembered
    asking         on_tail                          waiting
    writing        on_done                          waiting   said to the planner: its next commit records it (rule 15)
    writing        on_refused                       waiting   another moved the position: go on from there (rule 16)
    writing        on_missing                       waiting   the journal let go of what it was to read: the log has it by now
    any            on_failed                        failed    the run ends; the other outputs go on until it does

Only committed epochs come in, so only those are written. Of what waits only the places are kept, a bounded number of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.targets.lacking import Epoch, InLog, Lacking, Place, Tail
from millstream.timestamp import SECOND, START_OF_TIME, Duration, Timestamp

EVERY = SECOND
IDLE = 60 * SECOND  # without a record, until the position is moved on all the same
MAX_RECORDS = 1_000_000  # of a commit, but at least one epoch
MAX_PLACES = 50_000  # that are remembered of an output; what comes after is asked for again
MAX_REFUSALS = 3  # one after the other: then the other writer is no leftover of an older run


@dataclass(frozen=True)
class Begun:
    """An output as it was found: what it takes, and how far it is."""

    streams: frozenset[str] | None  # None: all
    position: int
    open_until: int | None = None
    unkept: frozenset[str] = frozenset()  # of all: but these, in the commits of this run
    is_log: bool = False
    every: Duration | None = None  # between two commits, unless much comes; None: as for the others


@dataclass(frozen=True)
class AskTail:
    """What is there for this output after this epoch? `on_tail` takes the answer, or the beginning of one."""

    output: str
    after: int


@dataclass(frozen=True)
class WriteParts:
    """Add to an output what lies there, which is all of epochs (after, to], and commit.

    With `at_most`, the log is read until there are so many records; the commit then ends with the last epoch that was read.
    """

    output: str
    after: int
    pieces: Sequence[Epoch | InLog]
    to: int
    at_most: int | None = None


@dataclass(frozen=True)
class SayWritten:
    """The output has everything up to here, synced."""

    output: str
    upto: int


@dataclass(frozen=True)
class Fail:
    output: str
    message: str


Action = AskTail | WriteParts | SayWritten | Fail


@dataclass
class _Feed:
    """What waits for an output."""

    begun: Begun
    position: int
    open_until: int | None
    lacking: Lacking
    since: Timestamp | None = None  # the first that waits came then
    moved: Timestamp = START_OF_TIME  # the last commit ended then
    asking: bool = False
    outdated: bool = False  # what is asked for is no longer what it needs
    writing: bool = False
    failed: bool = False
    refusals: int = 0

    def takes(self, stream: str) -> bool:
        return stream not in self.begun.unkept if self.begun.streams is None else stream in self.begun.streams

    def note_time(self, now: Timestamp) -> None:
        """Something may have come."""
        if self.since is None and self.lacking:
            self.since = now


class WriterMachine:
    """All outputs of a writer. Every event says what time it is."""

    def __init__(self, outputs: Mapping[str, Begun], *, newest: int, now: Timestamp, every: Duration = EVERY) -> None:
        """`newest` is the newest commit that there is."""
        self._every, self._newest, self._now = every, newest, now
        self._stop_at: int | None = None
        self._flush_upto = 0
        self._feeds = {
            name: _Feed(begun, begun.position, begun.open_until, Lacking(begun.position), moved=now) for name, begun in outputs.items()
        }

    @property
    def finished(self) -> bool:
        """Whether a stop was asked for, and every output that can has everything up to it."""
        stop = self._stop_at
        return stop is not None and all(feed.failed or (feed.position >= stop and not feed.writing) for feed in self._feeds.values())

    def position(self, output: str) -> int:
        return self._feeds[output].position

    def on_start(self, now: Timestamp) -> list[Action]:
        return self._next(now)

    def on_commit(self, number: int, places: Sequence[Place], now: Timestamp) -> list[Action]:
        """A commit is durable, and these are all plain parts that it names."""
        self._newest = max(self._newest, number)
        for feed in self._feeds.values():
            if number == feed.lacking.known + 1 and feed.lacking.places < MAX_PLACES:
                feed.lacking.add(Epoch(number, [place for place in places if feed.takes(place[1].stream)]))
                feed.note_time(now)
        return self._next(now)

    def on_tail(self, output: str, tail: Tail, now: Timestamp) -> list[Action]:
        """What there is for this output after the epoch that was asked for."""
        feed = self._feeds[output]
        feed.asking = False
        if feed.outdated:
            feed.outdated = False
            return self._next(now)
        if feed.begun.is_log and tail.history > feed.lacking.known:
            return self._fail(
                output,
                f"the log ends with epoch {feed.position}, but the commits say that it had {tail.history}: it has lost what lies "
                f"between; restore it from the copy that the journal is from",
            )
        feed.lacking.add_tail(tail)
        feed.note_time(now)
        return self._next(now)

    def on_tick(self, now: Timestamp) -> list[Action]:
        return self._next(now)

    def on_done(self, output: str, upto: int, now: Timestamp) -> list[Action]:
        feed = self._feeds[output]
        feed.writing, feed.open_until, feed.refusals = False, None, 0
        self._move(feed, upto, now)
        return [SayWritten(output, upto), *self._next(now)]

    def on_refused(self, output: str, position: int, why: str, now: Timestamp) -> list[Action]:
        """Another has written there; this is the position by now. As long as that moves, the other is a run that was overtaken
        and does not know it yet: what it writes is what is committed."""
        feed = self._feeds[output]
        feed.writing = False
        feed.refusals = 0 if position > feed.position else feed.refusals + 1
        if feed.refusals >= MAX_REFUSALS or position < feed.position:
            return self._fail(output, why)
        self._move(feed, position, now)
        return self._next(now)

    def on_missing(self, output: str, why: str, now: Timestamp) -> list[Action]:
        """It was slower than the log, and a part is gone from the journal: what there is after its position is asked for anew."""
        feed = self._feeds[output]
        feed.writing = False
        feed.refusals += 1
        if feed.refusals >= MAX_REFUSALS or feed.begun.is_log:
            return self._fail(output, why)
        feed.lacking.ask_anew(feed.position)
        feed.since, feed.outdated = None, feed.asking
        return self._next(now)

    def on_failed(self, output: str, message: str) -> list[Action]:
        self._feeds[output].writing = False
        return self._fail(output, message)

    def on_flush(self, upto: int, now: Timestamp) -> list[Action]:
        """What waits up to this commit does not wait for more."""
        self._flush_upto = upto
        return self._next(now)

    def on_stop(self, at: int, now: Timestamp) -> list[Action]:
        """Nothing comes after commit `at`: write all up to it, without waiting for more."""
        self._stop_at, self._newest = at, max(self._newest, at)
        return self._next(now)

    def next_tick(self, now: Timestamp) -> Duration | None:
        """In how long something is due though nothing comes; None if never."""
        due: list[Timestamp] = []
        for feed in self._feeds.values():
            if feed.failed or feed.writing or feed.open_until is not None:  # an open step waits for an answer, not for a time
                continue
            if feed.lacking and feed.since is not None:
                due.append(feed.since + (feed.begun.every or self._every))
            elif feed.lacking.known > feed.position:
                due.append(feed.moved + IDLE)
        return max(Duration(0), min(due) - max(self._now, now)) if due else None

    def _fail(self, output: str, message: str) -> list[Action]:
        self._feeds[output].failed = True
        return [Fail(output, message)]

    def _move(self, feed: _Feed, upto: int, now: Timestamp) -> None:
        feed.position, feed.moved = upto, now
        feed.lacking.forget(upto)
        feed.lacking.known = max(feed.lacking.known, upto)
        feed.since = now if feed.lacking else None

    def _next(self, now: Timestamp) -> list[Action]:
        self._now = now = max(self._now, now)
        actions: list[Action] = []
        for name, feed in self._feeds.items():
            if feed.failed:
                continue
            if feed.lacking.known < self._newest and not feed.asking and feed.lacking.places < MAX_PLACES // 2:
                feed.asking = True
                actions.append(AskTail(name, feed.lacking.known))
            if not feed.writing and (write := self._write(name, feed, now)) is not None:
                feed.writing = True
                actions.append(write)
        return actions

    def _write(self, name: str, feed: _Feed, now: Timestamp) -> WriteParts | None:
        """The next commit of an output, if it is due."""
        position, lacking = feed.position, feed.lacking
        if feed.open_until is not None:
            if lacking.known < feed.open_until:
                return None
            return WriteParts(name, position, lacking.until(feed.open_until), feed.open_until)
        if (in_log := lacking.in_log) is not None:
            return WriteParts(name, position, [in_log], in_log.upto, MAX_RECORDS)
        stopping = self._stop_at is not None
        if lacking:
            waited = now - (feed.since if feed.since is not None else now)
            at_once = stopping or position < self._flush_upto or lacking.records >= MAX_RECORDS
            if waited < (feed.begun.every or self._every) and not at_once:
                return None
            return WriteParts(name, position, *lacking.next_epochs(MAX_RECORDS))
        if lacking.known > position and (now - feed.moved >= IDLE or (stopping and lacking.known >= self._newest)):
            return WriteParts(name, position, (), lacking.known)
        return None
