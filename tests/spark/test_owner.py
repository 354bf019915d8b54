"""Who may write to a folder, and where its buckets go."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream as ms
from millstream.log.folder import Folder, write_json
from millstream.spark.owner import Owner, refuse_if_held

HOLD = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"


@contextmanager
def held(folder: Folder) -> Iterator[subprocess.Popen[str]]:
    """The lock of a folder in another process, until its input ends."""
    folder.run.mkdir(parents=True)
    words = [sys.executable, "-c", HOLD, str(folder.lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


@pytest.fixture(params=[True, False], ids=["waited for", "not waited for"])
def dead(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process that was killed; its parent may not have asked how it ended."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.kill()
        if request.param:
            process.wait()
        yield process.pid


def test_a_folder_whose_run_lives_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.spark.owner.time.sleep", lambda _: pytest.fail("it waits"))
    folder = Folder(tmp_path / "mill")
    with held(folder) as process:
        write_json(folder.run / "owner.json", Owner(process.pid, 1))
        with pytest.raises(ms.FolderBusy, match=r"another run holds .*; stop it first, or give this one a folder of its own"):
            refuse_if_held(folder)


def test_what_a_killed_driver_leaves_behind_is_waited_for(tmp_path: Path, dead: int) -> None:
    folder = Folder(tmp_path / "mill")
    with held(folder) as process:
        write_json(folder.run / "owner.json", Owner(dead, 1))
        freed = threading.Event()
        threading.Timer(0.3, lambda: (freed.set(), process.kill())).start()
        refuse_if_held(folder)
        assert freed.is_set()


def test_a_lock_that_nobody_gives_back_is_refused_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.spark.owner.LOCK_TIMEOUT", 0.2)
    folder = Folder(tmp_path / "mill")
    with held(folder):
        (folder.run / "owner.json").write_bytes(b"")  # after a power cut
        with pytest.raises(ms.FolderBusy, match="another run holds"):
            refuse_if_held(folder)


def test_where_nothing_can_be_locked_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    folder = Folder(tmp_path)
    folder.lock.touch()
    monkeypatch.setattr("fcntl.lockf", refuse)
    refuse_if_held(folder)  # Spark's own try then says what is wrong
