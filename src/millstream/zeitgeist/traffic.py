"""A seeded generator of query traffic: daily and weekly rhythm, disorder, late events, and anomalies at known places."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

import millstream as ms
from millstream.zeitgeist.clock import HOUR, HOURS_OF_WEEK, START
from millstream.zeitgeist.events import Anomaly, AnomalyKind, Query
from millstream.zeitgeist.topology import DISORDER

SEED = 2013
HISTORY = 2 * HOURS_OF_WEEK  # hours at the beginning that stay as they should be
CALM = 12  # hours between two anomalies of a query, and at the end
VISIBLE = {AnomalyKind.SPIKE: 6.0, AnomalyKind.DIP: 12.0}  # queries an hour below which a change would drown in chance
CHANGE = {AnomalyKind.SPIKE: (3.5, 5.0), AnomalyKind.DIP: (0.0, 0.08)}  # what an anomaly leaves of the traffic
FILES = 40

TEXTS = """\
weather; football results; train times; news; translate; pizza near me; exchange rate; cinema tonight; maps; tv guide
pasta recipe; cheap flights; horoscope; pharmacy open now; lottery numbers; chess; python list sort; sourdough; used bikes; sudoku
tax return; jazz radio; garden centre; marathon plan; car insurance; guitar tabs; moon phase; knitting patterns; camping; sushi
museum hours; job offers; yoga at home; vinyl records; bus 42; swimming pool; flu symptoms; second hand books; bird songs; ferry
coffee grinder; piano lessons; world cup; night sky; paint colours; hiking trails; wedding dress; kimchi; stock prices; tides
crossword help; surf report; school holidays; opera tickets; roof repair; chili con carne""".replace("\n", "; ").split("; ")


@dataclass(frozen=True)
class Size:
    """How much traffic: some 250 events a query and simulated day."""

    queries: int = 54
    weeks: int = 4
    anomalies: int = 26
    late: float = 0.005


SHIPPED = Size()


@dataclass(frozen=True)
class Traffic:
    """Events in the order of their arrival, as columns, and the truth about them."""

    texts: tuple[str, ...]
    rates: NDArray[np.float64]  # the number to expect of each query in each hour, without the anomalies
    text: NDArray[np.int64]  # of each event, as an index into `texts`
    at: NDArray[np.int64]  # of each event, in microseconds
    truth: tuple[Anomaly, ...]

    def __len__(self) -> int:
        return len(self.at)

    def events(self) -> Iterator[Query]:
        for text, at in zip(self.text.tolist(), self.at.tolist(), strict=True):
            yield Query(self.texts[text], ms.to_datetime(at))

    def write(self, folder: Path, *, files: int = FILES) -> None:
        """The events as `files` files of JSON lines, named in the order of arrival, and the truth as `truth.json`.

        Their times are a second apart: Spark takes files in the order of their times, and knows milliseconds only.
        """
        folder.mkdir(parents=True, exist_ok=True)
        heads = [f'{{"text":{msgspec.json.encode(text).decode()},"at":"' for text in self.texts]
        moments = np.datetime_as_string(self.at.astype("datetime64[us]"), timezone="UTC").tolist()
        lines = [f'{heads[text]}{moment}"}}\n' for text, moment in zip(self.text.tolist(), moments, strict=True)]
        cuts = [number * len(lines) // files for number in range(files + 1)]
        first = time.time() - files
        for number, (start, end) in enumerate(pairwise(cuts)):
            path = folder / f"{number:03}.jsonl"
            path.write_text("".join(lines[start:end]), encoding="utf-8")
            os.utime(path, (first + number, first + number))
        (folder / "truth.json").write_bytes(msgspec.json.format(msgspec.json.encode(self.truth)))


def read_truth(folder: Path) -> tuple[Anomaly, ...]:
    return msgspec.json.decode((folder / "truth.json").read_bytes(), type=tuple[Anomaly, ...])


def generate(seed: int = SEED, size: Size = SHIPPED) -> Traffic:
    """The same traffic for the same seed and size."""
    if size.queries > len(TEXTS):
        raise ValueError(f"{size.queries} queries are asked for and {len(TEXTS)} are known; ask for fewer or add to TEXTS")
    rng = np.random.default_rng(seed)
    texts = tuple(TEXTS[: size.queries])
    rates = _rates(rng, size)
    real = rates.copy()
    truth = []
    for number in range(size.anomalies):
        kind = (AnomalyKind.SPIKE, AnomalyKind.DIP)[number % 2]
        query, hours = _place(rng, kind, rates, taken=real != rates)
        real[query, hours] *= rng.uniform(*CHANGE[kind])
        truth.append(Anomaly(texts[query], kind, START + hours.start * HOUR, START + hours.stop * HOUR))
    counts = rng.poisson(real)
    text, hour = (np.repeat(index.ravel(), counts.ravel()) for index in np.indices(counts.shape))
    at = int(START) + hour * int(HOUR) + rng.integers(0, int(HOUR), len(hour))
    arrival = np.argsort(at + _delays(rng, len(at), size.late), kind="stable")
    return Traffic(texts, rates, text[arrival], at[arrival], tuple(sorted(truth, key=lambda anomaly: anomaly.start)))


def _rates(rng: np.random.Generator, size: Size) -> NDArray[np.float64]:
    """For each query its own volume, busiest hour, liking for weekends and slow trend; and weather: good days, bad hours."""
    hour = np.arange(size.weeks * HOURS_OF_WEEK)

    def each(low: float, high: float) -> NDArray[np.float64]:
        return rng.uniform(low, high, (size.queries, 1))

    volume = np.geomspace(20, 3, size.queries)[:, None]
    daily = np.exp(each(0.4, 0.9) * np.cos((hour - each(10, 21)) * 2 * np.pi / 24))
    weekly = np.where(hour // 24 % 7 < 5, 1.0, each(0.6, 1.5))
    trend = np.exp(each(-0.08, 0.08) * hour / HOURS_OF_WEEK)
    days = np.repeat(rng.lognormal(0, 0.04, (size.queries, size.weeks * 7)), 24, axis=1)
    hours = rng.lognormal(0, 0.06, (size.queries, len(hour)))
    rates: NDArray[np.float64] = volume * daily * weekly * trend * days * hours
    return rates


def _place(rng: np.random.Generator, kind: AnomalyKind, rates: NDArray[np.float64], taken: NDArray[np.bool_]) -> tuple[int, slice]:
    """A query and hours where an anomaly can be seen, well apart from others of the query."""
    for _ in range(10_000):
        query, length = int(rng.integers(len(rates))), int(rng.integers(7, 13))
        start = int(rng.integers(HISTORY, rates.shape[1] - CALM - length))
        around = slice(start - CALM, start + length + CALM)
        if rates[query, start : start + length].min() >= VISIBLE[kind] and not taken[query, around].any():
            return query, slice(start, start + length)
    raise ValueError(f"no room for one more {kind.value} among {len(rates)} queries; ask for fewer anomalies or more queries")


def _delays(rng: np.random.Generator, events: int, late: float) -> NDArray[np.int64]:
    """How long after it happened an event arrives: at most the disorder that is allowed for, but for the late ones."""
    usual = np.minimum(rng.exponential(0.2 * int(DISORDER), events), 0.95 * int(DISORDER))
    very = rng.uniform(5 * int(DISORDER), 30 * int(DISORDER), events)
    return np.where(rng.random(events) < late, very, usual).astype(np.int64)
