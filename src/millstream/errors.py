"""What Millstream raises. Every message says what is wrong and how to fix it."""

from __future__ import annotations

import enum


class MillstreamError(Exception):
    """The root of all errors of Millstream."""


class TopologyError(MillstreamError, TypeError):
    """The topology or a computation is wrong; the message says how to fix it."""


class LogError(MillstreamError):
    """The log, a checkpoint or the folder around them is not as it must be; nothing was changed."""


class Fenced(LogError):
    """A newer run owns the folder, or the target: this one must not write any more."""


class Unreachable(MillstreamError):
    """A system outside does not answer now, and may later: whoever needs it goes on trying, and says so."""


class FolderBusy(LogError):
    """Another run holds the folder."""


class ProcessDied(MillstreamError):
    """A process of the run is gone, perhaps killed for lack of memory."""


class RecordError(MillstreamError):
    """User code or a decoder failed on one record or timer; carries where, and the user's own traceback."""

    def __init__(self, where: str, cause: str, trace: str = "") -> None:
        super().__init__(where, cause, trace)
        self.where, self.cause, self.trace = where, cause, trace

    def __str__(self) -> str:
        return f"{self.where}: {self.cause}" + (f"\n\n{self.trace}" if self.trace else "")


class Failure(enum.Enum):
    """What made a run fail, for programs that start runs."""

    USER_CODE = "user code"  # a computation, an extractor, an iterable or a delivered function raised
    FOLDER = "folder"  # the folder or a target is not as it must be
    OVERTAKEN = "overtaken"  # a newer run owns the folder
    RESOURCES = "resources"  # no room on a disk, no memory, or a process that was killed: start again, and it goes on
    SPARK = "spark"  # anything else that Spark met


class RunFailed(MillstreamError):
    """The run stopped; the cause stands on top. `kind` is what sort of cause it is, `details` all that Spark said, `spark_log` the
    file of its own log. `__cause__` is the error that the run met; below it is the user's own, where that was raised in this process."""

    def __init__(self, cause: str, details: str = "", spark_log: str | None = None, kind: Failure = Failure.SPARK) -> None:
        super().__init__(cause)
        self.details, self.spark_log, self.kind = details, spark_log, kind
