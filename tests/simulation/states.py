"""What lanes hold and checkpoint: always the rows that committed frames have changed, taken together."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.ledger import Checkpoint, Commit
from millstream.core.parts import RowsPart
from millstream.mill.held import IDENTITY, Held, decode_changes
from tests.simulation.turns import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World

Rows = dict[tuple[int, str, str], Any]

_decode_identity = msgspec.msgpack.Decoder(Checkpoint).decode


class States:
    """By lane: its rows after each epoch, and where the changes lie."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folds: list[list[tuple[int, Rows]]] = [[(0, {})] for _ in range(world.sizes.lanes)]
        self.rows_at: list[list[tuple[int, str, RowsPart]]] = [[] for _ in range(world.sizes.lanes)]

    def read(self, commit: Commit) -> None:
        for frame in commit.frames:
            if frame.rows is not None and frame.lane >= 0:
                self._take_rows(commit.number, frame.lane, frame.segment, frame.rows)

    def _take_rows(self, epoch: int, lane: int, segment: str, part: RowsPart) -> None:
        rows = dict(self.folds[lane][-1][1])
        for bucket, of_computation in decode_changes(self.world.oracle.records.content(segment, part)).changed.items():
            for name, of_key in of_computation.items():
                for key, row in of_key.items():
                    if row is None:
                        rows.pop((bucket, name, key), None)
                    else:
                        rows[bucket, name, key] = row
        self.folds[lane].append((epoch, rows))
        self.rows_at[lane].append((epoch, segment, part))

    def fold_at(self, lane: int, epoch: int) -> Rows:
        folds = self.folds[lane]
        return folds[bisect_right(folds, epoch, key=lambda each: each[0]) - 1][1]

    def check(self, lane: int, state: dict[str, bytes]) -> None:
        """A batch that Spark commits is the fold of the committed frames up to the epoch that it says."""
        stored = state.get(IDENTITY)
        identity = Checkpoint() if stored is None else _decode_identity(stored)
        epoch = identity.at.epoch
        oracle = self.world.oracle
        if epoch > oracle.ledger.number or oracle.ids[epoch] != identity.at.commit:
            raise Broken(f"a checkpoint of lane {lane} is of commit {epoch} {identity.at.commit}, and there is no such commit")
        rows = self.fold_at(lane, epoch)
        held = Held(_Frozen(state), memory=None)
        counts: Counter[tuple[int, str]] = Counter()
        for (bucket, name, key), row in rows.items():
            found = held.rows(bucket, name).get(key)
            counts[bucket, name] += 1
            if found != row:
                raise Broken(f"the checkpoint of lane {lane} at {epoch} has {found!r} for {name} key {key!r}, the frames say {row!r}")
        names = {name for _, rows in self.folds[lane] for _, name, _ in rows}
        for bucket in range(self.world.sizes.buckets):
            for name in names:
                if (there := held.rows(bucket, name).rows) != counts[bucket, name]:
                    raise Broken(f"the checkpoint of lane {lane} at {epoch} has {there} rows of {name}, the frames {counts[bucket, name]}")

    def check_needed(self) -> None:
        """What changed since the oldest state that Spark may give is there."""
        for lane, folder in enumerate(self.world.lanes):
            least = min(len(folder.batches), max(0, folder.proved - 1))
            stored = folder.state(least).get(IDENTITY)
            epoch = 0 if stored is None else _decode_identity(stored).at.epoch
            for number, segment, part in self.rows_at[lane]:
                if number > epoch:
                    self.world.oracle.records.content(segment, part)


class _Frozen:
    def __init__(self, state: dict[str, bytes]) -> None:
        self._state = state

    def get(self, key: str) -> bytes | None:
        return self._state.get(key)

    def put(self, key: str, value: bytes) -> None:
        raise Broken("a look writes")

    def remove(self, key: str) -> None:
        raise Broken("a look removes")
