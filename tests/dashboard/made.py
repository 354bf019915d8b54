"""A folder as a run leaves it, made of commits without Spark: two injectors, three computations with a cycle, one delivery."""

from __future__ import annotations

import fcntl
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from millstream.core.epoch import BucketReport, Summary, Tally
from millstream.core.ledger import Commit, Plant, Reader, SourceChange
from millstream.core.low_watermark import LowWatermark, Mark
from millstream.core.parts import NO_LANE, Columns, Dealt, Frame, Part
from millstream.core.row import Minima
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.segments import SegmentWriter
from millstream.log.folder import Folder, Pinned
from millstream.log.history import At, History
from millstream.log.rows import Rows
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

    def __init__(self, at: Path, *, id: str = "f" * 32, topology: str = "shop") -> None:
        self.folder = Folder(at)
        at.mkdir(parents=True, exist_ok=True)
        pinned = Pinned(topology=topology, id=id, at=str(at), buckets=4, lanes=2)
        self.folder.pinned.write_bytes(msgspec.json.encode(pinned))
        self.journal = LocalDisk(self.folder.journal)
        self._commits = Commits(self.journal)
        self._commits.make_folders()
        self._segments = SegmentWriter(self.journal, "lane0", lambda: f"{self._number}")
        self._history = History(LocalDisk(self.folder.log), now=lambda: Timestamp(NOON))
        self._at: At | None = None
        self._unlogged: list[tuple[int, str, Columns]] = []
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

    def epoch(self, *, injected: int, at: int, held: int | None = None, waits: bool = False) -> Commit:
        """One that brings records of clicks: `count` has applied all but one, and one was late. It is `held` by a timer of `count`. Or
        no epoch has taken them yet, and they wait."""
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
            took={} if waits else {f"values-{self._number}": [0]},
            summaries=[
                Summary(
                    0,
                    {"count": BucketReport(minima, 7, 2)},
                    {"count": Tally(received=injected, applied=injected - 1, late=1, dead=1, produced=3)},
                )
            ],
        )

    def records(self, stream: str, *records: tuple[str, object], at: int = NOON) -> int:
        """An epoch that produced these: keys and values, or the JSON of one as bytes. Its number."""
        values = [value if isinstance(value, bytes) else msgspec.json.encode(value) for _, value in records]
        columns = Columns([key for key, _ in records], values, [Timestamp(at + n) for n in range(len(values))], list(range(len(values))))
        major = self._number + 1
        frame = self._segments.append([Dealt(0, stream, "", stream, major, columns)], lane=0)
        self._unlogged.append((self.commit(frames=[frame]).number, stream, columns))
        return major

    def log(self) -> None:
        """The log takes in what it does not have, a file for each epoch, and the journal lets go of it."""
        if self._at is None:
            self._history.create()
            self._at = self._history.position()
        staged = []
        for number, stream, columns in self._unlogged:
            rows = Rows()
            rows.add(number, stream, number, columns)
            staged.append(self._history.stage(stream, rows))
        self._unlogged = []
        self._at = self._history.commit(staged, after=self._at, to=self._number)
        self.commit(logged=self._number)
        self._segments.close()
        for name in self.journal.names("segments"):
            self.journal.remove(f"segments/{name}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """As seen by another process, a run is on."""
        with self.folder.lock.open("w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            yield


def letter(computation: str | None, *, stream: str = "clicks", reason: str = "ValueError: no", value: str = "{}") -> dict[str, object]:
    return {"stream": stream, "computation": computation, "key": None, "id": "clicks/1/0", "reason": reason, "value": value}


def sampled(folder: Folder, count: int, *, every: int = SECOND, first: int = NOON) -> None:
    """So many samples, as a run writes them."""
    sampling = Sampling(folder)
    for n in itertools.islice(itertools.count(), count):
        records = {"clicks": 10 * n, "count.counts": n}
        sampling.add(
            Sample(at=first + n * every, epoch=n, ran=n * 0.2, wrote=n * 0.1, records=records, low_watermarks={"count": first + n * every})
        )


def sampled_day(folder: Folder, *, streams: Sequence[str], first: int = NOON) -> int:
    """A day of samples: by the minute, and by the second at its end. When it ends."""
    sampling, day, fine = Sampling(folder), 86_400, 2_700
    seconds = [*range(0, day - fine, 60), *range(day - fine, day)]
    for second in seconds:
        at = first + second * SECOND
        sampling.add(
            Sample(
                at=at,
                epoch=second,
                ran=second * 0.2,
                wrote=second * 0.1,
                records={name: (n + 1) * 100 * second for n, name in enumerate(streams)},
                low_watermarks={f"count {n}": at - n * 60 * SECOND for n in range(len(streams))},
                late={"count": second // 7},
                dead={"count": second // 100},
            )
        )
    return first + seconds[-1] * SECOND
