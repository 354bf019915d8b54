"""Carrying an error from one of Spark's Python processes to the user, without forty lines of JVM around it."""

from __future__ import annotations

import base64
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from millstream.errors import Failure, Fenced, LogError, MillstreamError, ProcessDied, RecordError, TopologyError
from millstream.log.checks import damaged_files

# Spark hands the text of an exception on and nothing else, so the error travels inside its own text.
_MARK = re.compile(r"<<millstream:([A-Za-z0-9+/=]+)>>")


class Reported(msgspec.Struct):
    """An error as it travels."""

    kind: str
    message: str


class Marked(Exception):
    """What Spark sees of an error of ours."""


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Whatever goes wrong inside reaches the user as one sentence, `what` naming the part for errors that are not ours."""
    try:
        yield
    except Marked:
        raise
    except Exception as error:
        if isinstance(error, MillstreamError):
            message = str(error)
        elif isinstance(error, OSError):
            message = f"{what}: {error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        else:
            message = f"{what}: {type(error).__name__}: {error}\n\n{traceback.format_exc().rstrip()}"
        report = Reported(type(error).__name__, message)
        raise Marked(f"<<millstream:{base64.b64encode(msgspec.json.encode(report)).decode()}>>") from error


def report_in(text: str) -> Reported | None:
    """The error that Spark's message carries, if it is one of ours; user code comes before what followed from it."""
    found = [msgspec.json.decode(base64.b64decode(mark), type=Reported) for mark in _MARK.findall(text)]
    if not found:
        return None
    order = {RecordError.__name__: 0, Fenced.__name__: 2}
    return min(found, key=lambda report: order.get(report.kind, 1))


# What Spark says when one of its Python processes is gone: of a worker, of a planner, of either.
_GONE = ("Python worker exited unexpectedly", "java.io.EOFException", "Connection reset", "Broken pipe", "Stream closed")
_PYTHON = re.compile(r"\.python\.|Python\w*Runner|Python worker")  # a file or a socket of another kind may break off too
_JAVA_CLASS = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ")
_FULL = "No space left on device"
_SLOW = "Python worker failed to connect back"


def full_error(error: BaseException) -> str:
    """All that Spark said. PySpark shows the top of it and keeps the causes below to itself."""
    below = getattr(getattr(error, "_cause", None), "_stackTrace", None)
    return f"{error}\n\n{below}" if below else str(error)


def came_too_late(error: BaseException) -> bool:
    """Spark gives a Python process that plans ten seconds to come up, and no more; on a busy machine that may be too little."""
    return _SLOW in full_error(error)


def java_died(error: BaseException) -> bool:
    """Whether nobody answers any more. An answer that breaks off under way is a bare Py4JError: it carries no trace of Java's."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    return type(error) is Py4JError and "Trace:" not in str(error)


_KINDS = {
    RecordError.__name__: Failure.USER_CODE,
    TopologyError.__name__: Failure.USER_CODE,
    Fenced.__name__: Failure.OVERTAKEN,
    MemoryError.__name__: Failure.RESOURCES,
    "LaneLost": Failure.RESOURCES,
    ProcessDied.__name__: Failure.RESOURCES,
}


def kind_of(where: str, error: BaseException) -> Failure:
    """What sort of cause an error is, of a part of a run that is called `where`."""
    text = full_error(error)
    if _FULL in text or isinstance(error, MemoryError):
        return Failure.RESOURCES
    report = report_in(text)
    name = report.kind if report is not None else getattr(error, "kind", type(error).__name__)
    if name in _KINDS:
        return _KINDS[name]
    if isinstance(error, LogError) or name in ("LogError", "Missing", "Damaged"):
        return Failure.FOLDER
    if report is not None or (where.startswith("delivery ") and not isinstance(error, MillstreamError)):
        return Failure.USER_CODE
    if java_died(error) or (any(sign in text for sign in _GONE) and _PYTHON.search(text)):
        return Failure.RESOURCES
    return Failure.SPARK


def explained(where: str, error: BaseException, checkpoint: Path | None = None) -> str:
    """An error as a user can understand it: our own message if Spark's carries one, else what Spark's means.

    `checkpoint` is that of the query that met it: a file in it that is to blame is named.
    """
    text = full_error(error)
    report = report_in(text)
    if report is not None:
        return report.message
    if isinstance(error, MillstreamError):
        return str(error)
    if java_died(error):
        return f"Spark's Java process died ({type(error).__name__})"
    lines = str(error).splitlines()
    if isinstance(error, Py4JJavaError):
        lines = [line.removeprefix(": ") for line in lines[1:]]  # the first names a handle of ours
    first = _JAVA_CLASS.sub("", lines[0]) if lines else type(error).__name__
    if _FULL in text:
        return f"{where} stopped: {_FULL}; make room and start again: the run goes on where it was"
    state = "CANNOT_LOAD_STATE_STORE" in text
    if any(sign in text for sign in _GONE) and _PYTHON.search(text) and not state:
        return (
            f"{where} stopped: a Python process of Spark's died, perhaps killed for lack of memory ({first}); "
            f"nothing is lost: start again, and the run goes on where it was"
        )
    if came_too_late(error):
        return f"{where} stopped: a Python process of Spark's did not come up in time; the machine may be too busy: start again"
    if checkpoint is not None:
        named = [Path(found.rstrip(".")) for found in re.findall(rf"{re.escape(str(checkpoint))}/[\w./-]+", text)]
        gone = [file for file in named if not file.name.startswith(".") and not file.exists()]
        for file in (*gone, *damaged_files(checkpoint, state=state)):
            what = "damaged" if file.exists() else "missing"
            return f"{file} is {what}, and Spark needs it for {where} ({first}); restore it from a copy"
        for file in (*named, *([checkpoint / "state"] if state else [])):
            return f"{where} stopped: Spark cannot use {file} ({first}); if it is damaged, restore it from a copy"
    return f"{where} stopped: {first}"
