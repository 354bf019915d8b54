"""What can be wrong with a journal, and how each error says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.errors import LogError

_REMEDIES = [
    ((errno.ENOSPC, errno.EDQUOT), "make room and start again"),
    ((errno.EROFS,), "make it writable and start again"),
    ((errno.EACCES, errno.EPERM, errno.ENOTDIR), "name a folder that you may write to"),
    ((errno.EIO,), "check the disk and start again"),
]


class Damaged(LogError):
    """A file of the journal does not hold what was written there."""


class Missing(LogError):
    """A file of the journal is not there. The caller first looks for newer commits: with one it is overtaken (rule 12)."""


def refusal(path: str, error: OSError) -> LogError:
    """What the system refused, as a matter of this file, with what to do about it."""
    remedy = next((f"; {how}" for numbers, how in _REMEDIES if error.errno in numbers), "")
    return LogError(f"{path} cannot be used: {error.strerror or error}{remedy}")


@contextmanager
def explained(path: str) -> Iterator[None]:
    """What the system refuses inside is raised as a `LogError` about this file."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from error
