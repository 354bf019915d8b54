"""What is kept for a key, whether a run is on or not."""

from __future__ import annotations

from pathlib import Path

from millstream import arguments
from millstream.log.folder import Folder, read_json
from millstream.log.status import Now, is_held
from millstream.mill.asking import KeyQuestion, ask_at
from millstream.mill.messages import KeptKey


def kept_at(at: str | Path, computation: str, key: str) -> KeptKey:
    """Asked of the run that is on; else read from journal and checkpoints."""
    folder = Folder(arguments.path("state", at))
    if is_held(folder):
        now = read_json(Now.path(folder), Now) or Now()
        return ask_at(now.asked_at, KeyQuestion(computation, key))
    from millstream.spark.stored import stored_key

    return stored_key(folder, computation, key)
