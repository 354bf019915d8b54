"""Which lanes are told to checkpoint, and when."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.core.ledger import Identity, Ledger
from millstream.mill.actions import Action, Moment, Send, Settings
from millstream.mill.messages import TakeCheckpoint, WriteBack
from millstream.mill.seats import Seat


def checkpoints(seats: Iterable[Seat], ledger: Ledger, settings: Settings, at: Moment, *, stopping: bool) -> list[Action]:
    """Asked between two epochs: lanes are told one after the other; at a stop, all (rule 10)."""
    actions: list[Action] = []
    busy = any(seat.checkpointing is not None for seat in seats)
    for seat in seats:
        if not seat.here:
            continue
        assert seat.connection is not None
        # Once more only after a commit has the proof of the last: a state of before that may come when its commit is gone.
        proved = seat.rows > 0 or seat.state == ledger.checkpoints.get(seat.lane)
        if not seat.is_safe if stopping else not busy and proved and seat.wants_checkpoint(settings, at.seconds):
            busy = True
            redo = seat.behind(ledger.number)
            seat.checkpointing = Identity(ledger.number, ledger.id, str(seat.attempt))
            actions.append(Send(seat.connection, TakeCheckpoint(seat.checkpointing, ledger.number, redo)))
        elif seat.wants_announcement(settings, at.seconds):
            seat.announced = True
            actions.append(Send(seat.connection, WriteBack()))
    return actions
