"""Whom a soak kills, and what it says of itself; the runs are made up."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import soak as soaking
from tests.soak import ENDS, MAX_COMEBACKS, VICTIMS, Outcome, main, soak


class MadeUp:
    """A run that answers at once and dies of what ends one."""

    alive = True

    def poll(self) -> int | None:
        return None if self.alive else -9


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who was killed, in order; `stop` is a run that was ended without a victim."""
    seen: list[str] = []

    def kill(base: Path, process: MadeUp, victim: str, outcome: Outcome) -> None:
        outcome.kills[victim] += 1
        seen.append(victim)
        process.alive = victim not in ENDS

    def kill_tree(process: MadeUp) -> None:
        seen.append("stop")
        process.alive = False

    @contextlib.contextmanager
    def nothing(*_: Any) -> Iterator[Any]:
        yield type("Reader", (), {"error": None, "looks": 0})

    monkeypatch.setattr(soaking, "start", lambda base: MadeUp())
    monkeypatch.setattr(soaking, "_kill", kill)
    monkeypatch.setattr(soaking, "kill_tree", kill_tree)
    for name in ("reading", "feeding"):
        monkeypatch.setattr(soaking, name, nothing)
    for name in ("answers", "_wait", "run_to_the_end"):
        monkeypatch.setattr(soaking, name, lambda *_, **__: None)
    monkeypatch.setattr(soaking, "check", lambda base: 1)
    monkeypatch.setattr(soaking, "expected", lambda base: type("Results", (), {"records": 1}))
    return seen


def test_victims_die_in_turn(tmp_path: Path, killed: list[str]) -> None:
    soak(tmp_path, seconds=60, kills=5, seed=1, victims=["lane", "driver"])
    assert killed == ["lane", "driver", "lane", "driver", "lane", "stop"]


@pytest.mark.parametrize("victim", ["lane", "writer"])
def test_what_comes_back_dies_only_so_often_in_a_run(tmp_path: Path, killed: list[str], victim: str) -> None:
    soak(tmp_path, seconds=60, kills=MAX_COMEBACKS + 2, seed=1, victims=[victim])
    assert killed == [*[victim] * MAX_COMEBACKS, "stop", victim, victim, "stop"]


def test_without_victims_each_has_its_chance(tmp_path: Path, killed: list[str]) -> None:
    outcome = soak(tmp_path, seconds=60, kills=500, seed=1)
    assert outcome.kills == Counter(killed)
    assert set(killed) == set(VICTIMS)


def test_an_unknown_victim_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, name in (("lane,drivers", "'drivers'"), ("", "''")):
        with pytest.raises(SystemExit):
            main(["--victims", words])
        assert f"no victim is called {name}; give some of all, driver, planner, java, lane, writer" in capsys.readouterr().err


def test_kills_that_were_asked_for_and_not_reached_are_a_failure(killed: list[str]) -> None:
    main(["--seconds", "0"])
    main(["--kills", "3", "--victims", "all"])
    assert killed == ["all"] * 3
    with pytest.raises(SystemExit, match="0 of 3 kills in 0 seconds; give it more --seconds"):
        main(["--seconds", "0", "--kills", "3"])
