"""`make soak`: kill -9 at random moments, again and again; then nothing is lost, nothing doubled, and the order is kept.

The whole run, the driver alone, its Java process, its planner, a lane or the writer. A reader looks on from beside all the time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import millstream as ms
from tests.kills import Input, answers, check, expected, feeding, kill_tree, output_of, processes, run_to_the_end, start
from tests.waiting import wait_until

ENDS = {"all": 60, "driver": 20, "planner": 20, "java": 5}  # what a run does not survive, and how often it is chosen
LAST_MESSAGE = {"planner": "the planner's process died (exit code -9", "java": "Spark's Java process died"}
COMES_BACK = {"lane": 60, "writer": 25}
VICTIMS = ENDS | COMES_BACK
LONGEST = 3.0  # seconds that a run is left alone after its first answer
LOOK_EVERY = 1.0
MAX_KILLS = 10_000  # more than anybody waits for
MAX_COMEBACKS = 4  # of one kind in a run: a lane or a writer that dies more often within a minute ends it


@dataclass
class Outcome:
    """What a soak saw."""

    kills: Counter[str] = field(default_factory=Counter)
    waits: dict[str, list[float]] = field(default_factory=dict)  # seconds from a kill to the first new answer
    epochs: int = 0
    records: int = 0
    looks: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} of {kind}" for kind, count in self.kills.most_common())
        waits = "; ".join(f"{kind} {statistics.median(each):.1f} ({max(each):.1f} at most)" for kind, each in sorted(self.waits.items()))
        return (
            f"{self.kills.total()} kills ({kinds}), {self.epochs} epochs, {self.records:,} results, {self.looks} looks from beside: "
            f"nothing lost, nothing doubled, every key in order. Seconds from a kill to the next answer: {waits}"
        )


class Reader:
    """Reads a run from beside, as anybody may: what it has seen stays, and nothing goes back."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._totals: list[ms.Record[object]] = []
        self._epoch, self._low_watermark = 0, ms.START_OF_TIME
        self.looks = 0
        self.error: BaseException | None = None

    def look(self) -> None:
        if not (self._run / "topology.json").exists():
            return
        status = ms.status_of(self._run)
        assert status.epoch >= self._epoch, "an epoch was taken back"
        if status.computations:
            assert status.low_watermark >= self._low_watermark, "a low watermark moved back"
            self._low_watermark = status.low_watermark
        self._epoch = status.epoch
        if "growing.totals" in status.streams:
            totals = ms.read(self._run, "growing.totals")
            assert len(totals) >= status.streams["growing.totals"].records, "what is committed cannot be read"
            assert totals[: len(self._totals)] == self._totals, "what was read before is not the beginning of what is read now"
            self._totals = totals
        self.looks += 1

    def go_on(self, over: threading.Event) -> None:
        try:
            while not over.wait(LOOK_EVERY):
                self.look()
        except BaseException as error:
            self.error = error


@contextmanager
def reading(run: Path) -> Iterator[Reader]:
    """Whatever it finds wrong is raised at the end."""
    reader, over = Reader(run), threading.Event()
    thread = threading.Thread(target=reader.go_on, args=(over,), name="reads from beside")
    thread.start()
    try:
        yield reader
    finally:
        over.set()
        thread.join()
    if reader.error is not None:
        raise reader.error


def soak(base: Path, *, seconds: float, kills: int, seed: int, victims: Sequence[str] = ()) -> Outcome:
    """Kill until the time is over or the kills are used up; then let it end, and compare.

    At random, or these victims in turn, again and again.
    """
    chance, outcome, deadline = random.Random(seed), Outcome(), time.monotonic() + seconds
    given = Input(base, seed)
    with reading(base / "run") as reader, feeding(given):
        while outcome.kills.total() < kills and time.monotonic() < deadline and reader.error is None:
            _one_run(base, chance, outcome, kills, deadline, victims)
    outcome.looks = reader.looks
    run_to_the_end(base, seconds=600)
    outcome.epochs, outcome.records = check(base), expected(base).records
    return outcome


def _one_run(base: Path, chance: random.Random, outcome: Outcome, most: int, deadline: float, victims: Sequence[str]) -> None:
    """From its start to its death, with what it survives in between."""
    since, killed = time.monotonic(), "" if not outcome.kills else "restart"
    process = start(base)
    survived: Counter[str] = Counter()
    try:
        if not victims and chance.random() < 0.1:  # wherever its start has come to
            _wait(process, chance.uniform(0, 8))
            _kill(base, process, "all", outcome)
            return
        while True:
            answers(base, process, seconds=240)
            if killed:
                outcome.waits.setdefault(killed, []).append(time.monotonic() - since)
            if outcome.kills.total() >= most or time.monotonic() >= deadline:
                return
            _wait(process, chance.uniform(0, LONGEST))
            choice = ENDS if survived["lane"] >= MAX_COMEBACKS or outcome.kills.total() + 1 >= most else VICTIMS
            killed = victims[outcome.kills.total() % len(victims)] if victims else chance.choices(list(choice), list(choice.values()))[0]
            if victims and survived[killed] >= MAX_COMEBACKS:
                return
            survived[killed] += 1
            since = time.monotonic()
            _kill(base, process, killed, outcome)
            if killed in ENDS:
                return
    finally:
        if process.poll() is None:
            kill_tree(process)


def _kill(base: Path, process: subprocess.Popen[bytes], victim: str, outcome: Outcome) -> None:
    outcome.kills[victim] += 1
    if victim == "all":
        kill_tree(process)
    elif victim == "driver":
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        _, left = psutil.wait_procs(family, timeout=30)
        assert not left, "with the driver all its processes go"
    else:
        wait_until(lambda: bool(processes(process, victim)), 60)
        doomed = processes(process, victim)[0]
        doomed.kill()
        if victim in LAST_MESSAGE:
            assert process.wait(60) == 1
            assert LAST_MESSAGE[victim] in output_of(base)
    print(f"kill {outcome.kills.total()}: {victim}", flush=True)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let it live for so long; it does not die by itself."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError(f"the run has ended by itself with {process.returncode}")


def _victims(words: str) -> list[str]:
    """As they stand in `--victims`."""
    found = words.split(",")
    unknown = [word for word in found if word not in VICTIMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no victim is called {', '.join(map(repr, unknown))}; give some of {', '.join(VICTIMS)}")
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--kills", type=int, help="so many, and fail if the seconds are over before; without it, until they are over")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument(
        "--victims",
        type=_victims,
        default=[],
        help=f"what to kill in turn, as in lane,lane,driver: {', '.join(VICTIMS)} (all is the whole run); without it, any at random",
    )
    arguments = parser.parse_args(words)
    print(f"seed {arguments.seed}")
    kills = MAX_KILLS if arguments.kills is None else arguments.kills
    with tempfile.TemporaryDirectory(prefix="millstream-soak-") as folder:
        outcome = soak(Path(folder), seconds=arguments.seconds, kills=kills, seed=arguments.seed, victims=arguments.victims)
    print(outcome)
    if arguments.kills is not None and outcome.kills.total() < kills:
        raise SystemExit(f"{outcome.kills.total()} of {kills} kills in {arguments.seconds:g} seconds; give it more --seconds")


if __name__ == "__main__":
    main()
