"""What a system must do to be delivered to: the door through which every target stands, ours and those of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from millstream.record import Record


class Step(msgspec.Struct, array_like=True, frozen=True):
    """What a target gets at once: the records of a stream in epochs (after, upto]. Steps count 0, 1, 2… without gaps."""

    number: int
    after: int
    upto: int


@dataclass(frozen=True)
class DeliveryContext:
    """What a target is told of the delivery that it is opened for."""

    delivery: str
    stream: str
    value_type: Any  # None for any
    identity: str  # stays the same over restarts, and is another one when the delivery begins anew
    fence: int  # greater with every run


class Sink(ABC):
    """An open target. It is opened by the thread that starts the run and then used by another, never by two at once.

    Whatever it raises ends the run, but for `ms.Unreachable`.
    """

    def last_step(self) -> Step | None:
        """Of a target with transactions: the newest step of this identity that it has, None for none. Asked after `open`, which has
        told the target of the new fence: from then on no older run can change the answer."""
        raise NotImplementedError

    @abstractmethod
    def write(self, step: Step, records: Sequence[Record[Any]]) -> None:
        """Take the records of a step, in order; it has them when this returns.

        With transactions: the records and the step in one. `ms.Fenced` if a greater fence is known, or if the newest step that
        the target has does not end with `step.after`; where it has none, only step 0 is taken. There may be no records: then
        only the step is recorded.
        Without: after a crash, or `ms.Unreachable`, the same step comes again, with the same number and the same records.
        """

    def close(self) -> None:
        """The run has ended, or the target is opened anew."""
        return


class AnyTarget(ABC):
    """Where a delivery puts what it takes: all that a run knows of a target, whichever streams it is for."""

    transactional: ClassVar[bool] = False  # it commits records and step together, and is asked for the newest step it has
    numbered: ClassVar[bool] = True  # without transactions: a step comes again under its own number, and is on the disk before the call

    def describe(self) -> str:
        """Where that is, for people, and to tell one place from another. Without secrets: it is written down."""
        return type(self).__name__

    def check(self, context: DeliveryContext) -> None:
        """Refuse what could not be delivered to, with `ms.TopologyError`. Called before anything runs; changes nothing."""
        return

    @abstractmethod
    def open(self, context: DeliveryContext) -> Sink:
        """Connect. Raises `ms.Unreachable` where it may be tried again."""


class Target(AnyTarget):
    """Where a delivery puts the records of any stream, from the driver: derive from it for a system of your own.

    `millstream.testing.TargetContract` and `TransactionalTargetContract` hold what a target must keep to, as tests.
    """


class RowTarget(AnyTarget):
    """Where a delivery puts the rows of a table, a stream of `ms.Change`: what stands under each key, and nothing else."""
