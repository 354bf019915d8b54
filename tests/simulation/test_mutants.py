"""Each rule of the protocol, broken on purpose, breaks a law within some seeds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.mutants import MAX_SEEDS, MUTANTS, Mutant, seeds_until_caught

QUICK = {
    "first commits of fences are merged away",
    "a starting run does not look for snapshots afterwards",
    "a number that is taken counts as committed",
    "a missing number is the end",
    "somebody is woken before the folder is synced",
    "an older attempt is admitted",
    "a lane that lost its planner returns normally",
    "redo skips an epoch",
    "a new attempt counts as the one that ran",
    "a commit before all reports",
    "an abort loses its parts",
    "a lane that hangs is waited for",
    "a lane is told to checkpoint in an open epoch",
    "held rows are kept over any checkpoint",
    "the disk is blamed without a look for newer commits",
    "removed before the commit that says so",
    "orphans are removed without a commit",
    "orphans are what no commit names yet",
    "orphans may be named by the commit that frees them",
    "free is what the join has, not the batch before",
    "written back is free",
    "free though the log lacks it",
    "the log is written wherever it is",
    "a step is repeated without its range",
    "a note is taken twice",
    "a report comes before the sync",
    "commits go before the snapshot is durable",
    "readers by number",
    "parts are taken twice",
    "an abort loses its ranges",
    "sources are given from the beginning",
    "ranges in any order",
    "what is out of reach is dropped",
    "what comes after what is out of reach is kept",
    "batches before the pieces in front of them",
    "opened without what lanes have read",
    "nothing holds the promise",
    "what an epoch reads does not hold",
    "whoever is deaf has read all",
    "a start promises before it has heard",
    "what was given is read",
}


PROTOCOL = Path(__file__).parent.parent.parent / "docs" / "protocol.md"


def test_every_rule_of_the_protocol_has_a_mutant_that_is_noticed_soon() -> None:
    rules = set(re.findall(r"^\*\*(\d+)\. ", PROTOCOL.read_text(), re.MULTILINE))
    assert len(rules) > 20
    assert rules == {mutant.rule for mutant in MUTANTS if mutant.name in QUICK} - {"-"}
    assert {mutant.name for mutant in MUTANTS} > QUICK


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name in QUICK], ids=lambda m: m.name)
def test_a_broken_rule_is_noticed_soon(mutant: Mutant) -> None:
    seeds, _ = seeds_until_caught(mutant, 60)
    assert seeds is not None


@pytest.mark.soak
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name not in QUICK and not m.unseen], ids=lambda m: m.name)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    seeds, _ = seeds_until_caught(mutant, MAX_SEEDS)
    assert seeds is not None
