"""Breaks a run at named points. A folder with this file on PYTHONPATH is all it takes: the product knows nothing of it.

Python imports it in every process that it starts. `MILLSTREAM_FAULTS` says what to do; the first process that comes to a
point leaves a file of its name in the folder `fired`, with what it found on the disk at that moment, and does the deed.
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

BEFORE, AFTER = False, True
LONGEST = 600.0  # seconds that a process hangs


def _always(*_: Any, **__: Any) -> bool:
    return True


def _nothing(folder: Path, *_: Any, **__: Any) -> dict[str, object]:
    return {}


class Point(NamedTuple):
    """Where: before or after a function, if its arguments are such; and what of it is then on the disk."""

    module: str
    function: str
    after: bool
    when: Callable[..., bool] = _always
    stands: Callable[..., dict[str, object]] = _nothing


def _of_lane(writer: Any, *_: Any, **__: Any) -> bool:
    return bool(writer._prefix.startswith("lane"))


def _of_writer(*_: Any, **__: Any) -> bool:
    return "millstream.writer.process" in sys.modules


def _in(folder: str) -> Callable[..., bool]:
    return lambda disk, path, *_: bool(path.startswith(f"{folder}/"))


def _ran(self: Any, commit: Any, *_: Any) -> bool:
    """A commit of an epoch that lanes have run."""
    return bool(commit.summaries)


def _committed(folder: Path, self: Any, commit: Any, *_: Any) -> dict[str, object]:
    return {"commit": (folder / "journal" / "commits" / f"{commit.number:012d}").exists()}


def _merging(folder: Path, *_: Any) -> dict[str, object]:
    journal = folder / "journal"
    newest = max((int(file.name.partition("-")[2]) for file in (journal / "merged").iterdir()), default=0)
    snapshot = max((int(file.name) for file in (journal / "snapshots").iterdir() if file.name.isdecimal()), default=0)
    return {"snapshot": snapshot >= newest, "commits": (journal / "commits" / f"{newest:012d}").exists()}


def _segments(folder: Path, planner: Any, segments: list[str], notes: list[str]) -> dict[str, object]:
    return {"segments": all((folder / "journal" / "segments" / segment).exists() for segment in segments)}


def _batch(folder: Path, lane: Any, *_: Any, **__: Any) -> dict[str, object]:
    """Whether Spark has committed all that it has planned of a lane, but for the batch that runs now."""
    checkpoint = folder / "checkpoints" / f"lane {lane.number}"
    planned, done = (max(int(f.name) for f in (checkpoint / place).iterdir() if f.name.isdecimal()) for place in ("offsets", "commits"))
    return {"committed": done == planned - 1}


def _noted(folder: Path, *args: Any, **__: Any) -> dict[str, object]:
    """Of an injector's batch: the note, which the planner may have taken and let go by now, and Spark's own commit."""
    from millstream.journal.commits import Commits
    from millstream.journal.disk import LocalDisk
    from millstream.journal.opening import open_ledger

    batch = next(each for each in reversed(args) if isinstance(each, int))
    noted = any((folder / "journal" / "notes" / "frames").glob(f"{batch:012d}-*"))
    source = open_ledger(Commits(LocalDisk(folder / "journal"))).sources.get("frames")
    taken = source is not None and source.batch >= batch
    return {"note": noted or taken, "committed": (folder / "checkpoints" / "inject frames" / "commits" / str(batch)).exists()}


def _listed(folder: Path, *_: Any) -> dict[str, object]:
    return {"listed": any((folder / "inputs" / "clicks").iterdir())}


def _is_new(settings: Any, messages: Any, batch: int, **_: Any) -> bool:
    """A batch without a note. One whose run died before Spark's commit comes again, and its note is there, or taken and let go."""
    return not _noted(Path(settings.journal).parent, batch)["note"]


def _called(folder: Path, of: Any, *args: Any) -> dict[str, object]:
    """Whether the function was called with the step."""
    step = args[0] if args and of.__class__.__name__ == "CallSink" else of.open
    return {"called": (folder.parent / "out" / "seen" / f"{step.number:09d}").exists()}


