"""What a run looked like, second by second: kept beside the journal for who looks at it, needed by nobody.

A sample holds counts since the folder began, so of any two the difference says what came between them, and to thin them out is to
leave some out: the last minutes by the second, two days by the minute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from millstream.log.folder import Folder
from millstream.log.status import Status

SECOND = 1_000_000
FILES_KEPT = 3  # of each grain: the one that is written, and the two before it
_NAME = re.compile(r"(seconds|minutes)-(\d+)\.jsonl")


class Grain(msgspec.Struct, frozen=True):
    name: str
    every: int  # microseconds between two samples
    span: int  # of one file


SECONDS = Grain("seconds", SECOND, 900 * SECOND)
MINUTES = Grain("minutes", 60 * SECOND, 86_400 * SECOND)
GRAINS = (SECONDS, MINUTES)


class Sample(msgspec.Struct, omit_defaults=True):
    """A run at a moment; counts and times spent are those of the folder since it began, or of the run since it did."""

    at: int  # microseconds
    epoch: int
    ran: float = 0.0  # seconds that epochs of this run took in the lanes
    wrote: float = 0.0  # and commits on the disk
    phases: dict[str, float] = {}  # seconds of this run by what they were spent on; those of lanes are added up over all
    took: list[int] = []  # epochs of this run by how long they took: no longer than each of `EPOCH_BOUNDS`, and longer than all
    took_in_all: float = 0.0  # seconds, of those
    restarts: dict[str, int] = {}  # of this run, by what died and came again
    records: dict[str, int] = {}  # by stream
    low_watermarks: dict[str, int] = {}  # by computation
    late: dict[str, int] = {}
    dropped: dict[str, int] = {}
    dead: dict[str, int] = {}  # by injector and computation
    behind: dict[str, int] = {}  # by delivery, in epochs
    log: int = 0
    waiting: int = 0  # records that no epoch has taken


def sample_of(status: Status) -> Sample:
    computations = status.computations
    dead = {name: injector.dead for name, injector in status.injectors.items()} | {n: c.tally.dead for n, c in computations.items()}
    return Sample(
        at=int(status.now),
        epoch=status.epoch,
        records={name: stream.records for name, stream in status.streams.items()},
        low_watermarks={name: int(c.low_watermark) for name, c in computations.items()},
        late={name: c.tally.late for name, c in computations.items() if c.tally.late},
        dropped={name: c.tally.dropped for name, c in computations.items() if c.tally.dropped},
        dead={name: count for name, count in dead.items() if count},
        behind=status.deliveries,
        log=status.log,
        waiting=sum(injector.waiting for injector in status.injectors.values()),
    )


class Sampling:
    """Writes the samples of a run. A disk that refuses one is met by the run elsewhere: samples are for looking at."""

    def __init__(self, folder: Folder) -> None:
        self._folder = samples_folder(folder)
        self._last = dict.fromkeys(GRAINS, 0)

    def add(self, sample: Sample) -> None:
        line = msgspec.json.encode(sample) + b"\n"
        for grain in GRAINS:
            if sample.at - self._last[grain] >= grain.every * 9 // 10:  # who is called about once a second is sometimes called early
                self._last[grain] = sample.at
                self._append(grain, sample.at, line)

    def _append(self, grain: Grain, at: int, line: bytes) -> None:
        path = self._folder / f"{grain.name}-{at // grain.span:08d}.jsonl"
        is_new = not path.exists()
        self._folder.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(line)
        if is_new:
            for old in sorted(self._folder.glob(f"{grain.name}-*.jsonl"))[:-FILES_KEPT]:
                old.unlink(missing_ok=True)


def samples_folder(folder: Folder) -> Path:
    return folder.path / "samples"


def read_samples(folder: Folder, *, after: int = 0) -> list[Sample]:
    """Oldest first: by the minute, and by the second where those are kept. A line that a crash has torn is left out."""
    seconds = list(_read(folder, SECONDS, after))
    first = seconds[0].at if seconds else None
    return [*(each for each in _read(folder, MINUTES, after) if first is None or each.at < first), *seconds]


def _read(folder: Folder, grain: Grain, after: int) -> Iterator[Sample]:
    for path in _files(folder, grain):
        if (int(path.stem.rpartition("-")[2]) + 1) * grain.span <= after:
            continue
        yield from (found for found in _samples(path) if found.at > after)


def _files(folder: Folder, grain: Grain) -> Iterable[Path]:
    return sorted(p for p in samples_folder(folder).glob(f"{grain.name}-*.jsonl") if _NAME.fullmatch(p.name))


def _samples(path: Path) -> Iterator[Sample]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:  # it has just gone
        return
    for line in content.split(b"\n"):
        try:
            yield _decode(line)
        except msgspec.DecodeError:
            continue


_decode = msgspec.json.Decoder(Sample).decode
