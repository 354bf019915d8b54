"""What must hold, seen by one who knows everything: every commit as it is made, every byte of the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.core.ledger import Commit, Ledger, SourceProgress
from millstream.core.parts import Part
from millstream.errors import MillstreamError
from millstream.journal.commits import Commits
from millstream.journal.follower import Follower
from millstream.journal.opening import open_ledger
from millstream.journal.segments import segment_path
from millstream.mill.messages import Joining, Welcome
from tests.simulation.ends import Ends
from tests.simulation.records import Records
from tests.simulation.states import States
from tests.simulation.turns import Broken

if TYPE_CHECKING:
    from tests.simulation.driver import Run
    from tests.simulation.world import World


class Oracle:
    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = Ledger()
        self.commits = Commits(world.disk)
        self.ids: list[str] = [""]  # of the chain, by number
        self.records, self.states = Records(world), States(world)
        self.ends = Ends(world, self.records)
        self.shown: dict[int, str] = {}  # by a reader from outside
        self.follower: Follower | None = None

    # Commits.

    def claimed(self, run: Run, ledger: Ledger) -> None:
        """A run believes that it owns the journal, with this ledger. It may have slept since it made its commit."""
        with self.world.unseen():
            self._catch_up(ledger.number)
            self._is_of_chain(run, ledger.number, ledger.id)
            if ledger.number == self.ledger.number:
                self._same(ledger, f"run {run.number}")
                self.check_needed()

    def committed(self, run: Run, commit: Commit) -> None:
        """A run believes that its commit is durable."""
        with self.world.unseen():
            self._catch_up(commit.number)
            self._is_of_chain(run, commit.number, commit.id)

    def _catch_up(self, number: int) -> None:
        for commit in self.commits.span(self.ledger.number + 1, number):
            self._apply(commit)

    def _is_of_chain(self, run: Run, number: int, id: str) -> None:
        if self.ids[number] != id:
            raise Broken(f"run {run.number} believes that commit {number} is {id}; it is {self.ids[number]}")

    def _same(self, ledger: Ledger, who: str) -> None:
        mine, theirs = msgspec.to_builtins(self.ledger), msgspec.to_builtins(ledger)
        for name, found in mine.items():
            if theirs[name] != found:
                raise Broken(f"the ledger of {who} differs in {name}: {theirs[name]}, the commits say {found}")

    def _apply(self, commit: Commit) -> None:
        before = self.ledger
        if commit.plant is None:
            self.world.clean = None
        if commit.before != before.id or commit.number != before.number + 1:
            raise Broken(f"commit {commit.number} {commit.id} follows {commit.before}, not {before.number} {before.id}")
        shown = self.shown.get(commit.number)
        if shown is not None and shown != commit.id:
            raise Broken(f"a reader was shown commit {commit.number} as {shown}; it is {commit.id}")
        lws, promises, now = dict(before.low_watermarks), dict(before.promises), before.now
        self.records.expect(commit, before)
        try:
            before.apply(commit)
        except LookupError as error:
            raise Broken(f"commit {commit.number} takes or frees what is not there: {error!r}") from error
        self.ids.append(commit.id)
        if commit.now < now:
            raise Broken(f"now goes back from {now} to {commit.now}")
        for name, lw in lws.items():
            if before.low_watermarks[name].input < lw.input:
                raise Broken(f"the low watermark of {name} goes back from {lw.input} to {before.low_watermarks[name].input}")
        for name, promise in promises.items():
            if before.promises[name] < promise:
                raise Broken(f"the promise of {name} goes back")
        for name in commit.idle or ():
            self._check_idle(name)
        for offsets in before.waiting.values():
            for _, part in offsets.values():
                for name in self._readers_of(part):
                    lw = before.low_watermarks.get(name)
                    if lw is not None and part.oldest < lw.input:
                        raise Broken(f"{name} is at {lw.input}, and a record of {part.oldest} waits for it")
        for name, tally in before.tallies.items():
            if tally.late:
                raise Broken(f"{tally.late} records were late for {name}: {tally}")
            put_off = sum(report.waiting for report in before.reports.get(name, {}).values())
            if tally.received != tally.applied + tally.dropped + tally.diverted + tally.dead + tally.unkeyed + put_off:
                raise Broken(f"{name} received what went nowhere: {tally}, {put_off} wait for their time")
        if commit.logged is not None and commit.logged > self.world.table.versions[-1].upto:
            raise Broken(f"commit {commit.number} says that the log has {commit.logged}; it has {self.world.table.versions[-1].upto}")
        self.records.read(commit)
        self.states.read(commit)
        self.ends.read(commit)

    def _readers_of(self, part: Part) -> set[str]:
        readers = self.ledger.readers
        if part.reader:
            return {part.reader.partition(" ← ")[0]} if part.reader in readers else set()
        return {name.partition(" ← ")[0] for name, reader in readers.items() if reader.stream == part.stream and not reader.rekeyed}

    def _check_idle(self, injector: str) -> None:
        """One that is left out has nothing that nobody has read, whoever was away meanwhile."""
        self.world.count("idle")
        known = self.ledger.sources.get(injector, SourceProgress())
        for partition, entries in self.world.sources[injector].partitions.items():
            if int(known.positions.get(partition, 0)) < len(entries):
                raise Broken(f"{injector} is left out as idle, and has something that nobody has read: {known}")

    # Lanes.

    def welcomed(self, run: Run, join: Joining, welcome: Welcome) -> None:
        if self.world.clean is not None and run.fence > self.world.clean and welcome.redo:
            raise Broken(f"after a stop, lane {join.lane} has to redo {[redo.epoch for redo in welcome.redo]}")

    # What is needed is there.

    def check_needed(self) -> None:
        with self.world.unseen():
            for segment in self.ledger.segments:  # a start refuses a folder where one is missing that no commit has declared free
                if segment_path(segment) not in self.world.disk.entries:
                    raise Broken(f"{segment} is not there, and no commit has declared it free")
            for segment, offsets in self.ledger.waiting.items():
                for _, part in offsets.values():
                    self.records.content(segment, part)
            self.states.check_needed()
            self.ends.check_needed()

    def power_lost(self) -> None:
        """What was believed is there still."""
        with self.world.unseen():
            if self.ledger.number:
                ledger = open_ledger(self.commits)
                if ledger.number < self.ledger.number:
                    raise Broken(f"commit {self.ledger.number} was believed, and the power took it: the journal ends with {ledger.number}")
                if (newest := max(self.shown, default=0)) > ledger.number:
                    raise Broken(f"a reader was shown commit {newest}, and the power took it")
            self.check_needed()
        self.follower = None

    # Readers.

    def reader_polls(self) -> None:
        if self.follower is None or self.world.rng.random() < 0.05:
            self.follower = Follower(self.commits)
        try:
            news = self.follower.poll()
        except MillstreamError as error:
            if "cannot be used" in str(error):
                self.follower = None
                return
            raise Broken(f"a reader found {error}") from error
        found = [(commit.number, commit.id) for commit in news.commits]
        if news.ledger is not None and news.ledger.number:
            found.append((news.ledger.number, news.ledger.id))
        for number, id in found:
            known = self.ids[number] if number < len(self.ids) else self.shown.setdefault(number, id)
            if known != id:
                raise Broken(f"a reader was shown commit {number} as {id}; it is {known}")

    def check_ending(self, run: Run, error: BaseException) -> None:
        """A run may end by what the world did to it, by a program that is not right, or because another owns the journal."""
        kind, text, overtaken = getattr(error, "kind", type(error).__name__), str(error), self.overtaken(run)
        if run.fence and not overtaken and kind == "Fenced":
            raise Broken(f"run {run.number} ends as overtaken, and nobody owns the journal but it: {text}")
        if overtaken and kind == "Damage":
            raise Broken(f"run {run.number} blames the disk, and it is overtaken: {text}")
        if overtaken or kind in ("Fenced", "LaneLost", "LaneTimeout"):  # whether it is time for that, is looked at where it ends
            return
        if ("another run writes it" in text or "another writer delivers to" in text) and len(self.world.runs) > 1:
            return  # writers of overtaken runs were faster, three times in a row
        if "this program is not right yet" in text:
            return
        if self.world.disk_faults and ("cannot be used" in text or "could not be written" in text):
            return
        raise Broken(f"run {run.number} ends: {error}")

    def overtaken(self, run: Run) -> bool:
        with self.world.unseen():
            return open_ledger(self.commits).fence > run.fence

    # The end.

    def check_end(self) -> None:
        self.records.check_end()
        self.ends.check_end()