def _transacted(connection: Any, step: Any, records: Any, **_: Any) -> bool:
    return bool(connection._target.transactional and records)


def _in_database(folder: Path, connection: Any, step: Any, *_: Any, **__: Any) -> dict[str, object]:
    """Whether the target has committed the step."""
    import sqlite3

    database = sqlite3.connect(folder.parent / "out" / "rows.db")
    try:
        return {"in the target": database.execute("select upto from steps").fetchall() == [(step.upto,)]}
    finally:
        database.close()


SEGMENTS, DISK, COMMITS = "millstream.journal.segments", "millstream.journal.disk", "millstream.journal.commits"
DRIVING, LANES, INJECTORS = "millstream.mill.driving", "millstream.spark.lanes", "millstream.spark.injectors"

POINTS = {
    # In a lane.
    "before the append": Point(SEGMENTS, "SegmentWriter.write", BEFORE, _of_lane),
    "after the append": Point(SEGMENTS, "SegmentWriter.write", AFTER, _of_lane),
    "after the sync": Point(SEGMENTS, "SegmentWriter.sync", AFTER, _of_lane),
    "after a range is read": Point("millstream.mill.lane", "Lane._take_in", AFTER),
    "after the report": Point("millstream.mill.channel", "Channel.send", AFTER, lambda self, message: b"Report" in message[:20]),
    "in the write-back": Point(LANES, "SparkStore.put", AFTER, lambda self, key, value: key != "identity"),
    "before Spark's commit": Point(LANES, "run_lane", AFTER),
    "after Spark's commit": Point("millstream.mill.lane", "Lane.join", BEFORE, lambda lane, *_: lane.own is not None, _batch),
    # In the planner.
    "before the commit": Point(DRIVING, "PlannerThread._write", BEFORE, _ran, _committed),
    "before the commit's folder is synced": Point(
        DISK, "LocalDisk.create_whole", AFTER, lambda disk, path, *_: path.startswith("commits/")
    ),
    "after the commit": Point(COMMITS, "Commits.create", AFTER, _ran, _committed),
    "while a checkpoint is synced": Point("millstream.mill.checkpoints", "Checkpoints.sync", AFTER),
    "after the merged file": Point(COMMITS, "Commits.merge", AFTER, _always, _merging),
    "after the snapshot": Point(COMMITS, "Commits.write_snapshot", AFTER, _always, _merging),
    "in the removal of commits": Point(DISK, "LocalDisk.remove", AFTER, _in("commits")),
    "before the removal of segments": Point(
        DRIVING, "PlannerThread._remove", BEFORE, lambda self, segments, notes: bool(segments), _segments
    ),
    "in the removal of segments": Point(DISK, "LocalDisk.remove", AFTER, _in("segments")),
    # In the driver.
    "between listed files and their ranges": Point("millstream.sources.file_list", "FileList.add", AFTER, _always, _listed),
    "before a reader is woken": Point(
        "millstream.spark.ends",
        "Deliveries.on_commit",
        BEFORE,
        lambda self, commit: any(part.stream == "numbered.seen" for frame in commit.frames for part in frame.parts),
        _committed,
    ),
    "between a step's begin and its call": Point("millstream.targets.steps", "Steps.begin", AFTER, lambda *_: not _of_writer(), _called),
    "between a step's call and its end": Point("millstream.delivery", "CallSink.write", AFTER, _always, _called),
    "before a target's transaction": Point("millstream.targets.connection", "Connection.write", BEFORE, _transacted, _in_database),
    "after a target's transaction": Point("millstream.targets.connection", "Connection.write", AFTER, _transacted, _in_database),
    # In the writer.
    "between the log's file and its entry": Point(
        "millstream.log.history", "History.commit", BEFORE, lambda self, staged, **_: bool(staged)
    ),
    "after the log's entry": Point("millstream.log.history", "History.commit", AFTER, lambda self, staged, **_: bool(staged)),
    "between a table's file and its commit": Point("millstream.targets.delta", "sync_folder", AFTER),
    "after a table's commit": Point("millstream.targets.delta", "DeltaOutput.commit", AFTER),
    "after a step of files has begun": Point("millstream.targets.steps", "Steps.begin", AFTER, _of_writer),
    "before a step of files has ended": Point("millstream.targets.steps", "Steps.done", BEFORE, _of_writer),
    # In an injector's query.
    "in an injector's task": Point(INJECTORS, "TaskWork.finish", AFTER),
    "between an injector's frames and its note": Point(INJECTORS, "_leave", BEFORE, _is_new, _noted),
    "between an injector's note and Spark's commit": Point(INJECTORS, "InjectorWriter.commit", AFTER, _always, _noted),
}


