"""Generated topologies on Spark, many side by side in one run that is torn down here and there.

What they say is a fold over their input, and their log keeps the invariants."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.core.graph import compile_topology
from tests import invariants as law
from tests.checker import Checker, watching
from tests.conformance.stages import SparkStage
from tests.core.cases import Case, Crash, Finish, Promise, Read, Send, Step, case_of, fold
from tests.core.topologies import build, diary_of, play

pytestmark = pytest.mark.spark

CASES = 12  # in one run
CRASHES = 2


class Hasty(SparkStage):
    """Waits for nothing until somebody reads: the mill cuts its epochs where it will. It is torn down in the middle of one."""

    torn: tuple[int, ...] = ()  # the epochs; 0 for none

    def crash(self) -> None:
        deadline = time.monotonic() + 10.0  # what was sent last may have left nothing to do
        while not self._under_way() and time.monotonic() < deadline:
            time.sleep(0.005)
        self._query.stop()
        self.torn += (self._under_way(),)  # now that nothing runs: what it was in the middle of
        super().crash()

    def _under_way(self) -> int:
        """The epoch that is planned and not done; 0 if there is none."""
        checkpoint = self._folder.checkpoint("mill")
        newest = {name: max((int(f.name) for f in (checkpoint / name).glob("[0-9]*")), default=-1) for name in ("commits", "offsets")}
        return newest["offsets"] if newest["offsets"] > newest["commits"] else 0

    def _settle(self) -> None:
        pass

    def read(self, stream: ms.Stream[Any]) -> list[ms.Record[Any]]:
        super()._settle()
        return super().read(stream)


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
    for _ in range(crashes):
        script.insert(chance.randrange(len(script) // 3, len(script)), Crash())
    return Case(injectors, tuple(nodes), tuple(script))


def _moved(read: Read, first: dict[str, int]) -> Read:
    kind = read.stream.rstrip("0123456789")
    return replace(read, stream=f"{kind}{int(read.stream[len(kind) :]) + first[kind]}")


def _shifted(step: Step, injectors: int) -> Step:
    return replace(step, injector=step.injector + injectors) if isinstance(step, Send | Promise | Finish) else step


def diary(made: Iterable[law.Logged]) -> list[law.Entry]:
    """What the computations tell of their timers. Their state must have known of every one that fired: both are one row."""
    found = diary_of(made)
    law.one_epoch_a_row(law.Row(e.computation, e.key, {e.tag: told or 0}, {e.tag: e.at}) for e, told in found if e.does == "fire")
    return [entry for entry, _ in found]


@pytest.mark.parametrize(("seed", "partitions"), [(1, 1), *(pytest.param(seed, 2, marks=pytest.mark.soak) for seed in (2, 3, None))])
def test_generated_topologies_on_spark(spark: SparkSession, tmp_path: Path, seed: int | None, partitions: int) -> None:
    """`None` is a new seed every time, which pytest tells in its first lines."""
    chance = random.Random(random.random() if seed is None else seed)
    case = side_by_side([case_of(chance) for _ in range(CASES)], crashes=CRASHES, chance=chance)
    stages: list[Hasty] = []

    def perform(topology: ms.Topology) -> Hasty:
        stages.append(Hasty(topology, tmp_path / "mill", spark, partitions))
        stages[-1].begin()
        return stages[-1]

    checker = Checker(tmp_path / "mill", compile_topology(build(case).topology), diary=diary)
    try:
        with watching(checker) as beside:
            played = play(case, perform)
    finally:
        for stage in stages:
            stage.stop()
    assert any(stages[0].torn)
    law.state_equals_fold(played.said, fold(case))
    checker.end()
    assert checker.epochs > 5
    assert beside.looks > 5
    assert sum(said.total() for said in played.said.values()) > 50
