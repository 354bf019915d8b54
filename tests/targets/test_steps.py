"""The file of a delivery: what is durable when, what a start finds, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import millstream as ms
from millstream.target import Step
from millstream.targets.steps import SLOT, SLOTS, Steps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deliveries" / "out"


def test_steps_are_numbered_without_gaps(path: Path) -> None:
    steps = Steps(path)
    for k in range(40):
        assert steps.begin(2 * k, 2 * k + 2) == Step(k, 2 * k, 2 * k + 2)
        steps.done()
    assert (steps.position, steps.next, steps.open) == (80, 40, None)


@pytest.mark.parametrize("steps_before", range(2 * SLOTS + 2))
@pytest.mark.parametrize("fence", [1, 2])
def test_a_start_finds_the_open_step_and_the_same_identity(path: Path, steps_before: int, fence: int) -> None:
    first = Steps(path, fence=1)
    for k in range(steps_before):
        first.begin(k, k + 1)
        first.done()
    first.begin(steps_before + 3, steps_before + 9)
    again = Steps(path, fence=fence)
    assert again.open == Step(steps_before, steps_before + 3, steps_before + 9)
    assert (again.position, again.identity) == (steps_before, first.identity)
    again.done()
    assert (Steps(path, fence=3).position, Steps(path, fence=3).next) == (steps_before + 9, steps_before + 1)


def test_begin_and_done_are_on_the_disk_when_they_return(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    write, sync = os.pwrite, os.fdatasync
    monkeypatch.setattr(os, "pwrite", lambda *given: (done.append("write"), write(*given))[1])
    monkeypatch.setattr(os, "fdatasync", lambda file: (done.append("sync"), sync(file))[1])
    steps = Steps(path)
    steps.begin(0, 1)
    assert done == ["write", "sync"]
    steps.done()
    steps.skip(7)
    assert done == ["write", "sync"] * 3
    steps.skip(7)
    assert len(done) == 6, "nothing new"


def test_without_durability_only_what_is_done_is_written_and_nothing_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(path, durable=False)
    monkeypatch.setattr(os, "fdatasync", lambda _: pytest.fail("waits for the disk"))
    steps.begin(0, 3)
    assert Steps(path, durable=False).open is None
    steps.done()
    assert (Steps(path, durable=False).position, Steps(path, durable=False).next) == (3, 1)


def test_an_overtaken_run_writes_where_nobody_looks(path: Path) -> None:
    old = Steps(path, fence=1)
    old.begin(0, 1)
    new = Steps(path, fence=2)
    old.done()
    old.begin(1, 5)
    new.done()
    assert new.begin(1, 2) == Step(1, 1, 2)
    assert Steps(path, fence=3).open == Step(1, 1, 2)
    with pytest.raises(ms.LogError, match=r"deliveries/out/0+3 is of a newer run"):
        Steps(path, fence=2)


def test_older_files_go_once_the_newer_is_there(path: Path) -> None:
    for fence in (1, 2, 3):
        Steps(path, fence=fence)
    assert [file.name for file in path.iterdir()] == [f"{3:020d}"]


def test_a_crash_while_the_file_is_made_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Steps(path, fence=1).begin(0, 4)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            Steps(path, fence=2)
    assert Steps(path, fence=3).open == Step(0, 0, 4)


@pytest.mark.parametrize("steps_before", [0, 3, 20])
@pytest.mark.parametrize("damage", ["flip", "cut", "lost", "empty", "other text"])
def test_a_damaged_file_is_refused_by_name(path: Path, damage: str, steps_before: int) -> None:
    steps = Steps(path, fence=1)
    for k in range(steps_before):
        steps.begin(k, k + 1)
        steps.done()
    content = bytearray(steps.path.read_bytes())
    newest = 2 * steps_before % SLOTS * SLOT
    if damage == "flip":
        content[newest + 5] ^= 1
    elif damage == "cut":
        del content[-10:]
    elif damage == "lost" and steps_before != 3:
        content[newest : newest + SLOT] = bytes(SLOT)
    elif damage == "lost":
        content[newest - SLOT : newest] = bytes(SLOT)
    elif damage == "empty":
        content.clear()
    else:
        content[:SLOT] = b"x" * SLOT
    steps.path.write_bytes(content)
    with pytest.raises(ms.LogError, match=rf"{steps.path} is damaged: .*restore it from a copy"):
        Steps(path, fence=2)


def test_what_the_system_refuses_is_told_with_the_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    steps = Steps(path)
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(ms.LogError, match=rf"^{steps.path} cannot be used: No space left on device$"):
        steps.begin(0, 1)


# What the commits know.


def test_a_file_from_an_older_copy_is_refused(path: Path) -> None:
    steps = Steps(path)
    steps.begin(0, 5)
    steps.done()
    steps.check("out", delivered=5, newest=5)
    steps.check("out", delivered=3, newest=9)  # it was done, and no commit came after it
    with pytest.raises(ms.LogError, match=r"delivered up to epoch 7, as the commits say, but .* ends with 5: it would deliver twice"):
        steps.check("out", delivered=7, newest=9)
    with pytest.raises(ms.LogError, match=r"delivered up to epoch 5, as .* says, but commits end with 4: it would deliver twice"):
        steps.check("out", delivered=0, newest=4)


def test_a_missing_file_is_refused_again_and_again(path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ms.LogError, match=r"deliveries/out is missing, and delivery 'out' has delivered already"):
            Steps(path).check("out", delivered=3, newest=3)
    Steps(path).check("out", delivered=0, newest=3)


def test_what_is_not_durable_believes_the_commits(path: Path) -> None:
    steps = Steps(path, durable=False)
    steps.begin(0, 5)
    steps.done()
    steps.check("out", delivered=7, newest=9)
    assert (steps.position, steps.next) == (7, 1)


# A target that says itself how far it is, and one after it that does not.


def test_after_a_target_that_says_itself_how_far_it_is_the_commits_are_believed_once(path: Path) -> None:
    Steps(path, fence=1).check_there("out", delivered=0)
    steps = Steps(path, fence=2)
    steps.check("out", delivered=50, newest=60)
    assert (steps.position, steps.next, steps.open) == (50, 0, None)
    assert steps.begin(50, 52) == Step(0, 50, 52)
    steps.done()
    with pytest.raises(ms.LogError, match=r"delivered up to epoch 55, as the commits say, but .* ends with 52"):
        Steps(path, fence=3).check("out", delivered=55, newest=60)


def test_a_step_that_was_open_is_repeated_unless_the_other_target_has_it_and_its_number_is_never_taken_twice(path: Path) -> None:
    first = Steps(path, fence=1)
    first.begin(0, 3)
    first.done()
    first.begin(3, 7)
    Steps(path, fence=2, durable=False).check_there("out", delivered=3)
    back = Steps(path, fence=3)
    back.check("out", delivered=7, newest=9)
    assert (back.position, back.open) == (3, Step(1, 3, 7)), "this target may have half of it"
    Steps(path, fence=4, durable=False).check_there("out", delivered=7)
    later = Steps(path, fence=5)
    later.check("out", delivered=8, newest=9)
    assert later.begin(8, 9) == Step(2, 8, 9)


def test_that_a_target_says_itself_how_far_it_is_is_on_the_disk_at_once_and_written_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (done.append("sync"), sync(file))[1])
    for fence in (1, 2, 3):
        Steps(path, fence=fence, durable=False).check_there("out", delivered=0)
    assert done == ["sync"]
