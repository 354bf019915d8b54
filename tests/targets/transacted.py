"""A system with transactions, in memory, as somebody else would write a target for it: only public names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import millstream as ms


@dataclass
class System:
    """What outlives every run: rows, and for each identity its fence and newest step. `fail` may raise at a named moment."""

    rows: list[tuple[str, Any]] = field(default_factory=list)
    fences: dict[str, int] = field(default_factory=dict)
    steps: dict[str, ms.Step] = field(default_factory=dict)
    fail: Callable[[str], None] = lambda moment: None


class SystemSink(ms.Sink):
    def __init__(self, system: System, context: ms.DeliveryContext) -> None:
        self._system, self._context = system, context

    def last_step(self) -> ms.Step | None:
        return self._system.steps.get(self._context.identity)

    def write(self, step: ms.Step, records: Sequence[ms.Record[Any]]) -> None:
        system, identity = self._system, self._context.identity
        system.fail("before")
        last = self.last_step()
        follows = step.number == 0 if last is None else last.upto == step.after
        if system.fences[identity] != self._context.fence or not follows:
            raise ms.Fenced("a newer run delivers to the system")
        system.rows += [(record.key, record.value) for record in records]
        system.steps[identity] = step
        system.fail("after")


class SystemTarget(ms.Target):
    transactional = True

    def __init__(self, system: System) -> None:
        self._system = system

    def describe(self) -> str:
        return "the system"

    def open(self, context: ms.DeliveryContext) -> ms.Sink:
        self._system.fail("open")
        if context.fence < self._system.fences.get(context.identity, 0):
            raise ms.Fenced("a newer run delivers to the system")
        self._system.fences[context.identity] = context.fence
        return SystemSink(self._system, context)
