"""Runs plain functions side by side on one simulated disk, one step at a time, in an order that a seed decides."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

from tests.journal.simdisk import Crash, SimDisk


class _Actor:
    def __init__(self, act: Callable[[], None], stopped: threading.Semaphore) -> None:
        self.go = threading.Semaphore(0)
        self.done = False
        self.error: BaseException | None = None
        self._act, self._stopped = act, stopped
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.go.acquire()
        try:
            self._act()
        except BaseException as error:
            self.error = error
        self.done = True
        self._stopped.release()


def interleave(disk: SimDisk, rng: random.Random, acts: Sequence[Callable[[], None]], *, kill_after: int | None = None) -> None:
    """Run all to their ends; only one moves at any time, and another may before each step on the disk.

    With `kill_after`, all are killed where they are after so many steps.
    """
    stopped = threading.Semaphore(0)
    actors = [_Actor(act, stopped) for act in acts]
    moving: list[_Actor] = []

    def pause(what: str) -> None:
        actor = moving[0]
        stopped.release()
        actor.go.acquire()
        if kill_after is not None and disk.steps > kill_after:
            raise Crash(what)

    disk.on_step = pause
    for actor in actors:
        actor.thread.start()
    while waiting := [actor for actor in actors if not actor.done]:
        actor = rng.choice(waiting)
        for _ in range(rng.choice((1, 1, 2, 5, 20, 100))):  # some steps in a row: one that lags behind is what finds errors
            moving[:] = [actor]
            actor.go.release()
            stopped.acquire()
            if actor.done:
                break
    disk.on_step = lambda what: None
    for actor in actors:
        actor.thread.join()
    errors = [actor.error for actor in actors if actor.error is not None and not isinstance(actor.error, Crash)]
    if errors:
        raise errors[0]
