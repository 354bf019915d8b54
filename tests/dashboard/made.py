"""A folder as a run leaves it, made of commits without Spark: two injectors, three computations with a cycle, one delivery."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec

from millstream.core.epoch import BucketReport, Summary, Tally
from millstream.core.ledger import Commit, Plant, Reader, SourceChange
from millstream.core.low_watermark import LowWatermark, Mark
from millstream.core.parts import NO_LANE, Frame, Part
from millstream.core.row import Minima
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.log.folder import Folder, Pinned
from millstream.log.samples import Sample, Sampling
from millstream.timestamp import Timestamp

NOON = 1_717_243_200_000_000
SECOND = 1_000_000
READERS = {
    "count ← clicks": Reader("clicks", False, 1),
    "join ← count.counts": Reader("count.counts", False, 1),
    "join ← users": Reader("users", False, 1),
    "again ← join.pairs": Reader("join.pairs", False, 1),
    "join ← again.back": Reader("again.back", False, 1),
}


class Made:
    """Commits, one after another."""

    def __init__(self, at: Path) -> None:
        self.folder = Folder(at)
        at.mkdir(parents=True, exist_ok=True)
        pinned = Pinned(topology="shop", id="f" * 32, at=str(at), buckets=4, lanes=2)
        self.folder.pinned.write_bytes(msgspec.json.encode(pinned))
        self._commits = Commits(LocalDisk(self.folder.journal))
        self._commits.make_folders()
        self._number = 0
        self.commit(
            plant=Plant(
                computations=["count", "join", "again"], injectors=["clicks", "users"], deliveries={"out": "join.pairs"}, buckets=4, lanes=2
            ),
            readers=dict(READERS),
        )

    def commit(self, **changes: object) -> Commit:
        self._number += 1
        made = Commit(self._number, f"{self._number}", f"{self._number - 1}" if self._number > 1 else "", 1, Timestamp(NOON))
        for name, value in changes.items():
            setattr(made, name, value)
        assert self._commits.create(made)
        return made

    def epoch(self, *, injected: int, at: int, held: int | None = None) -> Commit:
        """One that brings records of clicks: `count` has applied all but one, and one was late. It is `held` by a timer of `count`."""
        minima = Minima() if held is None else Minima(Timestamp(held), hold=Timestamp(held))
        low = Timestamp(at)
        out = low if held is None else Timestamp(held)
        return self.commit(
            sources={"clicks": SourceChange(injected=injected, marks={"p0": Mark(low, Timestamp(NOON))})},
            promises={"clicks": low},
            low_watermarks={
                "count": LowWatermark(low, out),
                "join": LowWatermark(out, out),
                "again": LowWatermark(out, out),
            },
            frames=[
                Frame(f"values-{self._number}", NO_LANE, [Part(0, 1, 0, 0, "clicks", "", "clicks", self._number, injected, low)]),
            ],
            took={f"values-{self._number}": [0]},
            summaries=[
                Summary(
                    0,
                    {"count": BucketReport(minima, 7, 2)},
                    {"count": Tally(received=injected, applied=injected - 1, late=1, dead=1, produced=3)},
                )
            ],
        )


def sampled(folder: Folder, count: int, *, every: int = SECOND, first: int = NOON) -> None:
    """So many samples, as a run writes them."""
    sampling = Sampling(folder)
    for n in itertools.islice(itertools.count(), count):
        records = {"clicks": 10 * n, "count.counts": n}
        sampling.add(
            Sample(at=first + n * every, epoch=n, ran=n * 0.2, wrote=n * 0.1, records=records, low_watermarks={"count": first + n * every})
        )
