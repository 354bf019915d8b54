"""Compaction against a plain model: whatever is written, merged, compacted, followed and killed, in whatever order."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.log import compaction, upkeep
from millstream.log.keeping import Keeping, Needs
from millstream.log.upkeep import Upkeep
from millstream.timestamp import SECOND, Timestamp
from tests.journal.simdisk import Crash, SimDisk
from tests.log.compacted import AFTER, STREAM, Kept, Log, newest

KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
VALUES = st.sampled_from(["1", "2", "null"])
EPOCHS = st.lists(st.tuples(KEYS, VALUES, st.integers(0, 3)), max_size=6)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), EPOCHS, st.integers(1, 3)),
        st.tuples(st.just("wait"), st.sampled_from([5, 40, 120])),
        st.tuples(st.just("maintain"), st.integers(1, 5)),
        st.tuples(st.just("follow"), st.integers(0, 9)),
        st.tuples(st.just("kill"), st.integers(0, 60)),
    ),
    max_size=40,
)


class World:
    """A log, its upkeep, somebody who follows it, and all that was ever written."""

    def __init__(self, root: Path) -> None:
        self.disk, self.root, self.runs = SimDisk(), root, 0
        self.log = Log(self.disk)
        self.keeper = self._keeper()
        self.written: dict[Kept, Timestamp] = {}
        self.has = 0  # up to this epoch somebody has all of it, who follows

    def _keeper(self) -> Upkeep:
        return Upkeep(self.log.history, self.root, retention=None, streams={STREAM: Keeping(None, AFTER)})

    def write(self, records: list[tuple[str, str, int]], files: int) -> None:
        made = self.log.write(*((key, value) for key, value, _ in records), files=files, timestamps=[at for _, _, at in records])
        self.written |= dict.fromkeys(made, self.log.clock.now)

    def wait(self, seconds: int) -> None:
        self.log.clock.now += seconds * SECOND

    def maintain(self, times: int) -> None:
        for _ in range(times):
            self.keeper.run(self.log.clock.now, self._needs())
        self.log.at = self.log.history.position()

    def _needs(self) -> Needs:
        upto = self.log.at.upto
        return Needs(upto, {} if self.has == upto else {STREAM: self.has + 1})

    def follow(self, behind: int) -> None:
        self.has = max(self.has, self.log.at.upto - behind)

    def kill(self, step: int) -> None:
        """In the midst of maintenance; another run begins."""
        self.disk.crash_at(step)
        with suppress(Crash):
            self.maintain(5)
        self.disk.power_loss()
        self.runs += 1
        self.log = Log(self.disk, self.log.clock, run=f"run{self.runs}-")
        self.keeper = self._keeper()

    def check(self) -> None:
        found, now = set(self.log.left()), self.log.clock.now
        assert found <= set(self.written)
        assert {r for r, at in self.written.items() if now - at <= AFTER} <= found, "what is young is whole"
        assert {r for r in self.written if r.epoch > self.has} <= found, "what somebody lacks is whole"
        assert newest(found) == newest(self.written), "every key has its newest, and nothing comes back"


def play(steps: list[tuple[object, ...]], root: Path) -> None:
    world = World(root)
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
        world.check()
    world.wait(2 * int(AFTER) // int(SECOND))
    old = list(world.written)
    world.write([("a", "1", 0), ("a", "null", 1), ("f", "2", 1)], 1)
    world.follow(0)
    world.maintain(60)
    young = set(world.written) - set(old)
    assert world.log.left() == sorted([*newest(old), *young])


@settings(max_examples=100, deadline=None)
@example([("write", [], 1), ("write", [("a", "1", 0)] * 4, 1)], 3, 64)  # an epoch of more than a portion, after one of nothing
@given(STEPS, st.sampled_from([3, 12, 500]), st.sampled_from([2, 64]))
def test_the_newest_of_what_is_old_and_all_of_what_is_young(steps: list[tuple[object, ...]], rows: int, files: int) -> None:
    with (
        tempfile.TemporaryDirectory() as root,
        mock.patch.object(compaction, "ROWS_PER_STEP", rows),
        mock.patch.object(compaction, "ROWS_PER_FILE", 2),
        mock.patch.object(upkeep, "FILES_PER_MERGE", files),
        mock.patch.object(upkeep, "ROWS_PER_FILE", 5),
        mock.patch.object(upkeep, "ENTRIES_PER_CHECKPOINT", 10**9),  # Delta's own need a real disk
    ):
        play(steps, Path(root))
