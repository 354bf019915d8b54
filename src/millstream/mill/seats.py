"""The lanes as the planner sees them: who sits there, what he has, when he is to checkpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millstream.core.ledger import Checkpoint, Identity
from millstream.core.parts import Frame
from millstream.mill.actions import Settings
from millstream.mill.messages import Busy, Redo, Report

MAX_LOSSES = 5
LOSSES_WITHIN = 60.0  # seconds


class Seat:
    """The place of one lane."""

    def __init__(self, lane: int, redo: Iterable[Redo], began: float) -> None:
        self.lane = lane
        self.redo: deque[Redo] = deque(redo)  # rows of committed epochs that no checkpoint has for sure, oldest first
        self.connection: int | None = None
        self.attempt = -1  # the greatest that ever joined (rule 5)
        self.state = Checkpoint()  # what it joined with
        self.known = 0  # its rows are as of this epoch
        self.process = ""
        self.checkpointing: Identity | None = None  # told to checkpoint; it will return and join again
        self.announced = False
        self.checkpointed = began  # when it last did
        self.young = True  # it has not done so in this run
        self.rows = self.size = 0  # changed since
        self.segment = ""  # that its frames go to
        self.losses: list[float] = []
        self.lost_at: float | None = None  # until it is back
        self.error = ""
        self.away_since = began
        self.warned = False  # that it is away so long
        self.heard = began
        self.at_hand = ("", "")
        self.at_hand_since = began

    @property
    def here(self) -> bool:
        """Ready for an epoch."""
        return self.connection is not None and self.checkpointing is None

    @property
    def is_safe(self) -> bool:
        """Nothing of it is only in the journal: a start would redo nothing."""
        return self.here and not any(redo.epoch > self.state.at.epoch for redo in self.redo)

    def sit(self, connection: int, attempt: int, state: Checkpoint, process: str, now: float) -> None:
        self.connection, self.attempt, self.state, self.process = connection, attempt, state, process
        self.known = state.at.epoch
        self.checkpointing, self.announced, self.segment = None, False, ""
        self.heard = now
        self.rows = sum(redo.rows.rows for redo in self.redo if redo.epoch > state.at.epoch)
        self.size = sum(redo.rows.length for redo in self.redo if redo.epoch > state.at.epoch)

    def begin(self, now: float) -> None:
        """It is given an epoch."""
        self.heard = self.at_hand_since = now
        self.at_hand = ("", "")

    def hear(self, busy: Busy, now: float) -> None:
        self.heard = now
        if self.at_hand != (busy.computation, busy.key):
            self.at_hand, self.at_hand_since = (busy.computation, busy.key), now

    def reported(self, report: Report, now: float) -> None:
        """What it wrote last says where it writes, be it named by a commit or not: of what could not be read, nothing is."""
        self.heard = now
        for frame in (*(frame for fed in report.read for frame in fed.frames), *report.frames):
            self.segment = frame.segment

    def leave(self, now: float) -> None:
        self.connection, self.away_since, self.warned = None, now, False

    def lost_too_often(self, now: float) -> bool:
        self.lost_at = now if self.lost_at is None else self.lost_at
        self.losses = [when for when in self.losses if now - when < LOSSES_WITHIN]
        self.losses.append(now)
        return len(self.losses) >= MAX_LOSSES

    def behind(self, committed: int) -> list[Redo]:
        """What its rows lack of the committed epochs; it has them after the message that names these."""
        if self.known >= committed:
            return []
        missing = [redo for redo in self.redo if self.known < redo.epoch <= committed]
        self.known = committed
        return missing

    def committed(self, epoch: int, frame: Frame) -> None:
        """A frame of this lane was committed."""
        if frame.rows is not None:
            self.redo.append(Redo(epoch, frame.segment, frame.rows))
            self.rows += frame.rows.rows
            self.size += frame.rows.length

    def let_go(self, upto: int) -> None:
        """Rows up to this epoch are in checkpoints for good."""
        while self.redo and self.redo[0].epoch <= upto:
            self.redo.popleft()

    def due_after(self, settings: Settings) -> float:
        """Seconds from one checkpoint to the next. The first of a run comes early: Java is cold then, and takes four times as long."""
        return min(settings.first_checkpoint, settings.checkpoint_every) if self.young else settings.checkpoint_every

    def wants_checkpoint(self, settings: Settings, now: float) -> bool:
        """Also once more after the last change: before that, the journal keeps rows and commits that only one checkpoint has."""
        return bool(self.redo) and (
            now - self.checkpointed >= self.due_after(settings)
            or self.rows >= settings.checkpoint_rows
            or self.size >= settings.checkpoint_bytes
        )

    def wants_announcement(self, settings: Settings, now: float) -> bool:
        if self.announced or self.rows == 0:
            return False
        return (
            now - self.checkpointed >= self.due_after(settings) - settings.announce
            or self.rows >= settings.checkpoint_rows * 0.9
            or self.size >= settings.checkpoint_bytes * 0.9
        )
