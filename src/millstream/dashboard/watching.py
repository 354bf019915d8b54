"""A folder that is looked at again and again: each look costs what has come since the last, not what there is."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec

from millstream import arguments
from millstream.core.ledger import Ledger
from millstream.dashboard.holding import held_back
from millstream.dashboard.picture import Picture, picture_of
from millstream.errors import MillstreamError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.follower import Follower
from millstream.log.folder import Folder, read_json
from millstream.log.samples import Sample, read_samples
from millstream.log.status import Now, Status, is_held, status_from
from millstream.timestamp import Timestamp

LOOK_EVERY = 1.0  # seconds; who asks more often is told the same


class Seen(msgspec.Struct):
    """What the page shows of a run at a moment. `problem` says why there is nothing to show, or nothing new."""

    folder: str
    problem: str = ""
    status: Status | None = None
    picture: Picture | None = None
    held_back: dict[str, str] = {}  # by computation
    sample: Sample | None = None  # the newest


class Watched:
    """One folder. May be asked by several threads."""

    def __init__(self, at: str | Path) -> None:
        self.folder = Folder(arguments.path("dashboard", at))
        self._follower: Follower | None = None
        self._ledger = Ledger()
        self._topology = ""
        self._picture: tuple[int, Picture] | None = None
        self._last: tuple[float, Seen] | None = None
        self._looking = threading.Lock()

    def look(self) -> Seen:
        with self._looking:
            if self._last is None or time.monotonic() - self._last[0] >= LOOK_EVERY * 0.9:
                self._last = (time.monotonic(), self._look())
            return self._last[1]

    def history(self) -> list[Sample]:
        """Samples of the last days, oldest first."""
        return read_samples(self.folder)

    def _look(self) -> Seen:
        try:
            if problem := self._advance():
                return Seen(str(self.folder.path), problem)
        except (MillstreamError, OSError, msgspec.DecodeError) as error:
            self._follower = None  # begin anew: it may be repaired
            return Seen(str(self.folder.path), self.folder.located(str(error)))
        ledger = self._ledger
        running, now = is_held(self.folder), Timestamp(time.time_ns() // 1000)
        status = status_from(ledger, self._topology, running=running, now=now)
        if running:
            status = status.add(read_json(Now.path(self.folder), Now) or Now())
        recent = read_samples(self.folder, after=int(now) - 5_000_000) if running else []
        held = {name: held_back(ledger, name) for name in ledger.plant.computations}
        return Seen(str(self.folder.path), "", status, self._drawn(), held, recent[-1] if recent else None)

    def _advance(self) -> str:
        """Follow the commits; what keeps from it, in words."""
        if self._follower is None:
            pinned = self.folder.read_pinned()
            if pinned is None:
                return f"{self.folder.path} holds no run of Millstream yet; this page goes on when one has begun there"
            if not self.folder.journal.exists():
                return f"the run in {self.folder.path} has not begun yet"
            self._topology, self._ledger = pinned.topology, Ledger()
            self._follower = Follower(Commits(LocalDisk(self.folder.journal)))
        news = self._follower.poll()
        if news.ledger is not None:
            self._ledger = news.ledger
        for commit in news.commits:
            self._ledger.apply(commit)
        return "" if self._ledger.number else "no epoch is committed yet"

    def _drawn(self) -> Picture:
        """Drawn anew with each run: its code may be another."""
        if self._picture is None or self._picture[0] != self._ledger.fence:
            self._picture = (self._ledger.fence, picture_of(self._ledger))
        return self._picture[1]
