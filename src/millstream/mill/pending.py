"""What rides along with the next commit: what sources fed, what joins proved, how far log and deliveries are, what is free."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from millstream.core.ledger import Checkpoint, Commit, Free, Ledger, SourceChange, SourceProgress
from millstream.core.outline import Outline
from millstream.core.planning import hear
from millstream.journal.leftovers import Leftovers
from millstream.mill.actions import Fed, Moment, Settings
from millstream.mill.retention import free_orphans, free_segments
from millstream.timestamp import Duration


class Pending:
    """Nothing of it counts before a commit has it; an epoch that is aborted leaves it as it is."""

    def __init__(self, outline: Outline, settings: Settings, sources: dict[str, SourceProgress], at: Moment) -> None:
        self._outline, self._settings = outline, settings
        self.sources = sources  # with what is fed and not committed yet: a promise may rest on it, for one commit has both
        self.fed: list[Fed] = []
        self._changes: dict[str, SourceChange] = {}
        self._proved: dict[int, Checkpoint] = {}
        self._logged: int | None = None
        self._delivered: dict[str, int] = {}
        self._since: float | None = None  # when the first position came that no commit has
        self._notes: list[str] = []  # taken by a commit
        self._open_segments: dict[str, list[str]] = {}
        self._leftovers: Leftovers | None = None  # that a look has found since the last commit
        self._freed = at.seconds

    @property
    def is_empty(self) -> bool:
        return not (self.fed or self._proved or self._delivered or self._logged is not None)

    def feed(self, fed: Fed, ledger: Ledger, at: Moment) -> bool:
        """What a source brought; False for a note that is taken already, or whose predecessor is still to come (rule 18)."""
        source = self.sources.setdefault(fed.injector, SourceProgress())
        if fed.batch is not None and fed.batch != source.batch + 1:
            return False
        change = hear(source, fed.marks, clock=at.clock, idle_after=self._outline.injectors.get(fed.injector))
        change.injected, change.dead, change.finished = fed.injected, fed.dead, fed.finished
        change.batch, change.positions, change.pieces = fed.batch, fed.positions, fed.pieces
        source.change(change, number=ledger.number + 1)
        self._changes[fed.injector] = change.after(self._changes.get(fed.injector))
        if not fed.pieces:  # what a lane has read lies in a segment of its own
            self._open_segments[fed.injector] = fed.open_segments
        self.fed.append(fed)
        return True

    def prove(self, lane: int, state: Checkpoint) -> None:
        self._proved[lane] = state

    def log(self, upto: int, ledger: Ledger, at: Moment) -> None:
        if upto > max(ledger.logged, self._logged or 0):
            self._logged = upto
            if any(ledger.logged < segment.records for segment in ledger.segments.values()):  # else nobody waits for it
                self._note_time(at)

    def deliver(self, delivery: str, upto: int, ledger: Ledger, at: Moment) -> None:
        if upto > max(ledger.delivered.get(delivery, 0), self._delivered.get(delivery, 0)):
            self._delivered[delivery] = upto
            if ledger.delivered.get(delivery, 0) < ledger.latest.get(ledger.plant.deliveries.get(delivery, ""), 0):
                self._note_time(at)

    def suspect(self, found: Leftovers, ledger: Ledger, at: Moment) -> None:
        """What a look has found. If there is an orphan in it a commit is due; which ones are is asked again for that commit."""
        self._leftovers = found
        orphans = self._orphans(ledger, (), at)
        if orphans.segments or orphans.notes:
            self._note_time(at)

    def _orphans(self, ledger: Ledger, named: Collection[str], at: Moment) -> Free:
        if self._leftovers is None:
            return Free()
        before = at.clock - Duration(int(self._settings.orphaned_after * 1_000_000))
        return free_orphans(self._leftovers, ledger, named=named, before=before)

    def positions_due_in(self, at: Moment) -> float | None:
        """In how many seconds positions want a commit of their own; None if there are none."""
        return None if self._since is None else self._since + self._settings.positions_every - at.seconds

    def ride(self, commit: Commit, ledger: Ledger, segments: Collection[str], at: Moment, *, last: bool) -> None:
        """Put all of it into a commit. `segments` are those that lanes write to."""
        commit.frames = [*(frame for fed in self.fed for frame in fed.frames), *commit.frames]
        commit.sources, commit.checkpoints = self._changes, self._proved
        commit.logged, commit.delivered = self._logged, dict(self._delivered)
        notes, self._notes = self._notes, [fed.note for fed in self.fed if fed.note is not None]
        named = {frame.segment for frame in commit.frames}
        orphans, self._leftovers = self._orphans(ledger, {*segments, *named}, at), None
        notes += [note for note in orphans.notes if note not in notes]
        free = orphans.segments
        if last or at.seconds - self._freed >= self._settings.free_every:
            self._freed = at.seconds
            still_open = (name for names in self._open_segments.values() for name in names)
            # What this commit names is no part of the ledger yet: its segment may seem free though it is not.
            free += free_segments(ledger, self._outline.deliveries, {*segments, *still_open, *named})
        if free or notes:
            commit.free = Free(free, notes)
        self.fed, self._changes, self._proved, self._logged, self._delivered, self._since = [], {}, {}, None, {}, None

    def _note_time(self, at: Moment) -> None:
        if self._since is None:
            self._since = at.seconds


def live_sources(known: Mapping[str, SourceProgress]) -> dict[str, SourceProgress]:
    """Copies, so that what is not committed does not get into the ledger."""
    return {name: msgspec.structs.replace(s, marks=dict(s.marks), positions=dict(s.positions)) for name, s in known.items()}
