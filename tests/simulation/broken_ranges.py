"""Mutants of what lanes read: ranges that are lost, read twice, or passed over."""

from __future__ import annotations

from typing import Any

from millstream.mill.offered import Offered
from millstream.mill.opened import Opened
from millstream.mill.planner import Planner
from tests.simulation.broken import Patch
from tests.simulation.inputs import RangesInput


def an_abort_loses_its_ranges() -> list[Patch]:
    return [(Offered, "give_back", lambda self, taken: None)]


def positions_before_what_was_read() -> list[Patch]:
    """A report is fed as it comes: if the epoch is aborted afterwards, positions are committed and what was read is not."""
    original = Planner.on_report

    def on_report(self: Planner, connection: int, report: Any, at: Any) -> list[Any]:
        if self.opened is not None and connection in self._by_connection:
            for fed in report.read:
                self.pending.feed(fed, self.ledger, at)
        return original(self, connection, report, at)

    return [(Planner, "on_report", on_report), (Opened, "read", lambda self: iter(()))]


def offered_from_the_beginning() -> list[Patch]:
    """A start that does not ask the commits how far they have read."""
    original = RangesInput.__init__

    def begin(self: RangesInput, *given: Any) -> None:
        original(self, *given)
        self._offered = 0

    return [(RangesInput, "__init__", begin)]


def ranges_of_an_injector_in_any_order() -> list[Patch]:
    """Positions of a range that was offered earlier come last, and what lies between is read again."""
    return [(Opened, "read", lambda self: (fed for lane in reversed(self.lanes) for fed in reversed(self.reports[lane].read)))]
