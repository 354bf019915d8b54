"""What Millstream raises. Every message says what is wrong and how to fix it."""

from __future__ import annotations


class MillstreamError(Exception):
    """The root of all errors of Millstream."""


class TopologyError(MillstreamError, TypeError):
    """The topology or a computation is wrong; the message says how to fix it."""


class LogError(MillstreamError):
    """The log, a checkpoint or the folder around them is not as it must be; nothing was changed."""


class Fenced(LogError):
    """A newer run owns the folder: this one must not write any more."""


class FolderBusy(LogError):
    """Another run holds the folder."""


class RecordError(MillstreamError):
    """User code or a decoder failed on one record or timer; carries where, and the user's own traceback."""

    def __init__(self, where: str, cause: str, trace: str = "") -> None:
        super().__init__(where, cause, trace)
        self.where, self.cause, self.trace = where, cause, trace

    def __str__(self) -> str:
        return f"{self.where}: {self.cause}" + (f"\n\n{self.trace}" if self.trace else "")


class RunFailed(MillstreamError):
    """The run stopped; the cause stands on top. `details` is all that Spark said, `words` the file of its own log."""

    def __init__(self, cause: str, details: str = "", words: str | None = None) -> None:
        super().__init__(cause)
        self.details, self.words = details, words
