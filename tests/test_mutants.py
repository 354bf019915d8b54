"""Mutants fit the code they break: each has one place to change, and tests to notice it."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant

SOURCE = ROOT / "src" / "millstream"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_has_one_place_to_change_and_what_it_becomes_can_be_compiled(mutant: Mutant) -> None:
    path = SOURCE / mutant.file
    assert path.is_file(), f"{mutant.file} is not there; where is this code now?"
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} has {text.count(mutant.old)} places that look like\n{mutant.old}"
    assert mutant.new != mutant.old
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")


@pytest.mark.parametrize("word", sorted({word for mutant in MUTANTS for word in mutant.tests.split()}))
def test_the_tests_that_are_to_notice_exist(word: str) -> None:
    name, _, test = word.partition("::")
    path = ROOT / name
    files = [path] if path.is_file() else list(path.glob("**/test_*.py"))
    assert files, f"{name} has no tests"
    found = [file for file in files if f"def {test.partition('[')[0] or 'test_'}" in file.read_text()]
    assert found, f"{name} has no {test or 'test'}"


def test_every_mutant_has_a_name_of_its_own_and_tests() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert [mutant.name for mutant in MUTANTS if not mutant.tests.split()] == []
