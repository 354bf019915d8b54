"""How long a planner has waited for each of its lanes: by what was said, not by what the planner knows."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.mill import watching
from millstream.mill.messages import Busy, Failed, FromLane, Report, ToLane, Welcome, Work


@dataclass
class Awaited:
    """A lane that has an epoch to run."""

    heard: float
    at_hand: tuple[str, str] = ("", "")
    since: float = 0.0  # it has been there


class Waits:
    def __init__(self, timeout: float, *, lanes: int, now: float) -> None:
        self._timeout = timeout
        self._awaited: dict[int, Awaited] = {}  # by connection
        self._sitting: dict[int, int] = {}  # by connection, the lane that was let in there
        self._away = dict.fromkeys(range(lanes), now)  # by lane, since when nobody sits there

    def __repr__(self) -> str:
        return f"awaited {self._awaited}, away {self._away}, timeout {self._timeout}"

    def sent(self, connection: int, lane: int, message: ToLane, now: float) -> None:
        if isinstance(message, Work):
            self._awaited[connection] = Awaited(now, since=now)
        elif isinstance(message, Welcome):
            self._sitting[connection] = lane
            self._away.pop(lane, None)

    def heard(self, connection: int, message: FromLane, now: float) -> None:
        awaited = self._awaited.get(connection)
        if awaited is None:
            return
        awaited.heard = now
        if isinstance(message, Report | Failed):
            del self._awaited[connection]
        elif isinstance(message, Busy) and awaited.at_hand != (message.computation, message.key):
            awaited.at_hand, awaited.since = (message.computation, message.key), now

    def lost(self, connection: int, now: float) -> None:
        self._awaited.pop(connection, None)
        if connection in self._sitting:
            self._away[self._sitting.pop(connection)] = now

    def overdue(self, now: float) -> bool:
        """Whether rule 9 ends the run."""
        hangs = any(max(now - each.heard, now - each.since) > self._timeout for each in self._awaited.values())
        return hangs or any(now - since > max(self._timeout, watching.LONGEST_AWAY) for since in self._away.values())
