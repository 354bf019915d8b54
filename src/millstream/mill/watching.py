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
    due = min(planner.standing.next_wall, next_silence(planner.outline, planner.pending.sources, at.clock, planner.offered.listened))
    if due < END_OF_TIME:
        waits.append((due - at.clock) / SECOND)
    if (positions := planner.pending.positions_due_in(at)) is not None:
        waits.append(positions)
    if (again := planner.offered.due_in(at.seconds)) is not None:
        waits.append(again)
    for seat in planner.seats:
        if not seat.here or planner.opened is not None:
            waits.append(1.0)  # there may be something to warn of
        elif seat.redo:
            announce = 0 if seat.announced or not seat.rows else settings.announce
            waits.append(seat.checkpointed + seat.due_after(settings) - announce - at.seconds)
    return min((wait for wait in waits if wait > 0), default=None)


class Trouble(NamedTuple):
    """Lanes that do not come, or one that does not answer; or, without a lane, a source that lanes cannot reach."""

    lanes: tuple[int, ...]
    message: str
    ends: bool  # it has lasted too long: the run ends with it


def troubles(planner: Planner, at: Moment) -> list[Trouble]:
    """Of every lane, for the log and the status, as long as it lasts (rule 9). Lanes that never came are one trouble: they mostly
    wait for the same thing."""
    found = [_lost(planner, seat, at) if seat.connection is None else _slow(planner, seat, at) for seat in planner.seats]
    sources = [Trouble((), message, False) for message in planner.offered.troubles.values()]  # said when they came
    return [*sources, *(trouble for trouble in (_never_came(planner, at), *found) if trouble is not None)]


def watch(planner: Planner, at: Moment) -> list[Action]:
    """Each trouble is a warning once, and ends the run when it has lasted too long."""
    actions: list[Action] = []
    for trouble in troubles(planner, at):
        if trouble.ends:
            return [End("LaneTimeout", trouble.message)]
        new = [lane for lane in trouble.lanes if _is_new(planner, planner.seats[lane])]
        if new:
            actions.append(Warn(trouble.message))
    return actions


def _is_new(planner: Planner, seat: Seat) -> bool:
    if seat.connection is not None:
        return planner.opened is not None and planner.opened.warn(seat.lane)
    is_new, seat.warned = not seat.warned, True
    return is_new


def came_back(seat: Seat, at: Moment) -> list[Action]:
    """A lane that was lost joins again."""
    if seat.lost_at is None:
        return []
    away, seat.lost_at = at.seconds - seat.lost_at, None
    return [Inform(f"lane {seat.lane} was lost, and is back after {away:.1f} s")]


def _never_came(planner: Planner, at: Moment) -> Trouble | None:
    missing = [seat for seat in planner.seats if seat.connection is None and seat.attempt < 0]
    missing = [seat for seat in missing if at.seconds - seat.away_since > AWAY_WARNING]
    if not missing:
        return None
    lanes = tuple(seat.lane for seat in missing)
    named = f"lane {lanes[0]} has" if len(lanes) == 1 else f"lanes {', '.join(map(str, lanes[:-1]))} and {lanes[-1]} have"
    return _away(planner, lanes, f"{named} not connected for", max(at.seconds - seat.away_since for seat in missing))


def _lost(planner: Planner, seat: Seat, at: Moment) -> Trouble | None:
    away = at.seconds - seat.away_since
    if seat.attempt < 0 or away <= AWAY_WARNING:
        return None
    return _away(planner, (seat.lane,), f"lane {seat.lane} was lost, and has been away for", away)


def _away(planner: Planner, lanes: tuple[int, ...], what: str, seconds: float) -> Trouble:
    wait, count = "it waits for a slot" if len(lanes) == 1 else "they wait for slots", len(planner.seats)
    message = f"{what} {seconds:.0f} s; if {wait}: {count} lanes and the inputs take {count + 2} cores in all"
    return Trouble(lanes, message, seconds > max(LONGEST_AWAY, planner.settings.lane_timeout))


def _slow(planner: Planner, seat: Seat, at: Moment) -> Trouble | None:
    opened, timeout = planner.opened, planner.settings.lane_timeout
    if opened is None or seat.lane not in opened.lanes or not opened.awaits(seat.lane):
        return None
    computation, key = seat.at_hand
    where = f" in computation {computation!r}, key {key!r}" if computation else f" {key}" if key else ""
    if at.seconds - seat.heard > timeout:
        return Trouble((seat.lane,), f"lane {seat.lane} has said nothing for {timeout:.0f} s{where}; it may hang, or its machine", True)
    if at.seconds - seat.at_hand_since > timeout:
        return Trouble(
            (seat.lane,), f"lane {seat.lane} has been busy for {timeout:.0f} s{where}; make it quicker, or raise lane_timeout", True
        )
    if at.seconds - opened.began > SLOW_LANE:
        return Trouble((seat.lane,), f"lane {seat.lane} has run epoch {opened.epoch} for {at.seconds - opened.began:.0f} s{where}", False)
    return None
