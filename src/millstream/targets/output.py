"""What the writer writes to: the log, Delta tables, files."""

from __future__ import annotations

from typing import Protocol

from millstream.core.parts import Columns
from millstream.errors import LogError


class Refused(LogError):
    """Another writer has moved the position; nothing was changed. The position must be read anew (rule 16)."""


class WriterOutput(Protocol):
    """Takes whole epochs, each once. Used by one thread."""

    @property
    def name(self) -> str: ...

    @property
    def streams(self) -> frozenset[str] | None:
        """Those it takes; None for all."""

    def position(self) -> int:
        """The last epoch that it has for good."""

    def open_until(self) -> int | None:
        """If a commit was begun and not ended: the epoch to which exactly it must be repeated."""

    def add(self, epoch: int, stream: str, origin: str, major: int, columns: Columns) -> None:
        """Records of an epoch after the position. Written to files as they come; nobody sees them yet."""

    def commit(self, to: int) -> int:
        """What was added is all there is of epochs (position, to]. Durable when this returns, as the new position."""

    def drop(self) -> None:
        """Forget what was added since the last commit."""
