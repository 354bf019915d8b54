"""What time alone brings to the planner: when to look again, and what to say of lanes that do not come or do not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.core.planning import next_silence
from millstream.mill.actions import SECOND, Action, End, Inform, Moment, Warn
from millstream.timestamp import END_OF_TIME

if TYPE_CHECKING:
    from millstream.mill.planner import Planner
    from millstream.mill.seats import Seat

SLOW_LANE = 10.0  # seconds without a report, until it is said
LONGEST_AWAY = 120.0  # seconds that a lane may be away at least, however short `lane_timeout` is: to start one takes a while
AWAY_WARNING = 30.0  # seconds after which a warning says that a lane has not connected; the planner cannot know why


def next_tick(planner: Planner, at: Moment) -> float | None:
    """In how many seconds something may be due though nothing comes; None if never.

    `at` is when the planner last looked: what became due since then is still to be waited for.
    """
    settings = planner.settings
    waits = [planner.began + settings.linger - at.seconds, planner.emptied + settings.empty_every - at.seconds]
    due = min(planner.standing.next_wall, next_silence(planner.outline, planner.pending.sources, at.clock))
    if due < END_OF_TIME:
        waits.append((due - at.clock) / SECOND)
    if (positions := planner.pending.positions_due_in(at)) is not None:
        waits.append(positions)
    for seat in planner.seats:
        if not seat.here or planner.opened is not None:
            waits.append(1.0)  # there may be something to warn of
        elif seat.redo:
            announce = 0 if seat.announced or not seat.rows else settings.announce
            waits.append(seat.checkpointed + seat.due_after(settings) - announce - at.seconds)
    return min((wait for wait in waits if wait > 0), default=None)


class Trouble(NamedTuple):
    """A lane that does not come, or does not answer."""

    lane: int
    message: str
    ends: bool  # it has lasted too long: the run ends with it


def troubles(planner: Planner, at: Moment) -> list[Trouble]:
    """Of every lane, for the log and the status, as long as it lasts (rule 9)."""
    found = (_away(planner, seat, at) if seat.connection is None else _slow(planner, seat, at) for seat in planner.seats)
    return [trouble for trouble in found if trouble is not None]


def watch(planner: Planner, at: Moment) -> list[Action]:
    """Each trouble is a warning once, and ends the run when it has lasted too long."""
    actions: list[Action] = []
    for trouble in troubles(planner, at):
        if trouble.ends:
            return [End("LaneTimeout", trouble.message)]
        opened, seat = planner.opened, planner.seats[trouble.lane]
        if seat.connection is None:
            is_new, seat.warned = not seat.warned, True
        else:
            is_new = opened is not None and opened.warn(trouble.lane)
        if is_new:
            actions.append(Warn(trouble.message))
    return actions


def came_back(seat: Seat, at: Moment) -> list[Action]:
    """A lane that was lost joins again."""
    if seat.lost_at is None:
        return []
    away, seat.lost_at = at.seconds - seat.lost_at, None
    return [Inform(f"lane {seat.lane} was lost, and is back after {away:.1f} s")]


def _away(planner: Planner, seat: Seat, at: Moment) -> Trouble | None:
    away, lanes = at.seconds - seat.away_since, len(planner.seats)
    if away <= AWAY_WARNING:
        return None
    what = "has not connected for" if seat.attempt < 0 else "was lost, and has been away for"
    slots = f"if it waits for a slot: {lanes} lanes and the inputs take {lanes + 2} cores in all"
    return Trouble(seat.lane, f"lane {seat.lane} {what} {away:.0f} s; {slots}", away > max(LONGEST_AWAY, planner.settings.lane_timeout))


def _slow(planner: Planner, seat: Seat, at: Moment) -> Trouble | None:
    opened, timeout = planner.opened, planner.settings.lane_timeout
    if opened is None or seat.lane not in opened.lanes or not opened.awaits(seat.lane):
        return None
    computation, key = seat.at_hand
    where = f" in computation {computation!r}, key {key!r}" if computation else f" {key}" if key else ""
    if at.seconds - seat.heard > timeout:
        return Trouble(seat.lane, f"lane {seat.lane} has said nothing for {timeout:.0f} s{where}; it may hang, or its machine", True)
    if at.seconds - seat.at_hand_since > timeout:
        return Trouble(
            seat.lane, f"lane {seat.lane} has been busy for {timeout:.0f} s{where}; make it quicker, or raise lane_timeout", True
        )
    if at.seconds - opened.began > SLOW_LANE:
        return Trouble(seat.lane, f"lane {seat.lane} has run epoch {opened.epoch} for {at.seconds - opened.began:.0f} s{where}", False)
    return None