def install(plan: dict[str, Any]) -> None:
    for fault in plan["faults"]:
        point = POINTS[fault["point"]]
        _when_loaded(point.module, functools.partial(_break, point=point, fault=fault, plan=plan))


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


def _break(module: ModuleType, point: Point, fault: dict[str, Any], plan: dict[str, Any]) -> None:
    *owners, name = point.function.split(".")
    owner = functools.reduce(getattr, owners, module)
    real = getattr(owner, name)
    passed = 0

    @functools.wraps(real)
    def broken(*args: Any, **named: Any) -> Any:
        nonlocal passed
        hit = point.when(*args, **named) and _is_due(fault, plan)
        if hit:
            passed += 1
            hit = passed > fault["skip"]
        if hit and not point.after:
            _fire(fault, plan, functools.partial(point.stands, Path(plan["folder"]), *args, **named))
        result = real(*args, **named)
        if hit and point.after:
            _fire(fault, plan, functools.partial(point.stands, Path(plan["folder"]), *args, **named))
        return result

    setattr(owner, name, broken)


def _mark(plan: dict[str, Any], point: str) -> Path:
    return Path(plan["fired"]) / f"{point}.json"


def _is_due(fault: dict[str, Any], plan: dict[str, Any]) -> bool:
    """Not yet done, and the one before it is."""
    before = fault["after"]
    return (before is None or _mark(plan, before).exists()) and not _mark(plan, fault["point"]).exists()


def _fire(fault: dict[str, Any], plan: dict[str, Any], stands: Callable[[], dict[str, object]]) -> None:
    """Once, whichever process comes first."""
    try:
        handle = os.open(_mark(plan, fault["point"]), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    with os.fdopen(handle, "w") as file:
        file.write(json.dumps({"point": fault["point"], "process": os.getpid(), **stands()}))
        file.flush()
        os.fsync(file.fileno())
    DEEDS[fault["deed"]](plan)


def _kill(plan: dict[str, Any]) -> None:
    """SIGKILL for this process, and for it alone."""
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_all(plan: dict[str, Any]) -> None:
    """SIGKILL for the whole tree that this process belongs to, itself last."""
    import psutil

    _to_all(plan, psutil.Process.kill)
    os.kill(os.getpid(), signal.SIGKILL)


def _stop_all(plan: dict[str, Any]) -> None:
    """SIGSTOP for the whole tree."""
    import psutil

    _to_all(plan, psutil.Process.suspend)
    os.kill(os.getpid(), signal.SIGSTOP)


def _hang(plan: dict[str, Any]) -> None:
    """This process hangs, deaf to what its dying parents send it, until there is a file `woken`; that it then goes on is told."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    give_up = time.monotonic() + LONGEST
    while not (Path(plan["fired"]) / "woken").exists():
        if time.monotonic() > give_up:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
    (Path(plan["fired"]) / "went on").touch()


def _to_all(plan: dict[str, Any], do: Callable[[Any], None]) -> None:
    """To the whole tree but this process; some of it may be gone by then."""
    import psutil

    root = psutil.Process(int(Path(plan["root"]).read_text()))
    for member in [root, *root.children(recursive=True)]:
        if member.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):
                do(member)


DEEDS = {"kill": _kill, "kill all": _kill_all, "hang": _hang, "stop all": _stop_all}

if "MILLSTREAM_FAULTS" in os.environ:
    install(json.loads(os.environ["MILLSTREAM_FAULTS"]))
