"""What time alone brings to the planner: when to look again, and what to say of lanes that do not come or do not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.planning import next_silence
from millstream.mill.actions import SECOND, Action, End, Moment, Warn
from millstream.timestamp import END_OF_TIME

if TYPE_CHECKING:
    from millstream.mill.planner import Planner

SLOW_LANE = 10.0  # seconds without a report, until it is said
AWAY_WARNING = 30.0  # seconds after which a lane that has not connected is told of; the planner cannot know why


def next_tick(planner: Planner, at: Moment) -> float | None:
    """In how many seconds something may be due though nothing comes; None if never.

    `at` is when the planner last looked: what became due since then is still to be waited for.
    """
    told = planner.settings
    waits = [planner.began + told.linger - at.seconds, planner.emptied + told.empty_every - at.seconds]
    wall = min((known.all.wall for known in planner.minima.values()), default=END_OF_TIME)
    due = min(wall, next_silence(planner.graph, planner.pending.sources, at.clock))
    if due < END_OF_TIME:
        waits.append((due - at.clock) / SECOND)
    if (positions := planner.pending.positions_due_in(at)) is not None:
        waits.append(positions)
    for seat in planner.seats:
        if not seat.here or planner.opened is not None:
            waits.append(1.0)  # somebody may have to be told
        elif seat.redo:
            announce = 0 if seat.announced or not seat.rows else told.announce
            waits.append(seat.checkpointed + told.checkpoint_every - announce - at.seconds)
    return min((wait for wait in waits if wait > 0), default=None)


def watch(planner: Planner, at: Moment) -> list[Action]:
    """Lanes that do not come, and lanes that do not answer (rule 9)."""
    actions: list[Action] = []
    lanes = len(planner.seats)
    for seat in planner.seats:
        if seat.connection is None and at.seconds - seat.away_since > AWAY_WARNING and not seat.warned:
            seat.warned = True
            away = "has not connected for" if seat.attempt < 0 else "was lost, and has been away for"
            slots = f"if it waits for a slot: {lanes} lanes and the inputs take {lanes + 2} cores in all"
            actions.append(Warn(f"lane {seat.lane} {away} {AWAY_WARNING:.0f} s; {slots}"))
    opened, timeout = planner.opened, planner.settings.lane_timeout
    for lane in () if opened is None else opened.lanes:
        seat = planner.seats[lane]
        if opened is None or not opened.awaits(lane) or seat.connection is None:
            continue
        computation, key = seat.at_hand
        where = f" in computation {computation!r}, key {key!r}" if computation else ""
        if at.seconds - opened.began > SLOW_LANE and opened.warn(lane):
            actions.append(Warn(f"lane {lane} has run epoch {opened.epoch} for more than {SLOW_LANE:.0f} s{where}"))
        if at.seconds - seat.heard > timeout:
            return [End("LaneTimeout", f"lane {lane} has said nothing for {timeout:.0f} s{where}; it may hang, or its machine")]
        if at.seconds - seat.at_hand_since > timeout:
            return [End("LaneTimeout", f"lane {lane} has been busy for {timeout:.0f} s{where}; make it quicker, or raise lane_timeout")]
    return actions
