"""The status of a run as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from millstream.log.status import Status, lag
from millstream.timestamp import END_OF_TIME, Timestamp, describe

if TYPE_CHECKING:
    from millstream.clients.postgres_slots import ReplicationSlot
    from millstream.mill.messages import KeptKey


def show(status: Status, console: Console) -> None:
    """Everything about a run on one page."""
    state = "running" if status.running else "not running"
    epoch = f"epoch {status.epoch}" if status.epoch >= 0 else "no epoch yet"
    console.print(f"[bold]{status.topology}[/]: {state}, {epoch}", highlight=False)
    console.print(_injectors(status))
    if status.computations:
        console.print(_computations(status))
        console.print(_records(status))
        console.print(_low_watermarks(status))
    if status.streams:
        console.print(_streams(status))
    if status.deliveries:
        console.print(_deliveries(status))
    console.print(f"the log is {status.log:,} epochs behind" if status.log else "the log has everything", highlight=False)
    for trouble in status.troubles:
        console.print(f"[yellow]{escape(trouble)}[/]", highlight=False)


def show_slots(slots: Sequence[ReplicationSlot], console: Console) -> None:
    """The replication slots of a server, one a line."""
    table = _table("slots", "name", "WAL held back", "read")
    for slot in slots:
        held = "lost" if slot.lost else "none" if slot.held is None else f"{slot.held / (1 << 20):,.1f} MB"
        table.add_row(slot.name, held, "now" if slot.active else "by nobody")
    console.print(table if slots else "there are no slots in this database", highlight=False)


def show_kept(kept: KeptKey, console: Console) -> None:
    """State and timers of a key."""
    where = f"{kept.computation}, key {kept.key!r}, epoch {kept.epoch:,}"
    console.print(where if kept.found else f"{where}: nothing is kept", highlight=False, markup=False, soft_wrap=True)
    if kept.state:
        console.print(kept.state, highlight=False, markup=False, soft_wrap=True)
    if kept.timers:
        table = _table("timers", "tag", "at", "clock", "holds")
        for timer in kept.timers:
            holds = "" if timer.hold is None else describe(timer.hold)
            table.add_row(escape(timer.tag), describe(timer.at), "wall" if timer.wall else "low watermark", holds)
        console.print(table)
    if kept.problem:
        console.print(kept.problem, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _injectors(status: Status) -> Table:
    table = _table("injectors", "name", "injected", "waiting", "unread", "dead letters", "low watermark", "input")
    for name, found in status.injectors.items():
        input_ = "ended" if found.finished else "idle" if found.idle else "open"
        counts = (found.injected, found.waiting, sum(found.lag.values()), found.dead)
        table.add_row(name, *(f"{count:,}" for count in counts), _up_to(found.low_watermark, timeless=found.timeless), input_)
    return table


def _records(status: Status) -> Table:
    seen = ["received", "late", "dropped", "diverted", "dead", "produced"]
    if any(found.tally.unkeyed for found in status.computations.values()):
        seen.insert(-1, "unkeyed")
    table = _table("records", "computation", *seen)
    for name, found in status.computations.items():
        table.add_row(name, *(f"{getattr(found.tally, what):,}" for what in seen))
    return table


def _computations(status: Status) -> Table:
    table = _table("computations", "name", "keys", "waiting", "timers", "timers fired", "last epoch")
    for name, found in status.computations.items():
        counts = (found.keys, found.waiting, found.timers, found.tally.fired)
        table.add_row(name, *(f"{count:,}" for count in counts), _epoch(found.epoch))
    return table


def _low_watermarks(status: Status) -> Table:
    table = _table("low watermarks, and how far they are behind the clock", "computation", "input", "behind", "output")
    for name, found in status.computations.items():
        when = (_up_to(found.low_watermark, timeless=found.timeless), behind(status, found.low_watermark))
        table.add_row(name, *when, _up_to(found.output_low_watermark, timeless=found.timeless))
    return table


def _up_to(low_watermark: Timestamp, *, timeless: bool) -> str:
    """A low watermark; a word where there is none. One that has ended is at the end of time all the same."""
    return "timeless" if timeless and low_watermark < END_OF_TIME else describe(low_watermark)


def behind(status: Status, low_watermark: Timestamp) -> str:
    """How far a low watermark is behind the wall clock, in the unit that says it shortest; nothing at the ends of time."""
    late = lag(low_watermark, status.now)
    if late is None:
        return ""
    seconds = int(late) // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds} s"


def _epoch(number: int) -> str:
    return f"{number:,}" if number >= 0 else "none yet"


def _streams(status: Status) -> Table:
    table = _table("streams", "name", "records", "low watermark", "behind", "last epoch")
    for name, found in status.streams.items():
        when = (_up_to(found.low_watermark, timeless=found.timeless), behind(status, found.low_watermark))
        table.add_row(name, f"{found.records:,}", *when, _epoch(found.epoch))
    return table


def _deliveries(status: Status) -> Table:
    table = _table("deliveries", "name", "epochs behind")
    for name, behind in status.deliveries.items():
        table.add_row(name, f"{behind:,}")
    return table
