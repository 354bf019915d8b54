"""A target as a delivery uses it: opened anew, and the step at hand repeated, for as long as it cannot be reached."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from millstream.errors import Fenced, LogError, MillstreamError, TopologyError, Unreachable
from millstream.record import Record
from millstream.target import AnyTarget, DeliveryContext, Sink, Step
from millstream.targets.steps import ways_out

log = logging.getLogger("millstream")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two tries


class Abandoned(MillstreamError):
    """The run has given the delivery up while its target could not be reached."""


@contextmanager
def blaming(delivery: str, target: AnyTarget) -> Iterator[None]:
    """Of what a target raises when a run starts: names it, or the folder of the run would be blamed for a socket."""
    try:
        yield
    except MillstreamError:
        raise
    except Exception as error:
        raise TopologyError(
            f"delivery {delivery!r}: {target.describe()} cannot be delivered to: {type(error).__name__}: {error}"
        ) from error


class Connection:
    """Whether a step went in that was interrupted, a target with transactions knows; any other gets it once more."""

    def __init__(self, target: AnyTarget, context: DeliveryContext) -> None:
        self._target, self._context = target, context
        self._sink: Sink | None = target.open(context)
        self.trouble: str | None = None  # why it waits now

    def last_step(self) -> Step | None:
        assert self._sink is not None
        return self._sink.last_step()

    def write(self, step: Step, records: Sequence[Record[Any]], *, wait: Callable[[float], bool]) -> None:
        """`wait` waits so many seconds, and says whether the delivery is given up; `Fenced` if a newer run has come meanwhile."""
        pause = FIRST_PAUSE
        while True:
            try:
                if self._sink is None:
                    self._sink = self._target.open(self._context)
                    if self._target.transactional and self._has(step):
                        break
                self._sink.write(step, records)
                break
            except Unreachable as error:
                self.close()
                self._say(str(error))
                if wait(pause):
                    raise Abandoned(str(error)) from error
                pause = min(2 * pause, LONGEST_PAUSE)
        if self.trouble is not None:
            log.info("delivery %r: %s is reached again", self._context.delivery, self._target.describe())
            self.trouble = None

    def close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            with suppress(Unreachable):  # it is gone already
                sink.close()

    def _has(self, step: Step) -> bool:
        """Whether the step went in although nobody heard of it. What else the target says is not what it was left with."""
        last, place, name = self.last_step(), self._target.describe(), self._context.delivery
        if last == step:
            return True
        if last is None and step.number > 0:
            raise LogError(
                f"{place} has nothing any more of what delivery {name!r} has delivered, up to epoch {step.after}; {ways_out(name)}"
            )
        if last is not None and last.upto < step.after:
            raise LogError(
                f"{place} ends with epoch {last.upto}, and had {step.after} before it was away: it has lost what lies between; "
                f"{ways_out(name)}"
            )
        if last is not None and last.upto > step.after:
            raise Fenced(f"{place} is at epoch {last.upto}, and was at {step.after}: another run delivers there")
        return False

    def _say(self, why: str) -> None:
        if self.trouble is None:
            log.warning("delivery %r waits: %s cannot be reached: %s", self._context.delivery, self._target.describe(), why)
        self.trouble = f"delivery {self._context.delivery!r} waits: {self._target.describe()} cannot be reached: {why}"
