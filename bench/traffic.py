"""The input of the benchmarks: lines of JSON, a million of them if not told otherwise."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = 100  # of event time


def write_queries(folder: Path, *, records: int, keys: int, files: int = 20, seed: int = 7) -> None:
    """In order of time, under keys chosen evenly."""
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    each = records // files
    for number in range(files):
        lines = []
        for n in range(each):
            at = START + timedelta(microseconds=(number * each + n) * SECONDS * 1_000_000 // records)
            lines.append(f'{{"text":"k{chance.randrange(keys)}","at":"{at.isoformat()}"}}\n')
        (folder / f"{number:03d}.jsonl").write_text("".join(lines))
        time.sleep(0.002)  # Spark reads files in the order of their times
