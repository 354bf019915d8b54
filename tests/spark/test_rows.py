"""A table that runs through the mill and is delivered as rows: over restarts and a kill of its writer, and from another copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psutil
import pytest
from deltalake import DeltaTable

import millstream as ms
from tests.kills import processes
from tests.spark.clicks import Click, click, write_lines
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Last:
    page: str
    clicks: int


class Lasts(ms.Computation[Last | None]):
    """The last page of every user; the row of one who logs out is gone."""

    changes: ms.Output[ms.Change[Last]]

    def process_record(self, record: ms.Record[Click]) -> None:
        before = self.state
        after = None if record.value.page == "/logout" else Last(record.value.page, 1 if before is None else before.clicks + 1)
        if before is not None or after is not None:
            self.changes.produce(ms.Change(before, after), timestamp=record.timestamp)
        self.state = after


def topology(base: Path) -> ms.Topology:
    found, lasts = ms.Topology("rows"), Lasts()
    clicks = found.inject(
        "clicks",
        ms.files(base / "clicks" / "*.jsonl", Click),
        key=lambda c: c.user,
        timestamp=lambda c: c.at,
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    found.compute("lasts", lasts).reads(clicks)
    found.deliver("rows", lasts.changes, ms.delta_rows(base / "rows", every=50 * ms.MILLISECOND))
    return found


def rows(base: Path) -> list[tuple[str, str, int]]:
    table = DeltaTable(str(base / "rows"))
    dataset = table.to_pyarrow_dataset()
    found = duckdb.sql("select key, page, clicks from dataset order by key").fetchall()
    of_pandas = table.to_pandas().sort_values("key")
    assert [tuple(row) for row in of_pandas[["key", "page", "clicks"]].itertuples(index=False)] == found
    return found


def test_rows_are_what_the_changes_say(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    users = [f"user {n}" for n in range(40)]
    write_lines(tmp_path / "clicks" / "1.jsonl", [click(user, n, f"/{n}") for n in range(3) for user in users])
    run = started(topology(tmp_path))
    wait_until(lambda: (tmp_path / "rows" / "_delta_log").exists() and len(rows(tmp_path)) == 40)
    write_lines(tmp_path / "clicks" / "2.jsonl", [click(user, 10, "/logout") for user in users[:30]])
    (writer,) = processes(psutil.Process(), "writer")
    writer.kill()
    run.drain()
    assert rows(tmp_path) == sorted((user, "/2", 3) for user in users[30:])
    shutil.copytree(tmp_path / "rows", tmp_path / "older")

    write_lines(tmp_path / "clicks" / "3.jsonl", [click(user, 20, "/again") for user in users[:2]])
    started(topology(tmp_path)).drain()
    now = sorted([*((user, "/2", 3) for user in users[30:]), *((user, "/again", 1) for user in users[:2])])
    assert rows(tmp_path) == now

    shutil.rmtree(tmp_path / "rows")
    (tmp_path / "older").rename(tmp_path / "rows")
    with pytest.raises(ms.LogError, match=r"rows ends with epoch \d+, but the commits say that it had \d+: it has lost what lies between"):
        started(topology(tmp_path))
    shutil.rmtree(tmp_path / "rows")
    with pytest.raises(ms.LogError, match="rows has nothing of what delivery 'rows' has delivered"):
        started(topology(tmp_path))
