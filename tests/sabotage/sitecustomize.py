"""Breaks a run at a named point. A folder with this file on PYTHONPATH is all it takes: the product knows nothing of it.

Python imports it in every process that it starts. `MILLSTREAM_FAULT` says what to do; the first process that comes to
the point leaves the file `fired`, with what it found in the run's folder at that moment, and does the deed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

LONGEST = 600.0  # seconds that a process hangs


class Point(NamedTuple):
    """Where: before or after a function, and how to know the epoch from its arguments (None: not this one)."""

    module: str
    function: str
    after: bool
    epoch: Callable[..., int | None]


def _commit_of(wanted: str) -> Callable[..., int | None]:
    return lambda self, files, note, *, writer, epoch: epoch if writer == wanted else None


POINTS = {
    "after an injector's commit": Point("millstream.log.table", "Table.commit", True, _commit_of("clicks")),
    "after the offset log": Point("millstream.spark.mill", "MillReader.partitions", False, lambda self, start, end: end["epoch"]),
    "mid-task": Point("millstream.core.mill", "Mill.run", True, lambda self, bucket, header, *rest: header.epoch),
    "after the state commit": Point("millstream.spark.mill", "MillWriter.commit", False, lambda self, messages, epoch: epoch),
    "after the manifest": Point("millstream.spark.mill", "MillWriter.commit", True, lambda self, messages, epoch: epoch),
    "after Spark's commit log": Point("millstream.spark.planner", "Planner.next_plan", False, lambda self, start, **_: start.epoch),
    "before the publishing commit": Point("millstream.log.table", "Table.commit", False, _commit_of("mill")),
    "after the publishing commit": Point("millstream.log.table", "Table.commit", True, _commit_of("mill")),
    "after a delivery's commit": Point("millstream.spark.targets", "DeltaWriter.commit", True, lambda self, messages, epoch: epoch),
    "before a task stages": Point("millstream.spark.mill", "_stage_streams", False, lambda table, records, epoch: epoch),
}


def install(fault: dict[str, Any]) -> None:
    point = POINTS[fault["point"]]
    module = sys.modules.get(point.module)
    if module is not None:
        _break(module, point, fault)
    else:
        sys.meta_path.insert(0, _Finder(point, fault))


class _Finder(MetaPathFinder):
    """Waits for the one module, and lets it be loaded as ever."""

    def __init__(self, point: Point, fault: dict[str, Any]) -> None:
        self._point, self._fault = point, fault

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._point.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _Loader(spec.loader, lambda module: _break(module, self._point, self._fault))
        return spec


class _Loader(Loader):
    def __init__(self, real: Loader, then: Callable[[ModuleType], None]) -> None:
        self._real, self._then = real, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._then(module)


def _break(module: ModuleType, point: Point, fault: dict[str, Any]) -> None:
    *owners, name = point.function.split(".")
    owner = functools.reduce(getattr, owners, module)
    real = getattr(owner, name)

    @functools.wraps(real)
    def broken(*args: Any, **named: Any) -> Any:
        epoch = point.epoch(*args, **named)
        hit = epoch is not None and epoch >= fault["epoch"]
        if hit and not point.after:
            _fire(fault, epoch)
        result = real(*args, **named)
        if hit and point.after:
            _fire(fault, epoch)
        return result

    setattr(owner, name, broken)


def _fire(fault: dict[str, Any], epoch: int) -> None:
    """Once, whichever process comes first."""
    try:
        handle = os.open(fault["fired"], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    found = {"point": fault["point"], "epoch": epoch, "process": os.getpid(), **_stands(Path(fault["folder"]), epoch)}
    with os.fdopen(handle, "w") as file:
        file.write(json.dumps(found))
        file.flush()
        os.fsync(file.fileno())
    DEEDS[fault["deed"]](fault, epoch)


def _stands(folder: Path, epoch: int) -> dict[str, bool]:
    """What of an epoch is on the disk."""
    checkpoint = folder / "checkpoints" / "mill"
    published = (epoch == _epoch_of(file) for file in (folder / "log" / "mill" / "_delta_log").glob("*.json"))
    return {
        "offsets": (checkpoint / "offsets" / str(epoch)).exists(),
        "state": any(checkpoint.glob(f"state/0/*/{epoch + 1}_*")),
        "manifest": any((folder / "manifests").glob(f"{epoch:012d}-*")),
        "commits": (checkpoint / "commits" / str(epoch)).exists(),
        "published": any(published),
    }


def _epoch_of(commit: Path) -> int | None:
    for line in commit.read_text().splitlines():
        transaction = json.loads(line).get("txn", {})
        if transaction.get("appId") == "mill":
            return int(transaction["version"])
    return None


def _kill_all(fault: dict[str, Any], epoch: int) -> None:
    """SIGKILL for the whole tree that this process belongs to, itself last."""
    import psutil

    _to_all(fault, psutil.Process.kill)
    os.kill(os.getpid(), signal.SIGKILL)


def _stop_all(fault: dict[str, Any], epoch: int) -> None:
    """SIGSTOP for the whole tree."""
    import psutil

    _to_all(fault, psutil.Process.suspend)
    os.kill(os.getpid(), signal.SIGSTOP)


def _to_all(fault: dict[str, Any], do: Callable[[Any], None]) -> None:
    """To the whole tree but this process; some of it may be gone by then."""
    import psutil

    root = psutil.Process(int(Path(fault["root"]).read_text()))
    for member in [root, *root.children(recursive=True)]:
        if member.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):
                do(member)


def _hang(fault: dict[str, Any], epoch: int) -> None:
    """This process hangs, deaf to what its dying parents send it, until there is a file `woken`. What it then stages is told."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    give_up = time.monotonic() + LONGEST
    while not Path(fault["fired"]).with_suffix(".woken").exists():
        if time.monotonic() > give_up:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
    mill = sys.modules["millstream.spark.mill"]
    real = mill.stage

    def told(*args: Any, **named: Any) -> Any:
        files = real(*args, **named)
        with Path(fault["fired"]).with_suffix(".wrote").open("a") as file:
            file.writelines(f"{written.path}\n" for written in files)
        return files

    mill.stage = told  # type: ignore[attr-defined]


DEEDS = {"kill all": _kill_all, "stop all": _stop_all, "hang": _hang}

if "MILLSTREAM_FAULT" in os.environ:
    install(json.loads(os.environ["MILLSTREAM_FAULT"]))
