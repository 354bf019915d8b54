"""A folder that is looked at again and again: each look costs what has come since the last, not what there is."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from millstream import arguments
from millstream.core.ledger import Ledger
from millstream.dashboard.holding import Hold, furthest_behind, held_back, with_key
from millstream.dashboard.picture import Picture, picture_of, streams_of
from millstream.errors import LogError, MillstreamError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.follower import Follower
from millstream.log.folder import Folder, Pinned, read_json
from millstream.log.metrics import DiskSizes, measure
from millstream.log.reading import StreamReader
from millstream.log.samples import SECOND, Sample, read_samples
from millstream.log.status import Now, Status, is_held, status_from
from millstream.mill.asking import CannotAsk, KeyQuestion, ask_at
from millstream.mill.messages import KeptKey
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Timestamp

log = logging.getLogger("millstream")

LOOK_EVERY = 1.0  # seconds; who asks more often is told the same
MEASURE_EVERY = 60.0  # seconds; it looks at every file
RATES_OVER = 6 * SECOND
SOON = 0.5  # seconds that a look waits for the run
STATE_TIMEOUT = 120.0  # seconds; Spark has to start
POINTS = 450  # of a chart: more than it is wide are not seen
SERIES = 8  # of a chart: more are not told apart


class Seen(msgspec.Struct):
    """What the page shows of a run at a moment. `problem` says why there is nothing to show, or not all of it."""

    folder: str
    id: str = ""  # of the run: another one may begin in the same place
    problem: str = ""
    status: Status | None = None
    picture: Picture | None = None
    held_back: dict[str, Hold] = {}  # by computation
    furthest: str = ""  # the computation whose low watermark is the least
    sample: Sample | None = None  # the newest
    rates: dict[str, float] = {}  # records a second, by stream


class PastSamples(msgspec.Struct):
    """Samples of a while up to the newest, as columns: one for each `step` of microseconds, the last in it. Counts are those since
    the folder began."""

    id: str
    step: int
    at: list[int]
    ran: list[float]
    wrote: list[float]
    records: dict[str, list[int | None]]  # of the streams that had most in that while
    low_watermarks: dict[str, list[int | None]]  # of the computations that are furthest behind; None at an end of time
    late: list[int]  # of all computations, or of the one that was asked for
    dropped: list[int]
    dead: list[int]


class Watched:
    """One folder. May be asked by several threads."""

    def __init__(self, at: str | Path) -> None:
        self.folder = Folder(arguments.path("dashboard", at))
        self._commits = Commits(LocalDisk(self.folder.journal))
        self._pinned: Pinned | None = None
        self._follower: Follower | None = None
        self._reader: StreamReader | None = None
        self._ledger = Ledger()
        self._picture: tuple[tuple[int, int], Picture] | None = None
        self._last: tuple[float, Seen] | None = None
        self._looking = threading.Lock()
        self._sizes: tuple[float, DiskSizes] | None = None
        self._measuring = threading.Lock()
        self._logged: set[str] = set()

    def look(self) -> Seen:
        with self._looking:
            return self._seen()

    def sizes(self) -> DiskSizes:
        with self._measuring:
            if self._sizes is None or time.monotonic() - self._sizes[0] >= MEASURE_EVERY:
                self._sizes = (time.monotonic(), measure(self.folder, time.time()))
            return self._sizes[1]

    def history(self, span: int, of: str = "") -> PastSamples:
        """Of so many microseconds; what was late, dropped and dead, of one computation or of all."""
        return _history(read_samples(self.folder), span, of, self.look().id)

    def reading(self, stream: str) -> tuple[StreamReader, Ledger]:
        """Who reads the records of a stream, and up to where: what he needs of the ledger, which itself goes on."""
        with self._looking:
            seen = self._seen()
            if seen.status is None or self._reader is None:
                raise LogError(seen.problem)
            if stream not in seen.status.streams:
                raise LogError(f"there is no stream {stream!r}; streams with records: {', '.join(seen.status.streams) or 'none yet'}")
            ledger, left_out = self._ledger, self._ledger.left_out.get(stream)
            known = Ledger(number=ledger.number, id=ledger.id, logged=ledger.logged)
            if left_out:
                known.left_out, known.segments = {stream: left_out}, dict(ledger.segments)
            return self._reader, known

    def problem(self, error: Exception) -> str:
        """An error in words. One that nobody expects has its traceback logged, once."""
        if isinstance(error, (MillstreamError, OSError, msgspec.MsgspecError)):
            return self.folder.located(str(error))
        words = f"{type(error).__name__}: {error}; that is a fault of Millstream's: please report it, with what the dashboard has logged"
        if words not in self._logged:
            self._logged.add(words)
            log.error("the dashboard of %s: %s", self.folder.path, words, exc_info=error)
        return words

    def _seen(self) -> Seen:
        if self._last is None or time.monotonic() - self._last[0] >= LOOK_EVERY * 0.9:
            self._last = (time.monotonic(), self._look())
        return self._last[1]

    def _look(self) -> Seen:
        seen = Seen(str(self.folder.path))
        try:
            seen.problem = self._advance()
            if not seen.problem:
                self._show(seen)
        except Exception as error:
            self._forget()  # it may be repaired
            return Seen(str(self.folder.path), problem=self.problem(error))
        if seen.status is not None and seen.status.running:
            try:
                self._add_what_it_says(seen, seen.status)
            except Exception as error:
                seen.problem = self.problem(error)
        return seen

    def _advance(self) -> str:
        """Follow the commits, or begin anew where another run or another copy is in the place; what keeps from it, in words."""
        pinned = self.folder.read_pinned()
        if pinned is None or self._pinned is None or pinned.id != self._pinned.id or self._is_another():
            self._forget()
        self._pinned = pinned
        if pinned is None:
            return f"{self.folder.path} holds no run of Millstream yet; this page goes on when one has begun there"
        if self._follower is None:
            if not self.folder.journal.exists():
                return f"the run in {self.folder.path} has not begun yet"
            self._follower, self._reader = Follower(self._commits), StreamReader(self.folder)
        news = self._follower.poll()
        if news.ledger is not None:
            self._ledger = news.ledger
        for commit in news.commits:
            self._ledger.apply(commit)
        return "" if self._ledger.number else "no epoch is committed yet"

    def _is_another(self) -> bool:
        """Whether the newest commit that is known is not there: the folder was put back to an older copy of it."""
        commits, number = self._commits, self._ledger.number
        if number <= commits.newest_snapshot():
            return False
        found = commits.read(number)
        return (found is None or found.id != self._ledger.id) and number > commits.newest_snapshot()  # else it was just merged

    def _forget(self) -> None:
        self._pinned = self._follower = self._reader = self._picture = None
        self._ledger = Ledger()

    def _show(self, seen: Seen) -> None:
        """What the commits say."""
        assert self._pinned is not None
        ledger, now = self._ledger, Timestamp(time.time_ns() // 1000)
        seen.id = self._pinned.id
        seen.status = status_from(ledger, self._pinned.topology, running=is_held(self.folder), now=now)
        seen.picture = self._drawn()
        holds = {name: held_back(ledger, name) for name in ledger.plant.computations}
        seen.held_back = {name: hold for name, hold in holds.items() if hold is not None}
        seen.furthest = furthest_behind(ledger)

    def _add_what_it_says(self, seen: Seen, status: Status) -> None:
        """What a run says of itself beside its commits."""
        recent = read_samples(self.folder, after=int(status.now) - RATES_OVER)
        if recent:
            seen.sample, seen.rates = recent[-1], _rates(recent[0], recent[-1])
        now = read_json(Now.path(self.folder), Now) or Now()
        status.add(now)
        hold = seen.held_back.get(seen.furthest)
        if hold is not None and hold.holder and now.asked_at:
            with suppress(CannotAsk):  # then no key is named
                kept = ask_at(now.asked_at, KeyQuestion(hold.holder), timeout=SOON)
                if not kept.problem:
                    seen.held_back[seen.furthest] = with_key(hold, kept)

    def kept(self, computation: str, key: str) -> KeptKey:
        """What is kept for a key: the run that is on is asked, else the folder is read by another process, for that takes Spark."""
        if is_held(self.folder):
            now = read_json(Now.path(self.folder), Now) or Now()
            return ask_at(now.asked_at, KeyQuestion(computation, key))
        command = [sys.executable, "-P", "-m", "millstream.command.main", "state", "--json", "--", str(self.folder.path), computation, key]
        paths = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
        environment = {**os.environ, "PYTHONPATH": paths}
        try:
            found = subprocess.run(
                command, capture_output=True, env=environment, timeout=STATE_TIMEOUT, stdin=subprocess.DEVNULL, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise LogError(f"Spark has not read the checkpoint within {STATE_TIMEOUT:.0f} s; try it once more") from error
        if found.returncode != 0:
            raise LogError(found.stderr.decode(errors="replace").strip().removeprefix("millstream: "))
        return msgspec.json.decode(found.stdout.splitlines()[-1], type=KeptKey)

    def _drawn(self) -> Picture:
        """Drawn anew with each run, for its code may be another, and for a stream that is new."""
        drawn_for = (self._ledger.fence, len(streams_of(self._ledger)))
        if self._picture is None or self._picture[0] != drawn_for:
            self._picture = (drawn_for, picture_of(self._ledger))
        return self._picture[1]


def _rates(before: Sample, after: Sample) -> dict[str, float]:
    seconds = (after.at - before.at) / SECOND
    came = {name: count - before.records.get(name, 0) for name, count in after.records.items()}
    return {name: count / seconds for name, count in came.items() if count > 0} if seconds > 0 else {}


def _history(samples: list[Sample], span: int, of: str, id: str) -> PastSamples:
    """Thinned out: of counts any two samples give the difference, so leaving some out loses nothing but detail."""
    step = max(SECOND, span // POINTS)
    newest = samples[-1].at if samples else 0
    some = list({each.at // step: each for each in samples if each.at > newest - span}.values())
    first, last = (some[0], some[-1]) if some else (Sample(0, 0), Sample(0, 0))
    busiest = sorted(last.records, key=lambda name: first.records.get(name, 0) - last.records[name])[:SERIES]
    lows = last.low_watermarks
    behind = sorted((name for name in lows if _time(lows[name]) is not None), key=lambda name: lows[name])[:SERIES]

    def total(counts: Iterable[dict[str, int]]) -> list[int]:
        return [each.get(of, 0) if of else sum(each.values()) for each in counts]

    return PastSamples(
        id=id,
        step=step,
        at=[each.at for each in some],
        ran=[round(each.ran, 3) for each in some],
        wrote=[round(each.wrote, 3) for each in some],
        records={name: [each.records.get(name) for each in some] for name in busiest},
        low_watermarks={name: [_time(each.low_watermarks.get(name)) for each in some] for name in behind},
        late=total(each.late for each in some),
        dropped=total(each.dropped for each in some),
        dead=total(each.dead for each in some),
    )


def _time(at: int | None) -> int | None:
    return at if at is not None and int(START_OF_TIME) < at < int(END_OF_TIME) else None
