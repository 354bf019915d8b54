"""One line that a person can read while a topology runs; plain lines where there is no terminal."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from millstream import arguments
from millstream.command.beside import beside
from millstream.command.tables import behind
from millstream.errors import RunFailed
from millstream.log.status import Status
from millstream.timestamp import describe

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.spark.options import Options, Until
    from millstream.spark.run import Run
    from millstream.topology import Topology

EVERY = 0.5  # seconds between two looks on a terminal
PLAIN_EVERY = 5.0  # and between two lines elsewhere


def run(
    topology: Topology,
    *,
    at: str | Path,
    spark: SparkSession | None = None,
    until: Until | None = None,
    options: Options | None = None,
    deliver_anew: Sequence[str] = (),
    progress: bool | None = None,
    dashboard: bool = False,
) -> Run:
    """Run a topology until it is drained (`until=ms.DRAINED`), interrupted, or fails.

    Its progress is shown on a terminal; elsewhere one line says at the end what came of it. `progress=True` shows lines of
    progress there, too, and `progress=False` shows nothing at all. `dashboard=True` serves a page that shows the run, as
    `millstream dashboard` does, and prints its address.
    The other arguments are those of `ms.start`.
    """
    from millstream.spark.run import start

    if progress is not None:
        arguments.flag("run", "progress", progress)
    with beside(at) if arguments.flag("run", "dashboard", dashboard) else nullcontext():
        return watch(lambda: start(topology, at=at, spark=spark, until=until, options=options, deliver_anew=deliver_anew), shown=progress)


def watch(begin: Callable[[], Run], *, shown: bool | None) -> Run:
    """Start a run and see it through. Ctrl-C or SIGTERM stops it in order; a second one at once."""
    console = Console(stderr=True)
    with _interrupts() as interrupted, _display(console, shown) as display:
        display.say("starting Spark")
        run = begin()
        try:
            _see_through(run, interrupted, display)
        except RunFailed as error:
            display.failed(error)
            raise
        display.last(run.status())
        return run


def _see_through(run: Run, interrupted: threading.Event, display: _Quiet) -> None:
    before, since = 0, time.monotonic()
    while not run.wait(EVERY):
        if interrupted.is_set():
            display.say("stopping: the epoch under way is finished first")
            run.stop()
            return
        status = run.status()
        now = time.monotonic()
        display.show(status, (status.injected - before) / (now - since) if now > since else 0.0)
        before, since = status.injected, now


def line(status: Status, rate: float) -> str:
    """What matters, in one line."""
    waiting = sum(injector.waiting for injector in status.injectors.values())
    dead = _dead(status)
    late = sum(c.tally.late for c in status.computations.values())
    parts = [
        f"epoch {status.epoch}",
        f"{status.injected:,} records in",
        f"{rate:,.0f}/s",
        f"{waiting:,} waiting",
        f"low watermark {_low_watermark(status)}",
    ]
    if late:
        parts.append(f"{late:,} late")
    if dead:
        parts.append(f"{dead:,} dead letters")
    return " · ".join(parts)


def closing_line(status: Status, seconds: float) -> str:
    """What came of a run, in one line: counts are those of its folder, over all runs."""
    late = [f"{name} {epochs:,} epochs" for name, epochs in status.deliveries.items() if epochs]
    parts = [
        f"{status.topology}: epoch {status.epoch}",
        f"{status.injected:,} records in",
        f"not delivered yet: {', '.join(late)}" if late else "all delivered",
        f"{sum(c.tally.dropped for c in status.computations.values()):,} dropped late",
        f"{_dead(status):,} dead letters",
        f"{seconds:,.0f} s",
    ]
    return " · ".join(parts)


def _dead(status: Status) -> int:
    return sum(i.dead for i in status.injectors.values()) + sum(c.tally.dead for c in status.computations.values())


def _low_watermark(status: Status) -> str:
    lw = status.low_watermark
    late = behind(status, lw)
    return f"{describe(lw)[:19]}Z ({late} behind)" if late else describe(lw)


class _Quiet:
    def say(self, words: str) -> None:
        """Nobody watches."""

    def show(self, status: Status, rate: float) -> None:
        """Nobody watches."""

    def last(self, status: Status) -> None:
        """Nobody watches."""

    def failed(self, error: RunFailed) -> None:
        """It is raised, too."""


class _Closing(_Quiet):
    """One line at the end, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, time.monotonic()

    def last(self, status: Status) -> None:
        self._print(closing_line(status, time.monotonic() - self._began))

    def failed(self, error: RunFailed) -> None:
        self._print(f"failed after {time.monotonic() - self._began:,.0f} s: {str(error).partition(chr(10))[0]}")

    def _print(self, words: str) -> None:
        self._console.print(words, highlight=False, soft_wrap=True, markup=False)


class _Plain(_Closing):
    """Lines now and then, too."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._printed = 0.0

    def say(self, words: str) -> None:
        self._print(words)

    def show(self, status: Status, rate: float) -> None:
        if time.monotonic() - self._printed >= PLAIN_EVERY:
            self._printed = time.monotonic()
            self.say(line(status, rate))

    def failed(self, error: RunFailed) -> None:
        """Whoever asked for lines is told by whoever catches the error."""


class _Updating(_Quiet):
    """One line that updates."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._began = time.monotonic()

    def say(self, words: str) -> None:
        self._live.update(Spinner("dots", Text(words)))

    def show(self, status: Status, rate: float) -> None:
        self.say(line(status, rate))

    def last(self, status: Status) -> None:
        self._live.update(Text(f"{line(status, 0.0).replace(' · 0/s', '')} · {time.monotonic() - self._began:,.0f} s"))


@contextmanager
def _display(console: Console, shown: bool | None) -> Iterator[_Quiet]:
    if shown is False:
        yield _Quiet()
    elif not console.is_terminal:
        yield _Closing(console) if shown is None else _Plain(console)
    else:
        with Live(console=console, refresh_per_second=8) as live:
            yield _Updating(live)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """The first interrupt asks for an orderly end; the second one is a KeyboardInterrupt as usual."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            _silence_py4j()
            signal.default_int_handler(number, frame)
        asked.set()

    kept = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        sys.stderr.flush()


def _silence_py4j() -> None:
    """Py4J prints tracebacks where an interrupt finds it in the middle of a call, by the root logger and by its own, also later
    when Java is gone; whoever pressed Ctrl-C twice knows why."""
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
