"""Rules 1 to 12 of the protocol, each broken by a patch of what keeps it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from millstream.core.ledger import Ledger
from millstream.core.planning import Backlog
from millstream.journal import opening
from millstream.journal.commits import COMMITS, Commits, Snapshot
from millstream.journal.errors import explained, refusal
from millstream.mill import planner
from millstream.mill.actions import End, Look
from millstream.mill.lane import Lane
from millstream.mill.opened import Opened
from millstream.mill.planner import Planner
from millstream.mill.seats import Seat
from tests.simulation import desk, spark

Patch = tuple[Any, str, Any]


def without_fsync_of_folder(original: Callable[..., Any], path: str) -> Callable[..., Any]:
    """The call with syncs of one folder left out."""

    def call(self: Any, *args: Any) -> Any:
        disk = self.disk if hasattr(self, "disk") else self._disk
        sync = disk.sync_folder
        disk.sync_folder = lambda folder: None if folder == path else sync(folder)
        try:
            return original(self, *args)
        finally:
            del disk.sync_folder

    return call


def forget_first_commits() -> list[Patch]:
    return [(Snapshot, "of", classmethod(lambda cls, ledger: cls(ledger.number, frozenset(), sealed(ledger))))]


def sealed(ledger: Ledger) -> bytes:
    from millstream.core.ledger import encode_ledger
    from millstream.journal.sealed import seal

    return seal(encode_ledger(ledger))


def claim_without_a_second_look() -> list[Patch]:
    def claim(commits: Commits, make: Any) -> Ledger:
        commits.make_folders()
        while True:
            ledger = opening.open_ledger(commits)
            opening.sync_newest(commits, ledger)
            commit = make(ledger)
            if commits.create(commit):
                ledger.apply(commit)
                return ledger

    return [(opening, "claim", claim)]


def believe_a_taken_number() -> list[Patch]:
    original = Commits.create
    return [(Commits, "create", lambda self, commit: original(self, commit) or True)]


def commit_under_the_next_number() -> list[Patch]:
    original = Commits.create

    def create(self: Commits, commit: Any) -> bool:
        while not original(self, commit):
            found = self.read(commit.number)
            commit.number += 1
            commit.before = commit.before if found is None else found.id
        return True

    return [(Commits, "create", create)]


def give_up_on_a_lost_answer() -> list[Patch]:
    def create(self: Commits, commit: Any) -> bool:
        from millstream.core.ledger import encode_commit
        from millstream.journal.sealed import seal

        try:
            made = self.disk.create_whole(f"{COMMITS}/{commit.number:012d}", seal(encode_commit(commit)))
        except OSError as error:
            if error.errno != errno.EIO:
                raise refusal(COMMITS, error) from error
            return create(self, commit)  # tries again, and takes its own for another's
        if made:
            with explained(COMMITS):
                self.disk.sync_folder(COMMITS)
        return made

    return [(Commits, "create", create)]


def a_gap_is_the_end() -> list[Patch]:
    def after(self: Commits, number: int) -> list[Any]:
        commits: list[Any] = []
        while (commit := self.read(number + len(commits) + 1)) is not None:
            commits.append(commit)
        return commits

    return [(Commits, "after", after), (Commits, "highest", lambda self: 0)]


def wake_before_the_folder_is_synced() -> list[Patch]:
    return [(Commits, "create", without_fsync_of_folder(Commits.create, COMMITS)), (opening, "sync_newest", lambda commits, ledger: None)]


def admit_older_attempts() -> list[Patch]:
    original = Planner.on_join

    def on_join(self: Planner, connection: int, join: Any, *args: Any) -> Any:
        self.seats[join.lane].attempt = -1
        return original(self, connection, join, *args)

    return [(Planner, "on_join", on_join)]


def return_when_the_planner_is_lost() -> list[Patch]:
    original = spark.Attempt.fail

    def fail(self: spark.Attempt, *, lossy: bool = False) -> None:
        if self.process.alive and self.connection is not None and not self.over:
            self.process.lane.held.write_back()
            self.returned = True
        original(self, lossy=lossy)

    return [(spark.Attempt, "fail", fail)]


def join_again_in_the_same_attempt() -> list[Patch]:
    """With all that it holds, under a number that the planner takes for a new one."""
    original = spark.Attempt.fail

    def fail(self: spark.Attempt, *, lossy: bool = False) -> None:
        found_closed = self.connection is not None and not self.connection.planner_open and self.run.process.alive
        if not self.process.alive or self.over or not found_closed:
            original(self, lossy=lossy)
        else:
            self.run.attempts += 1
            self.id, self.connection = self.run.attempts, None
            self.process.lane.own = self.process.lane.state.at

    return [(spark.Attempt, "fail", fail)]


def redo_skips_an_epoch() -> list[Patch]:
    original = Seat.behind
    return [(Seat, "behind", lambda self, committed: original(self, committed)[1:])]


def redo_only_at_the_join() -> list[Patch]:
    original = Planner._give

    def give(self: Planner, seat: Seat, opened: Opened, at: Any) -> Any:
        action = original(self, seat, opened, at)
        action.message.redo.clear()
        return action

    return [(Planner, "_give", give)]


def a_new_attempt_counts_as_the_one_that_ran() -> list[Patch]:
    return [(Opened, "ran", lambda self, seat: seat.lane in self.lanes)]


def a_report_stands_and_the_plan_is_given_again() -> list[Patch]:
    return [(Opened, "awaits", lambda self, lane: lane in self.lanes)]


def reports_of_closed_connections() -> list[Patch]:
    original = Planner.on_lost

    def on_lost(self: Planner, connection: int, *args: Any, **options: Any) -> Any:
        seat = self._by_connection.get(connection)
        actions = original(self, connection, *args, **options)
        if seat is not None:
            self._by_connection[connection] = seat
        return actions

    def drop(self: desk.Desk, number: int) -> None:
        """The shell goes on listening, too."""
        self._waits.lost(number, self.world.seconds)
        connection = self.connections.get(number)
        if connection is not None and not connection.to_planner and not connection.lane_open:
            del self.connections[number]
            connection.close_by_planner(self.world)

    return [(Planner, "on_lost", on_lost), (desk.Desk, "drop", drop)]


def an_abort_leaves_lanes_as_they_are() -> list[Patch]:
    def abort(self: Planner, at: Any, *, smaller: bool) -> list[Any]:
        opened = self.opened
        assert opened is not None
        self.opened = None
        self.backlog.give_back(opened.plan.taken)
        return []

    return [(Planner, "_abort", abort)]


def an_abort_loses_its_parts() -> list[Patch]:
    return [(Backlog, "give_back", lambda self, taken: None)]


def wait_for_a_lane_that_hangs() -> list[Patch]:
    original = planner.watch
    return [(planner, "watch", lambda planner, at: [action for action in original(planner, at) if not isinstance(action, End)])]


def any_word_of_a_lane_is_progress() -> list[Patch]:
    def hear(self: Seat, busy: Any, now: float) -> None:
        self.heard = self.at_hand_since = now
        self.at_hand = busy.computation, busy.key

    return [(Seat, "hear", hear)]


def wait_for_a_lane_that_is_lost() -> list[Patch]:
    original = planner.watch

    def watch(planner: Planner, at: Any) -> list[Any]:
        return [action for action in original(planner, at) if not (isinstance(action, End) and " slot" in action.message)]

    return [(planner, "watch", watch)]


def checkpoint_in_an_open_epoch() -> list[Patch]:
    original = Planner.on_tick
    return [(Planner, "on_tick", lambda self, at: (self._checkpoints(at) if self.opened is not None else []) + original(self, at))]


def held_rows_are_always_kept() -> list[Patch]:
    def join(self: Lane, attempt: int, process: str) -> Any:
        stored = self.held.identity()
        from millstream.mill import lane

        self.state = lane.Checkpoint() if stored is None else lane._decode_state(stored)
        if self.own is None:
            self.held.forget()
        self.own, self.finished, self.writing_back = None, False, False
        return lane.Joining(self.number, attempt, self.state, process)

    return [(Lane, "join", join)]


def held_rows_are_kept_by_epoch() -> list[Patch]:
    def join(self: Lane, attempt: int, process: str) -> Any:
        stored = self.held.identity()
        from millstream.mill import lane

        self.state = lane.Checkpoint() if stored is None else lane._decode_state(stored)
        if self.own is None or self.own.epoch != self.state.at.epoch:
            self.held.forget()
        self.own, self.finished, self.writing_back = None, False, False
        return lane.Joining(self.number, attempt, self.state, process)

    return [(Lane, "join", join)]


def blame_the_disk_without_a_look() -> list[Patch]:
    original = desk.Desk.act

    def act(self: desk.Desk, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Look):
                raise desk.Ended("Damage", action.otherwise)
        original(self, actions)

    return [(desk.Desk, "act", act)]
