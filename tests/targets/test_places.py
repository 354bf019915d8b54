"""Where a target may lie: outside of the folder of the run, where a folder can be made, and where the run does not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import Graph, compile_topology
from millstream.errors import LogError, TopologyError
from millstream.log.folder import Folder, Pinned
from millstream.spark.milling import RunJournal, check_no_loop
from tests.conformance.scenes import inject
from tests.targets.made import Made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def delivering(made: Made, target: ms.Target) -> RunJournal:
    """Of a run on this folder that has one more delivery."""
    topology = ms.Topology("checked")
    topology.deliver("more", inject(topology), target)
    return RunJournal(made.folder, compile_topology(topology), made.journal.pinned)


TO_PATHS = [ms.delta, ms.to_files]


@pytest.mark.parametrize("to", TO_PATHS)
def test_a_folder_that_cannot_be_made_is_refused_before_a_commit_is_made(made: Made, to: Any) -> None:
    before, folders = made.files(), made.folders()
    (made.at / "link").symlink_to(made.at / "nowhere" / "more")
    for path, why in (("link", "File exists"), ("new/" + "x" * 300, "File name too long")):
        with pytest.raises(LogError, match=f"delivery 'more': {made.at}/{path} cannot be made: {why}; deliver to another path"):
            delivering(made, to(made.at / path)).check()
    assert (made.files(), made.folders()) == (before, folders)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a file system in which nobody can make a folder")
@pytest.mark.parametrize("to", TO_PATHS)
def test_a_file_system_that_takes_no_folder_is_refused(made: Made, to: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.targets.checks.os.access", lambda path, how: True)  # so it is for root
    with pytest.raises(LogError, match=r"delivery 'more': /proc/nope cannot be made: .*; deliver to another path"):
        delivering(made, to("/proc/nope")).check()


@pytest.mark.parametrize("to", TO_PATHS)
def test_a_folder_that_can_be_made_is_left_to_the_run(made: Made, to: Any) -> None:
    (made.at / "empty").mkdir()
    folders = made.folders()
    for path in ("a/b/c", "empty"):
        delivering(made, to(made.at / path)).check()
    assert made.folders() == folders


@pytest.mark.parametrize("to", TO_PATHS)
@pytest.mark.parametrize("path", ["mill", "mill/journal", "mill/log/x", "mill/new", "files/../mill/new", "link/new"])
def test_a_target_in_the_folder_of_the_run_is_refused(made: Made, to: Any, path: str) -> None:
    (made.at / "link").symlink_to(made.folder.path)
    before, folders = made.files(), made.folders()
    with pytest.raises(
        TopologyError, match=rf"delivery 'more': .*/{path} lies in the folder of the run, .*/mill; deliver to a path outside"
    ):
        delivering(made, to(made.at / path)).check()
    assert (made.files(), made.folders()) == (before, folders)


def test_a_target_beside_the_folder_of_the_run_is_taken(made: Made) -> None:
    delivering(made, ms.delta(made.at / "mill2")).check()


# What a run reads and writes.


def reading(pattern: str, target: ms.Target, *, name: str = "more", bounded: bool = False) -> Graph:
    topology = ms.Topology("checked")
    source = ms.files(pattern, int, bounded=bounded, format=ms.Format.JSON_LINES)
    stream = topology.inject("numbers", source, key=str, timestamp=lambda n: ms.Timestamp(n), low_watermark=ms.BoundedDisorder(ms.SECOND))
    topology.deliver(name, stream, target)
    return compile_topology(topology)


@pytest.mark.parametrize("pattern", ["in/*.jsonl", "in/more-*", "in/{x,more}-*", "./link/*", "out/../in/m*[0-9].jsonl", "in"])
def test_a_run_that_would_read_its_own_files_is_refused(pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "link").symlink_to("in")
    journal = RunJournal(Folder("mill"), reading(pattern, ms.to_files("in")), Pinned("checked", "id", "mill", 4, 1))
    with pytest.raises(
        TopologyError, match=r"delivery 'more': injector 'numbers' reads files in .*, and would read the files .*/in; deliver to an"
    ):
        journal.check()
    assert not (tmp_path / "mill").exists()


@pytest.mark.parametrize(
    ("pattern", "target", "changed"),
    [
        ("in/*.jsonl", ms.to_files("out"), {}),
        ("in/*.jsonl", ms.to_files("in/below"), {}),
        ("in/*.jsonl", ms.to_files("in", format=ms.Format.PARQUET), {}),
        ("in/x*.jsonl", ms.to_files("in"), {}),
        ("in/*.jsonl", ms.to_files("in"), {"bounded": True}),
        ("in/*.jsonl", ms.to_files("in"), {"name": "_hidden"}),
    ],
)
def test_a_run_that_reads_other_files_is_not(pattern: str, target: ms.Target, changed: Any) -> None:
    check_no_loop(reading(pattern, target, **changed))
