"""Rules 13 to 15, 18 and 19 of the protocol, and what else must hold, each broken by a patch of what keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millstream.core import planning
from millstream.core.graph import InputPlan
from millstream.core.ledger import Identity, Ledger
from millstream.core.pages import Pages
from millstream.core.planning import Backlog
from millstream.errors import MillstreamError
from millstream.journal import opening
from millstream.journal.commits import SNAPSHOTS, Commits
from millstream.journal.leftovers import find_leftovers
from millstream.journal.names import ByThread, maker_of
from millstream.journal.notes import Notes
from millstream.journal.segments import SegmentWriter
from millstream.mill import pending, retention
from millstream.mill.actions import Send
from millstream.mill.messages import TakeCheckpoint
from millstream.mill.opened import Opened
from millstream.mill.pending import Pending
from millstream.mill.planner import Planner
from tests.simulation import desk, inputs
from tests.simulation.broken import Patch, without_fsync_of_folder


def remove_before_the_commit() -> list[Patch]:
    original = desk.Desk.write

    def write(self: desk.Desk, commit: Any) -> Any:
        if commit.free is not None:
            self.remove(commit.free.segments, commit.free.notes)
        return original(self, commit)

    return [(desk.Desk, "write", write)]


def sweep_without_a_commit() -> list[Patch]:
    def look(self: desk.Desk) -> None:
        found, now = find_leftovers(self.world.disk, self.planner.ledger), self.world.moment().clock
        orphans = retention.free_orphans(found, self.planner.ledger, named=(), before=now)
        self.remove(orphans.segments, orphans.notes)

    return [(desk.Desk, "look_for_leftovers", look)]


def sweep_what_is_not_named_yet() -> list[Patch]:
    return [(retention, "is_orphan", lambda segment, ledger: segment not in ledger.segments)]


def sweep_what_a_thread_is_about_to_feed() -> list[Patch]:
    original = retention.is_orphan

    def is_orphan(segment: str, ledger: Ledger) -> bool:
        return original(segment, ledger) or (segment not in ledger.segments and isinstance(maker_of(segment), ByThread))

    return [(retention, "is_orphan", is_orphan)]


def sweep_what_is_named_just_now() -> list[Patch]:
    original = pending.free_orphans

    def free_orphans(found: Any, ledger: Ledger, *, named: Any, before: Any) -> Any:
        return original(found, ledger, named=(), before=before)

    return [(pending, "free_orphans", free_orphans)]


def free_what_the_join_has() -> list[Patch]:
    original = Ledger.apply

    def apply(self: Ledger, commit: Any) -> None:
        original(self, commit)
        for lane, checkpoint in commit.checkpoints.items():
            self.freed[lane] = max(self.freed.get(lane, 0), checkpoint.at.epoch)

    return [(Ledger, "apply", apply)]


def free_what_was_written_back() -> list[Patch]:
    original = Planner.on_returned

    def on_returned(self: Planner, connection: int, returned: Any, at: Any) -> Any:
        seat = self._by_connection.get(connection)
        if seat is not None:
            from millstream.core.ledger import Checkpoint

            self.pending.prove(seat.lane, Checkpoint(returned.at, returned.at))
        return original(self, connection, returned, at)

    return [(Planner, "on_returned", on_returned)]


def no_sync_of_the_checkpoint() -> list[Patch]:
    return [(desk.Desk, "sync_checkpoint", lambda self, lane: None)]


def checkpoint_before_the_last_is_proved() -> list[Patch]:
    def checkpoints(self: Planner, at: Any) -> list[Any]:
        actions: list[Any] = []
        busy = any(seat.checkpointing is not None for seat in self.seats)
        for seat in self.seats:
            if not seat.here:
                continue
            assert seat.connection is not None
            if not seat.is_safe if self._stopping else not busy and seat.wants_checkpoint(self.settings, at.seconds):
                busy = True
                redo = seat.behind(self.ledger.number)
                seat.checkpointing = Identity(self.ledger.number, self.ledger.id, str(seat.attempt))
                actions.append(Send(seat.connection, TakeCheckpoint(seat.checkpointing, self.ledger.number, redo)))
        return actions

    return [(Planner, "_checkpoints", checkpoints)]


def free_what_waits() -> list[Patch]:
    original = retention._is_free

    def is_free(segment: Any, ledger: Ledger, readers: Any) -> bool:
        waiting, segment.waiting = segment.waiting, 0
        try:
            return original(segment, ledger, readers)
        finally:
            segment.waiting = waiting

    return [(retention, "_is_free", is_free)]


def free_what_the_log_has_not() -> list[Patch]:
    original = retention._is_free

    def is_free(segment: Any, ledger: Ledger, readers: Any) -> bool:
        records, segment.records = segment.records, 0
        try:
            return original(segment, ledger, readers)
        finally:
            segment.records = records

    return [(retention, "_is_free", is_free)]


def take_notes_in_any_order() -> list[Patch]:
    def following(self: Notes, injector: str, after_batch: int) -> Any:
        names = [name for name in self.names(injector) if int(name.rpartition("/")[2].partition("-")[0]) > after_batch]
        return self.read(names[-1]) if names else None

    original = Pending.feed

    def feed(self: Pending, fed: Any, ledger: Ledger, at: Any) -> bool:
        source = self.sources.setdefault(fed.injector, planning.SourceProgress())
        if fed.batch is not None and fed.batch > source.batch:
            source.batch = fed.batch - 1
        return original(self, fed, ledger, at)

    return [(Notes, "next", following), (Pending, "feed", feed)]


def take_a_note_twice() -> list[Patch]:
    original = Pending.feed

    def feed(self: Pending, fed: Any, ledger: Ledger, at: Any) -> bool:
        source = self.sources.setdefault(fed.injector, planning.SourceProgress())
        if fed.batch is not None and fed.batch <= source.batch:
            source.batch = fed.batch - 1
        return original(self, fed, ledger, at)

    return [(Pending, "feed", feed)]


def a_note_is_known_before_its_sync() -> list[Patch]:
    def known(self: Notes, injector: str, batch: int) -> bool:
        return any(name.startswith(f"{injector}/{batch:012d}-") for name in self.names(injector))

    return [(Notes, "known", known)]


def no_sync_of_what_spark_planned() -> list[Patch]:
    return [(inputs.SparkInput, "sync_planned", lambda self, batch: None)]


def report_before_the_sync() -> list[Patch]:
    def append(self: SegmentWriter, dealt: Any, **options: Any) -> Any:
        return self.write(dealt, **options)

    return [(SegmentWriter, "append", append)]


def no_sync_of_a_new_segments_entry() -> list[Patch]:
    return [
        (SegmentWriter, "sync", without_fsync_of_folder(SegmentWriter.sync, "segments")),
        (opening, "sync_newest", lambda commits, ledger: None),
    ]


def write_on_after_an_error() -> list[Patch]:
    original = SegmentWriter._breaking

    @contextmanager
    def breaking(self: SegmentWriter) -> Iterator[None]:
        try:
            with original(self):
                yield
        except MillstreamError:
            self._broken = None
            # As if nothing had been: what the kernel dropped is taken for written.

    return [(SegmentWriter, "_breaking", breaking)]


def remove_commits_before_the_snapshot_is_durable() -> list[Patch]:
    return [(Commits, "write_snapshot", without_fsync_of_folder(Commits.write_snapshot, SNAPSHOTS))]


def remove_commits_before_they_are_merged() -> list[Patch]:
    return [(Commits, "merge", lambda self, first, last: None)]


def commit_before_all_reports() -> list[Patch]:
    original = Planner._commit

    def commit(self: Planner, at: Any) -> Any:
        assert self.opened is not None
        self.opened.lanes = sorted(self.opened.reports) if self.opened.lanes else []
        return original(self, at)

    return [(Opened, "is_complete", property(lambda self: bool(self.reports) or not self.lanes)), (Planner, "_commit", commit)]


def readers_by_number() -> list[Patch]:
    return [(InputPlan, "reader", property(lambda self: f"{self.index}"))]


def due_for_absent_lanes() -> list[Patch]:
    original = planning.plan_epoch

    def plan_epoch(*args: Any, here: Any, lanes: Any, **options: Any) -> Any:
        return original(*args, here=set(range(lanes.count)), lanes=lanes, **options)

    from millstream.mill import planner

    return [(planner, "plan_epoch", plan_epoch)]


def parts_taken_twice() -> list[Patch]:
    original = Backlog.take

    def take(self: Backlog, *args: Any) -> Any:
        taken = original(self, *args)
        for waiting in taken[:1]:
            self.add(waiting)
        return taken

    return [(Backlog, "take", take)]


def forget_what_waits_for_others() -> list[Patch]:
    return [(Backlog, "oldest", lambda self: {})]


def a_page_goes_without_being_written() -> list[Patch]:
    original = Pages.let_go_encoded

    def let_go_encoded(self: Pages, number: int) -> None:
        self.dirty.discard(number)
        original(self, number)

    return [(Pages, "let_go_encoded", let_go_encoded)]


def frames_named_and_freed_at_once() -> list[Patch]:
    original = Pending.ride

    def ride(self: Pending, commit: Any, ledger: Any, segments: Any, at: Any, *, last: bool) -> None:
        original(self, commit, ledger, segments, at, last=last)
        named = {frame.segment for frame in commit.frames}
        still_open = {name for names in self._open_segments.values() for name in names}
        if extra := [n for n in retention.free_segments(ledger, self._outline.deliveries, {*segments, *still_open}) if n in named]:
            from millstream.core.ledger import Free

            commit.free = Free([*(commit.free.segments if commit.free else []), *extra], commit.free.notes if commit.free else [])

    return [(Pending, "ride", ride)]


def redo_from_the_last_checkpoint() -> list[Patch]:
    def redo_after(self: Ledger, lane: int) -> int | None:
        after = self.freed.get(lane, 0)
        return after if self.touched.get(lane, 0) > after else None

    return [(Ledger, "redo_after", redo_after)]


def notes_as_another_program_dealt_them() -> list[Patch]:
    return [(inputs.noted, "frames_of", lambda note, **rest: note.frames)]
