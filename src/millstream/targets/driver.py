"""Deliveries in the driver: a thread each, woken by every commit, around the machine that decides."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

from millstream.core.codec import value_decoder
from millstream.core.parts import Columns, Part
from millstream.errors import Fenced, LogError, MillstreamError, RecordError
from millstream.journal.errors import Missing
from millstream.record import Record
from millstream.target import DeliveryContext, Step
from millstream.targets.connection import Abandoned, Connection
from millstream.targets.delivery import (
    Action,
    CallTarget,
    Content,
    DeliveryMachine,
    ReadHistory,
    ReadParts,
    ReadTail,
    Say,
    Skip,
    State,
    Stretch,
)
from millstream.targets.lacking import Place, Tail
from millstream.targets.records import records_of


class Journal(Protocol):
    """What a delivery needs to know of the run around it. Called by the delivery's thread."""

    def read_part(self, segment: str, part: Part) -> Columns:
        """The records of a part."""

    def read_tail(self, after: int) -> Tail:
        """What there is of the stream after an epoch, all of it or a beginning of some thousand epochs."""

    def read_history(self, after: int, upto: int, at_most: int | None) -> Stretch:
        """Epochs (after, upto] of the stream from the log; with `at_most` as ReadHistory says."""

    def still_owner(self) -> bool:
        """Whether no newer run has made a commit, by a look at this moment."""

    def say(self, position: int) -> None:
        """The delivery has everything up to here. Must not wait."""


class DeliverySteps(Protocol):
    """How far a delivery is: in its folder, or in the target itself."""

    @property
    def position(self) -> int: ...
    @property
    def open(self) -> Step | None: ...
    def begin(self, a: int, b: int) -> Step: ...
    def done(self) -> None: ...
    def skip(self, upto: int) -> Step | None:
        """There was nothing up to here. Where the target must be told so itself: by this step, without records."""

    def close(self) -> None: ...


