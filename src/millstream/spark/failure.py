"""Carrying an error from one of Spark's Python processes to the user, without forty lines of JVM around it."""

from __future__ import annotations

import base64
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from millstream.errors import Fenced, MillstreamError, RecordError

# Spark hands the text of an exception on and nothing else, so the error travels inside its own text.
_MARK = re.compile(r"<<millstream:([A-Za-z0-9+/=]+)>>")


class Told(msgspec.Struct):
    """An error as it travels."""

    kind: str
    message: str


class Marked(Exception):
    """What Spark sees of an error of ours."""


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Whatever goes wrong inside is told to the user as one sentence, `what` naming the part for errors that are not ours."""
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
        told = Told(type(error).__name__, message)
        raise Marked(f"<<millstream:{base64.b64encode(msgspec.json.encode(told)).decode()}>>") from error


def told_in(text: str) -> Told | None:
    """The error that Spark's words carry, if it is one of ours; user code comes before what followed from it."""
    found = [msgspec.json.decode(base64.b64decode(mark), type=Told) for mark in _MARK.findall(text)]
    if not found:
        return None
    order = {RecordError.__name__: 0, Fenced.__name__: 2}
    return min(found, key=lambda told: order.get(told.kind, 1))
