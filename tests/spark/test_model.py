"""Generated topologies on Spark, many side by side in one run that is torn down here and there.

What they say is a fold over their input, and their journal keeps the invariants."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.mill.actions import Fed
from tests import invariants as law
from tests.checker import Checker, watching
from tests.conformance.on_spark import SparkStage
from tests.core.cases import Case, Crash, Finish, Promise, Read, Send, Step, case_of, fold
from tests.core.topologies import diary_of, play
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

CASES = 12  # in one run
CRASHES = 2


class Hasty(SparkStage):
    """Waits for nothing until somebody reads: the mill cuts its epochs where it will. It is torn down in the middle of one."""

    def __init__(self, topology: ms.Topology, at: Path, spark: SparkSession, lanes: int) -> None:
        super().__init__(topology, at, spark, lanes)
        self._tearing = False
        self.torn: list[int] = []  # epochs that were open, and were never committed as they were

    def crash(self, **clocks: Any) -> None:
        """With the records that are given next, for these make an epoch due."""
        self._tearing = True

    def feed(self, fed: Fed) -> None:
        if self._tearing and fed.frames:
            self._tearing = False
            self._tear(fed)
        else:
            super().feed(fed)

    def settle(self) -> None:
        pass

    def read(self, stream: ms.Stream[Any]) -> list[ms.Record[Any]]:
        super().settle()
        return super().read(stream)

    def _tear(self, fed: Fed) -> None:
        """Its lanes are stopped, so that the epoch cannot end; then its planner is killed."""
        wait_until(lambda: all(lane.process for lane in self.seats().lanes))
        lanes = [psutil.Process(int(lane.process.split()[-1])) for lane in self.seats().lanes]
        for lane in lanes:
            lane.suspend()
        try:
            super().feed(fed)
            wait_until(lambda: self.seats().opened is not None)
            opened = self.seats().opened
            assert opened is not None
            self.torn.append(opened)
            self.mill.planner.process.kill()
        finally:
            for lane in lanes:
                lane.resume()
        wait_until(self.mill.planner.ended.is_set)
        self.take_over(lambda: None)


def side_by_side(cases: Sequence[Case], *, crashes: int, chance: random.Random) -> Case:
    """One topology of all of them, which know nothing of each other; their scripts take turns."""
    injectors = 0
    nodes: list[Any] = []
    scripts: list[list[Step]] = []
    for case in cases:
        first = {"in": injectors, "n": len(nodes)}
        nodes += [replace(node, reads=tuple(_moved(read, first) for read in node.reads)) for node in case.nodes]
        scripts.append([_shifted(step, injectors) for step in case.script if not isinstance(step, Crash)])
        injectors += case.injectors
    script: list[Step] = [step for turn in itertools.zip_longest(*scripts) for step in turn if step is not None]
    sends = [place for place, step in enumerate(script) if isinstance(step, Send) and step.items]
    for place in sorted(chance.sample(sends[len(sends) // 3 :], crashes), reverse=True):
        script.insert(place, Crash())
    return Case(injectors, tuple(nodes), tuple(script))


def _moved(read: Read, first: dict[str, int]) -> Read:
    kind = read.stream.rstrip("0123456789")
    return replace(read, stream=f"{kind}{int(read.stream[len(kind) :]) + first[kind]}")


def _shifted(step: Step, injectors: int) -> Step:
    return replace(step, injector=step.injector + injectors) if isinstance(step, Send | Promise | Finish) else step


def diary(made: Iterable[law.Logged]) -> list[law.Entry]:
    """What the computations tell of their timers. Their state must have known of every one that fired: both are one row."""
    found = diary_of(made)
    law.one_epoch_per_row(law.Row(e.computation, e.key, {e.tag: in_state or 0}, {e.tag: e.at}) for e, in_state in found if e.does == "fire")
    return [entry for entry, _ in found]


@pytest.mark.parametrize(("seed", "lanes"), [(1, 2), *(pytest.param(seed, 2, marks=pytest.mark.soak) for seed in (2, 3, None))])
def test_generated_topologies_on_spark(spark: SparkSession, tmp_path: Path, seed: int | None, lanes: int) -> None:
    """`None` is a new seed every time, which pytest tells in its first lines."""
    chance = random.Random(random.random() if seed is None else seed)
    case = side_by_side([case_of(chance) for _ in range(CASES)], crashes=CRASHES, chance=chance)
    with ExitStack() as undo:

        def perform(topology: ms.Topology) -> Hasty:
            stage = Hasty(topology, tmp_path / "mill", spark, lanes)
            undo.callback(stage.stop)
            stage.begin()
            undo.enter_context(watching(Checker(stage.disk, stage.graph, diary=diary)))
            return stage

        played = play(case, perform)
        checker = Checker(played.stage.disk, played.stage.graph, diary=diary)
        checker.end()
    assert len(played.stage.torn) == CRASHES
    law.state_equals_fold(played.said, fold(case))
    assert checker.epochs > 5
    assert sum(said.total() for said in played.said.values()) > 50