class DeliveryThread(threading.Thread):
    """Performs what the machine says. `error` is why it stopped, for the run to raise; it then delivers no more."""

    def __init__(self, context: DeliveryContext, connection: Connection, steps: DeliverySteps, journal: Journal, *, newest: int) -> None:
        super().__init__(name=f"millstream delivers {context.delivery}", daemon=True)
        self._delivery, self._stream, self._connection, self._steps, self._journal = (
            context.delivery,
            context.stream,
            connection,
            steps,
            journal,
        )
        self._decode = value_decoder(context.value_type)
        self._machine = DeliveryMachine(position=steps.position, open=steps.open, newest=newest)
        self._changed = threading.Condition()
        self._actions: list[Action] = self._machine.on_start()
        self._stop_at: int | None = None
        self._abandoned = False
        self._logged = 0  # up to here the log had everything when it was last asked
        self._missed: tuple[int, int] | None = None  # where it was, and the log, when something was missing
        self.overtaken = False
        self.error: MillstreamError | None = None

    @property
    def position(self) -> int:
        """Everything up to this epoch is delivered, or there was nothing to deliver."""
        return self._machine.position

    @property
    def trouble(self) -> str | None:
        """Why it waits for its target, if it does."""
        return self._connection.trouble

    def notify(self, number: int, places: Sequence[Place]) -> None:
        """A commit is durable; `places` are the plain parts of this stream that it names. Does not wait."""
        with self._changed:
            self._actions += self._machine.on_commit(number, places)
            if self._actions or self._stop_at is not None:  # an epoch without a record wakes nobody
                self._changed.notify_all()

    def stop(self, at: int, timeout: float) -> bool:
        """Deliver up to commit `at` and end; False if that took too long: it then ends after the call that it is in."""
        with self._changed:
            self._stop_at = at
            self._changed.notify_all()
        if self.ident is None:  # it was never started: nobody else closes what it has open
            self._steps.close()
            self._connection.close()
        else:
            self.join(timeout)
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
            return not self.is_alive() and self._machine.has(at)

    def wait_for(self, epoch: int, timeout: float) -> bool:
        """Whether everything up to this epoch is delivered within this time."""
        with self._changed:
            self._changed.wait_for(lambda: self._machine.has(epoch) or self._machine.state is State.ENDED, timeout)
            return self._machine.has(epoch)

    def run(self) -> None:
        try:
            while (action := self._next()) is not None:
                try:
                    more = self._perform(action)
                except Missing:
                    if not self._is_behind():
                        raise
                    more = self._machine.on_missing
                with self._changed:
                    self._actions += more()
                    self._changed.notify_all()
        except BaseException as error:  # user code may even exit; the run watches for it, for a thread has nobody to raise to
            self._fail(error)
        finally:
            self._steps.close()
            try:
                self._connection.close()
            except Exception as error:  # the last that a target may say
                self._fail(error)

    def _is_behind(self) -> bool:
        """What is missing was let go, for the log has it; twice at one place, with nothing new in the log, it is damage."""
        before, self._missed = self._missed, (self._machine.position, self._logged)
        return self._journal.still_owner() and self._missed != before

    def _fail(self, error: BaseException) -> None:
        """What a newer run has removed is missing here, and no damage (rule 12): only an owner blames the disk."""
        self.overtaken = isinstance(error, Fenced) or (isinstance(error, LogError) and not self._journal.still_owner())
        with self._changed:
            if self.overtaken:
                self._machine.on_overtaken()
            else:
                self.error = _explained(self._delivery, error)
                if self.error is not error:
                    self.error.__cause__ = error
                self._machine.on_failed(error)
            self._changed.notify_all()

    def _next(self) -> Action | None:
        """The next action, once there is one; None when this delivery is to end."""
        machine = self._machine
        with self._changed:
            while True:
                if self._abandoned or machine.state is State.ENDED:
                    return None
                if self._actions:
                    return self._actions.pop(0)
                if self._stop_at is not None and machine.has(self._stop_at):
                    last = machine.on_stop()
                    return last[0] if last else None
                self._changed.wait()

    def _perform(self, action: Action) -> Callable[[], list[Action]]:
        """Do it, without the lock: a target may be slow. What the machine is then told is returned."""
        machine, journal = self._machine, self._journal
        match action:
            case ReadTail(after):
                tail = journal.read_tail(after)
                self._logged = tail.history
                return lambda: machine.on_tail(tail)
            case ReadHistory(after, upto, at_most):
                stretch = journal.read_history(after, upto, at_most)
                return lambda: machine.on_read(stretch.contents, upto=None if at_most is None else stretch.upto)
            case ReadParts(places):
                contents = [Content(part.origin, part.major, journal.read_part(segment, part)) for segment, part in places]
                return lambda: machine.on_read(contents)
            case CallTarget():
                return self._call(action)
            case Skip(upto):
                return self._skip(upto)
            case Say(position):
                journal.say(position)
        return list

    def _call(self, action: CallTarget) -> Callable[[], list[Action]]:
        """A step is open before the newest commit is looked at, and that is looked at before the call.

        So whatever a run calls, the run after it finds open or done: it reads the steps after a commit of its own.
        """
        records = records_of(action.contents, self._decode, self._stream)
        step = action.open or self._steps.begin(action.a, action.b)
        if not self._journal.still_owner():
            self.overtaken = True
            return self._machine.on_overtaken
        return self._machine.on_done if self._write(step, records) else list

    def _skip(self, upto: int) -> Callable[[], list[Action]]:
        """There was nothing up to here."""
        step = self._steps.skip(upto)
        if step is None or self._write(step, []):
            self._journal.say(upto)
        return list

    def _write(self, step: Step, records: Sequence[Record[Any]]) -> bool:
        """Whether the target has it; not if the delivery was given up while the target could not be reached."""
        try:
            self._connection.write(step, records, wait=self._wait_until_abandoned)
        except Abandoned:
            return False
        self._steps.done()
        return True

    def _wait_until_abandoned(self, seconds: float) -> bool:
        """Before the next try the newest commit is looked at anew: a newer run may have repeated the step, and gone on (rule 17)."""
        with self._changed:
            abandoned = self._changed.wait_for(lambda: self._abandoned, seconds)
        if not abandoned and not self._journal.still_owner():
            raise Fenced("a newer run owns the folder; this one stops")
        return abandoned


def _explained(delivery: str, error: BaseException) -> MillstreamError:
    """As the run raises it: user code with its own traceback, the system with the file that it is about."""
    if isinstance(error, MillstreamError):
        return error
    if isinstance(error, OSError):
        named = f": {error.filename}" if error.filename else ""
        return RecordError(f"delivery {delivery!r}", f"{error.strerror or error}{named}", _trace(error))
    return RecordError(f"delivery {delivery!r}", f"{type(error).__name__}: {error}", _trace(error))


def _trace(error: BaseException) -> str:
    """The part of a traceback that is the user's own: what lies below the last frame of ours on top."""
    inner: TracebackType | None = error.__traceback__
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith(("millstream.targets", "millstream.delivery")):
        inner = inner.tb_next
    return "".join(traceback.format_exception(type(error), error, inner or error.__traceback__)).rstrip()
