"""One line that a person can read while a topology runs; plain lines where there is no terminal."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from millstream.command.tables import behind
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
) -> Run:
    """Run a topology until it is drained (`until=ms.DRAINED`), interrupted, or fails. Shows its progress on a terminal.

    The other arguments are those of `ms.start`.
    """
    from millstream.spark.run import start

    return watch(lambda: start(topology, at=at, spark=spark, until=until, options=options, deliver_anew=deliver_anew), shown=progress)


def watch(begin: Callable[[], Run], *, shown: bool | None) -> Run:
    """Start a run and see it through. Ctrl-C or SIGTERM stops it in order; a second one at once."""
    console = Console(stderr=True)
    quiet = shown is False or (shown is None and not console.is_terminal)
    with _interrupts() as interrupted, _display(console, quiet=quiet) as display:
        display.say("starting Spark")
        run = begin()
        before, since = 0, time.monotonic()
        while not run.wait(EVERY):
            if interrupted.is_set():
                display.say("stopping: the epoch under way is finished first")
                run.stop()
                break
            status = run.status()
            now = time.monotonic()
            display.show(status, (status.injected - before) / (now - since) if now > since else 0.0)
            before, since = status.injected, now
        display.last(run.status())
        return run


def line(status: Status, rate: float) -> str:
    """What matters, in one line."""
    waiting = sum(injector.waiting for injector in status.injectors.values())
    dead = sum(i.dead for i in status.injectors.values()) + sum(c.tally.dead for c in status.computations.values())
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


class _Plain(_Quiet):
    """Lines, now and then."""

    def __init__(self, console: Console) -> None:
        self._console, self._printed = console, 0.0

    def say(self, words: str) -> None:
        self._console.print(words, highlight=False, soft_wrap=True)

    def show(self, status: Status, rate: float) -> None:
        if time.monotonic() - self._printed >= PLAIN_EVERY:
            self._printed = time.monotonic()
            self.say(line(status, rate))

    def last(self, status: Status) -> None:
        self.say(line(status, 0.0).replace(" · 0/s", ""))


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
def _display(console: Console, *, quiet: bool) -> Iterator[_Quiet]:
    if quiet:
        yield _Quiet()
    elif not console.is_terminal:
        yield _Plain(console)
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
