"""The status of a run as tables."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from millstream.log.status import Status, lag
from millstream.timestamp import Timestamp, describe


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


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _injectors(status: Status) -> Table:
    table = _table("injectors", "name", "injected", "waiting", "dead letters", "low watermark", "input")
    for name, found in status.injectors.items():
        ended = "ended" if found.finished else "open"
        table.add_row(name, f"{found.injected:,}", f"{found.waiting:,}", f"{found.dead:,}", describe(found.low_watermark), ended)
    return table


def _records(status: Status) -> Table:
    seen = ("received", "late", "dropped", "diverted", "dead", "produced")
    table = _table("records", "computation", *seen)
    for name, found in status.computations.items():
        table.add_row(name, *(f"{getattr(found.tally, what):,}" for what in seen))
    return table


def _computations(status: Status) -> Table:
    table = _table("computations", "name", "keys", "timers", "timers fired", "last epoch")
    for name, found in status.computations.items():
        table.add_row(name, f"{found.keys:,}", f"{found.timers:,}", f"{found.tally.fired:,}", _epoch(found.epoch))
    return table


def _low_watermarks(status: Status) -> Table:
    table = _table("low watermarks, and how far they are behind the clock", "computation", "input", "behind", "output")
    for name, found in status.computations.items():
        table.add_row(name, describe(found.low_watermark), behind(status, found.low_watermark), describe(found.output_low_watermark))
    return table


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
        when = (describe(found.low_watermark), behind(status, found.low_watermark))
        table.add_row(name, f"{found.records:,}", *when, _epoch(found.epoch))
    return table


def _deliveries(status: Status) -> Table:
    table = _table("deliveries", "name", "epochs behind")
    for name, behind in status.deliveries.items():
        table.add_row(name, f"{behind:,}")
    return table
