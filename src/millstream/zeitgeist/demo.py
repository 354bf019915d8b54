"""The demo: make traffic, run Zeitgeist on Spark, hold what it found against the truth."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TypeVar

import msgspec
from deltalake import DeltaTable
from rich.console import Console

import millstream as ms
from millstream.zeitgeist.computations import Comparison, Finding
from millstream.zeitgeist.picture import draw
from millstream.zeitgeist.score import score, table
from millstream.zeitgeist.topology import zeitgeist
from millstream.zeitgeist.traffic import SEED, generate

V = TypeVar("V")

WANTED = 0.9  # of precision and of recall
PACE = ms.Options(max_records_per_epoch=80_000, max_bytes_per_epoch=5 << 20)  # several epochs, so that one sees them pass
SLOWLY = ms.Options(max_records_per_epoch=20_000, max_bytes_per_epoch=1 << 20, linger=ms.SECOND)  # for who watches the page


def play(at: Path, *, seed: int | None = None, slowly: bool = False) -> float:
    """Plays in the folder `at`, from the beginning; returns the lesser of precision and recall."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=110)
    queries, out, run = at / "queries", at / "out", at / "run"
    for old in (queries, out, run):
        shutil.rmtree(old, ignore_errors=True)
    traffic = generate(SEED if seed is None else seed)
    traffic.write(queries)
    console.print(
        f"{len(traffic):,} queries of four simulated weeks are in {queries}, {len(traffic.truth)} spikes and dips among them.",
        highlight=False,
        soft_wrap=True,
    )
    ms.run(zeitgeist(str(queries), str(out)).topology, at=run, until=ms.DRAINED, options=SLOWLY if slowly else PACE, progress=True)
    result = score(traffic.truth, records(out / "findings", Finding))
    console.print(table(result))
    picture = at / "zeitgeist.png"
    draw(picture, records(out / "comparisons", Comparison), result)
    console.print(
        f"Precision {result.precision:.2f}, recall {result.recall:.2f}. The picture is {picture}.", highlight=False, soft_wrap=True
    )
    console.print(f"Look around: millstream status {run}; millstream read {run} detector.findings", highlight=False, soft_wrap=True)
    return min(result.precision, result.recall)


def records(path: Path, kind: type[V]) -> list[ms.Record[V]]:
    """A delivered table, back as records."""
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return [ms.Record(row["key"], _value(row["value"], kind), ms.to_timestamp(row["timestamp"])) for row in rows]


def _value(found: dict[str, object], kind: type[V]) -> V:
    times = {name: int(ms.to_timestamp(at)) for name, at in found.items() if hasattr(at, "tzinfo")}  # type: ignore[arg-type]
    return msgspec.convert({**found, **times}, kind)
