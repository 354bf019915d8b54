"""Breaks a run at a named point. A folder with this file on PYTHONPATH is all it takes: the product knows nothing of it.

Python imports it in every process that it starts. `MILLSTREAM_FAULT` says what to do; the first process that comes to
the point leaves the file `fired`, with what it found in the run's folder at that moment, and does the deed.
`MILLSTREAM_WITNESS` names a file that every attempt at an epoch of a bucket adds a line to: what it was given.
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
import zlib
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

LONGEST = 600.0  # seconds that a process hangs


class Point(NamedTuple):
    """Where: before or after a function, and how to know the epoch from its arguments (None: not this one).

    Where it is not the mill that commits, `commits` knows which query does, and to which table.
    """

    module: str
    function: str
    after: bool
    epoch: Callable[..., int | None]
    commits: Callable[..., tuple[str, Path]] | None = None


def _commit_of(wanted: str) -> Callable[..., int | None]:
    return lambda self, files, note, *, writer, epoch: epoch if writer == wanted else None


POINTS = {
    "after an injector's commit": Point(
        "millstream.log.table", "Table.commit", True, _commit_of("clicks"), lambda self, *_, **__: ("inject clicks", self.path)
    ),
    "after the offset log": Point("millstream.spark.mill", "MillReader.partitions", False, lambda self, start, end: end["epoch"]),
    "mid-task": Point("millstream.core.mill", "Mill.run", True, lambda self, bucket, header, *rest: header.epoch),
    "after the state commit": Point("millstream.spark.mill", "MillWriter.commit", False, lambda self, messages, epoch: epoch),
    "after the manifest": Point("millstream.spark.mill", "MillWriter.commit", True, lambda self, messages, epoch: epoch),
    "after Spark's commit log": Point("millstream.spark.planner", "Planner.next_plan", False, lambda self, start, **_: start.epoch),
    "before the publishing commit": Point("millstream.log.table", "Table.commit", False, _commit_of("mill")),
    "after the publishing commit": Point("millstream.log.table", "Table.commit", True, _commit_of("mill")),
    "after a delivery's commit": Point(
        "millstream.spark.targets",
        "DeltaWriter.commit",
        True,
        lambda self, messages, epoch: epoch if any(message.rows for message in messages) else None,
        lambda self, *_: (f"deliver {self._settings.delivery}", Path(self._settings.target)),
    ),
    "before a task stages": Point("millstream.spark.mill", "_stage_streams", False, lambda table, records, epoch: epoch),
}


def install(fault: dict[str, Any]) -> None:
    point = POINTS[fault["point"]]
    _when_loaded(point.module, lambda module: _break(module, point, fault))


def _when_loaded(name: str, then: Callable[[ModuleType], None]) -> None:
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(MetaPathFinder):
    """Waits for one module, and lets it be loaded as ever."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _Loader(spec.loader, self._then)
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
        if epoch is None or epoch < fault["epoch"]:
            return real(*args, **named)
        folder = Path(fault["folder"])
        found = functools.partial(_stands, folder, epoch)
        if point.commits is not None:
            found = functools.partial(_half_done, folder, epoch, *point.commits(*args, **named))
        if not point.after:
            _fire(fault, epoch, found)
        result = real(*args, **named)
        if point.after:
            _fire(fault, epoch, found)
        return result

    setattr(owner, name, broken)


def _fire(fault: dict[str, Any], epoch: int, stands: Callable[[], dict[str, bool]]) -> None:
    """Once, whichever process comes first."""
    try:
        handle = os.open(fault["fired"], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    found = {"point": fault["point"], "epoch": epoch, "process": os.getpid(), **stands()}
    with os.fdopen(handle, "w") as file:
        file.write(json.dumps(found))
        file.flush()
        os.fsync(file.fileno())
    DEEDS[fault["deed"]](fault, epoch)


def _stands(folder: Path, epoch: int) -> dict[str, bool]:
    """What of an epoch is on the disk."""
    checkpoint = folder / "checkpoints" / "mill"
    return {
        "offsets": (checkpoint / "offsets" / str(epoch)).exists(),
        "state": any(checkpoint.glob(f"state/0/*/{epoch + 1}_*")),
        "manifest": any((folder / "manifests").glob(f"{epoch:012d}-*")),
        "commits": (checkpoint / "commits" / str(epoch)).exists(),
        "published": _committed(folder / "log" / "mill", "mill", epoch),
    }


def _half_done(folder: Path, epoch: int, query: str, table: Path) -> dict[str, bool]:
    """What of an epoch of another query is on the disk."""
    checkpoint = folder / "checkpoints" / query
    return {
        "offsets": (checkpoint / "offsets" / str(epoch)).exists(),
        "committed": _committed(table, query.partition(" ")[2], epoch),
        "commits": (checkpoint / "commits" / str(epoch)).exists(),
    }


def _committed(table: Path, writer: str, epoch: int) -> bool:
    """Whether a commit of a table is that of an epoch."""
    for commit in (table / "_delta_log").glob("*.json"):
        for line in commit.read_text().splitlines():
            told = json.loads(line).get("txn", {})
            if told.get("appId", "").split("/")[-1] == writer and told["version"] == epoch:
                return True
    return False


def _bear_witness(module: ModuleType, file: str) -> None:
    real = module.Mill.run

    @functools.wraps(real)
    def run(self: Any, bucket: int, header: Any, arrivals: Any, *rest: Any) -> Any:
        import msgspec

        columns = [arrivals.inputs, arrivals.keys, arrivals.values, arrivals.timestamps, arrivals.ids, arrivals.errors]
        given = zlib.crc32(msgspec.json.encode(columns))
        line = msgspec.json.encode([bucket, header, len(arrivals.keys), given]) + b"\n"
        handle = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(handle, line)
        os.close(handle)
        return real(self, bucket, header, arrivals, *rest)

    module.Mill.run = run


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
if "MILLSTREAM_WITNESS" in os.environ:
    _when_loaded("millstream.core.mill", functools.partial(_bear_witness, file=os.environ["MILLSTREAM_WITNESS"]))
