"""What a folder keeps for a key while no run is on: the journal's changed rows, and below them Spark's own checkpoint."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from millstream.core.apart import MemoryBudget
from millstream.core.lanes import Lanes
from millstream.core.ledger import Ledger
from millstream.core.pages import Pages, bucket_of
from millstream.core.parts import Frame
from millstream.core.row import HeldRow, state_of
from millstream.errors import LogError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.opening import open_ledger
from millstream.journal.segments import SegmentReader
from millstream.log.folder import Folder
from millstream.mill.beginning import rows_to_redo
from millstream.mill.held import decode_changes
from millstream.mill.messages import KeptKey
from millstream.mill.peeking import in_words, raw_state


def stored_key(folder: Folder, computation: str, key: str) -> KeptKey:
    """As of the newest commit. State is shown as it is kept: the code that it belongs to is not at hand."""
    pinned = folder.read_pinned()
    if pinned is None:
        raise LogError(f"{folder.path} holds no run of Millstream; name the folder that was given to run as --at")
    commits = Commits(LocalDisk(folder.journal))
    with folder.naming():
        ledger = open_ledger(commits)
        if computation not in ledger.reports:
            there = ", ".join(map(repr, sorted(ledger.reports))) or "none yet"
            raise LogError(f"nothing is kept of a computation {computation!r}; there is something of {there}")
        bucket = bucket_of(key, pinned.buckets)
        lane = Lanes(pinned.buckets, pinned.lanes).of_bucket[bucket]
        is_changed, row = _changed(commits, ledger, lane, pinned.lanes, bucket, computation, key)
        if not is_changed:
            row = _checkpointed(folder, lane, f"{bucket}/{computation}/", key)
    state = state_of(row)
    return in_words(KeptKey(computation, key, ledger.number, found=row is not None), row, "" if state is None else raw_state(state))


def _changed(
    commits: Commits, ledger: Ledger, lane: int, lanes: int, bucket: int, computation: str, key: str
) -> tuple[bool, HeldRow | None]:
    """Whether the journal has a change of the row, and what it was last changed to. Whatever is older is in a checkpoint, and of
    what is in both, the journal's last change is what the checkpoint has."""
    reader = SegmentReader(commits.disk, sleep=time.sleep)
    for redo in reversed(rows_to_redo(commits, ledger, lanes=lanes)[lane]):
        for _, part in reader.rows_of([(redo.epoch, Frame(redo.segment, lane, [], redo.rows))]):
            rows = decode_changes(part).changed.get(bucket, {}).get(computation, {})
            if key in rows:
                return True, rows[key]
    return False, None


def _checkpointed(folder: Folder, lane: int, prefix: str, key: str) -> HeldRow | None:
    """From Spark's state store, by its own reader."""
    checkpoint = folder.checkpoint(f"lane {lane}")
    if not (checkpoint / "commits").is_dir():
        return None
    with tempfile.TemporaryDirectory(prefix="millstream-") as aside:
        link = Path(aside) / "lane"  # the reader does not find a path with a blank in it
        link.symlink_to(checkpoint, target_is_directory=True)
        return Pages(_StateStore(link, Path(aside) / "spark.log"), prefix, MemoryBudget(sys.maxsize, lambda: None)).get(key)


class _StateStore:
    """A lane's checkpoint, read only; each call is a small query."""

    def __init__(self, checkpoint: Path, spark_log: Path) -> None:
        from millstream.spark.session import QUERY_SETTINGS, session_for

        spark, _ = session_for(None, spark_log=spark_log, sources=())
        for name, value in QUERY_SETTINGS.items():
            spark.conf.set(name, value)
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        reader = spark.read.format("statestore").option("path", str(checkpoint)).option("stateVarName", "rows")
        self._rows = reader.load()

    def get(self, key: str) -> bytes | None:
        found = self._rows.where(self._rows["user_map_key.name"] == key).select("user_map_value.content").collect()
        return bytes(found[0][0]) if found else None

    def put(self, key: str, value: bytes) -> None:
        raise AssertionError("nothing is written here")

    def remove(self, key: str) -> None:
        raise AssertionError("nothing is written here")
