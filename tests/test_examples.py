"""No example says anything else where epochs are cut otherwise; those in event time neither where records come in another order."""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples import FOLDER
from tests.operators.arrival import rows
from tests.shown import ELSEWHERE, EXAMPLES, PAGES
from tests.splits import at_once, bit_by_bit, told
from tests.test_docs import GUIDE, README, blocks

CASES = 12


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """An example or a page of the guide as a module, made anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))

    def make(name: str) -> ModuleType:
        if name in EXAMPLES:
            for known in [known for known in sys.modules if known == name or known.startswith(f"{name.partition('.')[0]}.")]:
                monkeypatch.delitem(sys.modules, known)
            return importlib.import_module(name)
        module = ModuleType(f"guide_{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        (page,) = (page for page in GUIDE if page.stem == name)
        for block in blocks(page):
            if block.runs:
                exec(block.compile(), vars(module))
        return module

    yield make
    for name in EXAMPLES:
        sys.modules.pop(name, None)


def test_every_topology_with_computations_is_played() -> None:
    shown = {page.stem for page in GUIDE for block in blocks(page) if block.runs and "topology.compute(" in block.code}
    assert shown == set(PAGES)
    files = {path for path in FOLDER.rglob("*.py") if re.search(r"topology\.compute\(", path.read_text())}
    assert {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in files} == {*EXAMPLES, *ELSEWHERE}
    assert "topology.compute(" in blocks(README)[0].code  # the same as examples/readme.py, as a test of the documents says


@pytest.mark.parametrize("name", [*EXAMPLES, *PAGES])
def test_what_an_example_says_does_not_depend_on_where_epochs_are_cut(name: str, load: Callable[[str], ModuleType]) -> None:
    shown = {**EXAMPLES, **PAGES}[name](load(name))
    streams = [*shown.in_event_time, *shown.as_they_come]
    said = 0
    for seed in range(CASES):
        chance = random.Random(seed)
        events = shown.events(chance)
        whole = at_once(shown.topology, events)
        parted = bit_by_bit(shown.topology, events, chance, in_order=True)
        shuffled = bit_by_bit(shown.topology, events, chance, in_order=False)
        for output in streams:
            assert told(parted, output) == told(whole, output), (seed, output)
        for output in shown.in_event_time:
            assert told(shuffled, output) == told(whole, output), (seed, output)
        for table in shown.tables:
            assert rows(parted, table) == rows(shuffled, table) == rows(whole, table), (seed, table)
        said += sum(len(told(whole, output)) for output in streams) + sum(len(rows(whole, table)) for table in shown.tables)
    assert said > 5 * CASES
