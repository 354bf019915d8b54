"""Mutants of sources that threads and lanes read: what is lost, read twice, out of order, or promised too early."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millstream.core.ledger import SourceChange
from millstream.core.planning import listen_anew
from millstream.mill.offered import Offered
from millstream.mill.opened import Opened
from millstream.mill.planner import Planner
from millstream.mill.seats import Seat
from tests.simulation.broken import Patch
from tests.simulation.sources import ThreadInput

# What is lost, or read twice.


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


def given_from_the_beginning() -> list[Patch]:
    """A start that does not ask the commits how far they have read."""
    original = ThreadInput.__init__

    def begin(self: ThreadInput, *given: Any) -> None:
        original(self, *given)
        self.positions = {}

    return [(ThreadInput, "__init__", begin)]


def ranges_of_an_injector_in_any_order() -> list[Patch]:
    """Positions of a range that was offered earlier come last, and what lies between is read again."""
    original = Opened.read
    return [(Opened, "read", lambda self: reversed(list(original(self))))]


def what_is_out_of_reach_is_dropped() -> list[Patch]:
    original = Offered.settle

    def settle(self: Offered, read: Iterable[Any], seconds: float) -> Any:
        return original(self, [(assigned, fed) for assigned, fed in read if not fed.unreachable], seconds)

    return [(Offered, "settle", settle)]


def what_is_out_of_reach_counts_as_read() -> list[Patch]:
    def settle(self: Offered, read: Iterable[Any], seconds: float) -> Any:
        return [fed for _, fed in read], []

    return [(Offered, "settle", settle)]


def what_comes_after_it_is_kept() -> list[Patch]:
    """Only the range that could not be reached is read again: the position of its partition is beyond it by then."""
    original = Offered.settle

    def settle(self: Offered, read: Iterable[Any], seconds: float) -> Any:
        both = list(read)
        kept, news = original(self, [each for each in both if each[1].unreachable], seconds)
        return [*kept, *(fed for _, fed in both if not fed.unreachable)], news

    return [(Offered, "settle", settle)]


def batches_before_the_pieces_in_front_of_them() -> list[Patch]:
    return [(ThreadInput, "may_feed", lambda self: self.run.planner.has_room)]


def opened_before_lanes_have_read() -> list[Patch]:
    return [(ThreadInput, "may_open", lambda self: True)]


def opened_without_what_lanes_have_read() -> list[Patch]:
    """It counts the pieces that commits have read, and goes on from what it fed itself."""

    def notify(self: ThreadInput, commit: Any) -> None:
        if self.name in commit.sources:
            self.pieces -= commit.sources[self.name].pieces

    return [(ThreadInput, "notify", notify)]


def pieces_of_a_commit_count_once() -> list[Patch]:
    """Whoever waits for all of them waits for ever."""
    original = SourceChange.after

    def after(self: SourceChange, earlier: SourceChange | None) -> SourceChange:
        both = original(self, earlier)
        both.pieces = self.pieces
        return both

    return [(SourceChange, "after", after)]


def orphans_are_what_lanes_write_to() -> list[Patch]:
    """Of what was out of reach no commit names anything: its segment goes, and the lane writes on."""
    original = Seat.committed

    def reported(self: Seat, report: Any, now: float) -> None:
        self.heard = now

    def committed(self: Seat, epoch: int, frame: Any) -> None:
        original(self, epoch, frame)
        self.segment = frame.segment

    return [(Seat, "reported", reported), (Seat, "committed", committed)]


# What is promised too early.


def nothing_holds_the_promise() -> list[Patch]:
    return [(Offered, "holding", lambda self, sources: set())]


def only_what_waits_holds_the_promise() -> list[Patch]:
    """Not what the source has and has not given."""
    original = Offered.holding

    def holding(self: Offered, sources: Any) -> set[str]:
        unread, self._unread = self._unread, {}
        try:
            return original(self, sources)
        finally:
            self._unread = unread

    return [(Offered, "holding", holding)]


class _Later(set[str]):
    """Looks when it is asked."""

    def __init__(self, look: Callable[[], set[str]]) -> None:
        super().__init__()
        self._look = look

    def __contains__(self, name: object) -> bool:
        return name in self._look()


def what_an_epoch_reads_does_not_hold() -> list[Patch]:
    """It is asked who holds the promise when the ranges of the epoch are taken."""
    original = Offered.holding
    return [(Offered, "holding", lambda self, sources: _Later(lambda: original(self, sources)))]


def whoever_is_deaf_has_read_all() -> list[Patch]:
    original = Offered.hear

    def hear(self: Offered, injector: str, partitions: list[str] | None) -> None:
        original(self, injector, partitions)
        if partitions is None:
            self._unread.pop(injector, None)
            self._unheard.discard(injector)

    return [(Offered, "hear", hear)]


def a_start_promises_before_it_has_heard() -> list[Patch]:
    original = Offered.__init__

    def begin(self: Offered, *given: Any) -> None:
        original(self, *given)
        self._unheard.clear()

    return [(Offered, "__init__", begin)]


def what_was_given_is_read() -> list[Patch]:
    """Though nothing of it was passed on."""
    return [(ThreadInput, "given", lambda self: set())]


def whoever_is_deaf_is_silent() -> list[Patch]:
    original = Offered.listen

    def listen(self: Offered, sources: Any, clock: Any) -> None:
        deaf, self._deaf = self._deaf, set()
        original(self, sources, clock)
        self._deaf = deaf

    return [(Offered, "listen", listen)]


def what_waits_is_silent() -> list[Patch]:
    """Of all partitions, but those of a source that is deaf."""

    def listen(self: Offered, sources: Any, clock: Any) -> None:
        for name in self._deaf & sources.keys():
            listen_anew({name: sources[name]}, clock=clock)

    return [(Offered, "listen", listen)]
