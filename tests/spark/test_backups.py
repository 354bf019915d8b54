"""Backups of a live folder, as the guide says to make them; and copies that mix moments: refused with the part named, or right."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.kills import Input, answers, check, feeding, kill_tree, output_of, run_to_the_end, start

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

OUT = "out"  # the targets; all else is of the folder
JOURNAL = ("journal/commits", "journal/merged", "journal/snapshots", "journal/segments", "journal/notes")
PARTS = (*JOURNAL, "checkpoints", "inputs", "deliveries", "log")


class Place:
    """The program's folder, its targets, and copies of them."""

    def __init__(self, base: Path) -> None:
        self.base, self.copies = base / "base", base / "copies"
        self.given = Input(self.base, seed=5)
        self.given.add_clicks()
        self.given.add_views()

    def copy(self, name: str, parts: list[str]) -> None:
        """File by file, as `cp -r` does: what goes meanwhile is left out."""
        for part in parts:
            root = self.base / (part if part == OUT else f"run/{part}")
            for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
                to = self.copies / name / file.relative_to(self.base)
                to.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    shutil.copy2(file, to)

    def restore(self, name: str) -> None:
        for part in ("run", OUT):
            shutil.rmtree(self.base / part, ignore_errors=True)
            shutil.copytree(self.copies / name / part, self.base / part)

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with feeding(self.given):
            process = start(self.base)
            try:
                answers(self.base, process)
                yield process
            finally:
                kill_tree(process)


@contextlib.contextmanager
def frozen(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """All processes of a run, as the freezer of a control group does it."""
    held: list[psutil.Process] = []
    while members := [
        each for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)) if each not in held
    ]:
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()
            held.append(member)
    yield
    for member in reversed(held):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.resume()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_copy_of_a_frozen_run_is_a_backup_and_the_run_goes_on(place: Place) -> None:
    with place.running() as process:
        for _ in range(3):
            answers(place.base, process)
        with frozen(process):
            place.copy("backup", ["topology.json", *PARTS, OUT])
        answers(place.base, process)
    place.restore("backup")
    run_to_the_end(place.base)
    check(place.base)


@pytest.mark.soak
def test_a_copy_that_mixes_moments_is_refused_with_the_part_named_or_right(place: Place) -> None:
    """But for a function: nobody can ask it how far it is, so what it was called with and what the folder says are of one moment."""
    chance, ends = random.Random(7), ["deliveries", OUT]
    with place.running() as process:
        for n in range(3):
            answers(place.base, process)
            parts = [[part] for part in PARTS if part not in ends] + [ends]
            chance.shuffle(parts)
            place.copy(str(n), ["topology.json"])
            for some in parts:
                with frozen(process):
                    place.copy(str(n), some)
                answers(place.base, process)
    for n in range(3):
        place.restore(str(n))
        started_or_refused(place.base, lambda: check(place.base))


def started_or_refused(base: Path, right: Callable[[], object]) -> None:
    process = start(base, last=True, log="restored.log")
    try:
        code = process.wait(180)
    finally:
        if process.poll() is None:
            kill_tree(process)
    if code == 0:
        right()
    else:
        told = output_of(base, "restored.log")
        assert any(part.partition("/")[0] in told for part in (*PARTS, f"{base}/{OUT}")), told
        assert "restore" in told, told
