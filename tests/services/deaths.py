"""A run, a broker and a server that are killed in turn, while something comes all the time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from tests.kills import kill_tree
from tests.services.kafka import Broker
from tests.services.postgres import PostgresServer
from tests.waiting import wait_until

LONGEST = 2.0  # seconds that all is left alone after an answer

Process = subprocess.Popen[bytes]


def kill_in_turn(
    start: Callable[[], Process],
    answers: Callable[[Process], None],
    broker: Broker,
    server: PostgresServer,
    *,
    each: int,
    chance: random.Random,
    how: signal.Signals,
) -> None:
    """So often each of them, in an order of chance, some time after the run has answered; at the end it is killed once more.

    `how` the broker goes: one that is the only one, and is killed in the millisecond after it has taken a commit, may forget to end
    the transaction, and its readers wait from then on (tests/targets/test_kafka_faults.py has what a delivery says then).
    """
    victims = ["run", "broker", "server"] * each
    chance.shuffle(victims)
    process: Process | None = None
    try:
        for victim in victims:
            process = process or start()
            answers(process)
            time.sleep(chance.uniform(0, LONGEST))
            if victim == "run":
                assert kill_tree(process) > 1, "it was there to be killed"
                process = None
            elif victim == "broker":
                assert broker.pid is not None
                broker.kill(how)
                broker.start()
            else:
                server.stop(signal.SIGQUIT)  # backends go in the middle of what they do; recovery when it starts
                server.start()
    finally:
        if process is not None and process.poll() is None:
            kill_tree(process)


# Whose steps are struck when a victim is.
STEPS_OF = {"run": ("topic", "table", "mirror"), "broker": ("topic",), "server": ("table", "mirror")}
LONGEST_STEP = 0.004  # seconds; a strike after the step has ended is one more that counts for nothing
TRIES = 6  # strikes for each that must fall into a step, on average


class Steps:
    """What a program says of its steps (tests/ends_program.py)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def strike(self, deliveries: tuple[str, ...], delay: float, deed: Callable[[], None]) -> bool:
        """So long after a step has begun. Whether that step had not ended by then."""
        with self._path.open() as lines:
            lines.seek(0, os.SEEK_END)
            began = list[str]()

            def has_begun() -> bool:
                words = lines.readline().split()
                if words and words[0] in deliveries and words[1] == "begins":
                    began[:] = words
                return bool(began)

            wait_until(has_begun, pause=0.0002)
            time.sleep(delay)
            deed()
            delivery, _, number = began
            return not any(line.split() == [delivery, "ends", number] for line in lines)


def kill_in_steps(
    start: Callable[[], Process],
    answers: Callable[[Process], None],
    broker: Broker,
    server: PostgresServer,
    steps: Steps,
    *,
    each: int,
    chance: random.Random,
    how: signal.Signals,
) -> dict[str, int]:
    """As `kill_in_turn`, each of them in the middle of a step that goes to it, or of any for the run; how often that was so.

    A strike that came too late is repeated, in another step.
    """
    process: Process | None = None
    hits = dict.fromkeys(STEPS_OF, 0)
    strikes = 0
    try:
        while min(hits.values()) < each:
            strikes += 1
            assert strikes <= TRIES * each * len(hits), f"too few fell into a step: {hits}"
            victim = chance.choice([name for name, count in hits.items() if count < each])
            process = process or start()
            answers(process)
            if victim == "run":
                deed = _killing(process)
            else:
                pid, signalled = (broker.pid, how) if victim == "broker" else (server.pid, signal.SIGQUIT)
                assert pid is not None
                deed = partial(os.kill, pid, signalled)
            hits[victim] += steps.strike(STEPS_OF[victim], chance.uniform(0, LONGEST_STEP), deed)
            if victim == "run":
                process.wait()
                process = None
            elif victim == "broker":
                broker.kill(how)
                broker.start()
            else:
                server.stop(signal.SIGQUIT)
                server.start()
    finally:
        if process is not None and process.poll() is None:
            kill_tree(process)
    return hits


def _killing(process: Process) -> Callable[[], None]:
    """The driver first: it is the one that writes to targets. Who else is of the family is found before, for that takes its time."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert len(family) > 1

    def kill() -> None:
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()

    return kill
