"""How long the log keeps each stream, as a topology says it: events go, and of a table the newest change of each key stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.ledger import Ledger, Plant
from millstream.log.folder import Folder
from millstream.log.keeping import Keeping
from millstream.spark.writing import Writer
from millstream.writer.messages import Needed
from tests.spark.clicks import Click, click, write_lines
from tests.waiting import wait_until


class Lasts(ms.Computation[str | None]):
    """The last page of every user; the row of one who logs out is gone."""

    changes: ms.Output[ms.Change[str]]

    def process_record(self, record: ms.Record[Click]) -> None:
        before, after = self.state, None if record.value.page == "/logout" else record.value.page
        if before is not None or after is not None:
            self.changes.produce(ms.Change(before, after), timestamp=record.timestamp)
        self.state = after


class Copy(ms.Computation[None]):
    seen: ms.Output[str]

    def process_record(self, record: ms.Record[ms.Change[str]]) -> None:
        assert record.value.after is not None, "deletions are gone from the log"
        self.seen.produce(record.value.after, timestamp=record.timestamp)


def topology_of(base: Path, deliver: Callable[[int, list[Any]], None], *, copies: bool = False) -> ms.Topology:
    found, lasts = ms.Topology("keeping"), Lasts()
    found.compact(lasts.changes, after=ms.SECOND)
    clicks = found.inject(
        "clicks",
        ms.files(base / "clicks" / "*.jsonl", Click),
        key=lambda c: c.user,
        timestamp=lambda c: c.at,
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    found.retain(clicks, for_=ms.SECOND)
    found.compute("lasts", lasts).reads(clicks)
    found.deliver("slow", lasts.changes, ms.function(deliver))
    if copies:
        found.compute("copy", Copy()).reads(lasts.changes, since=ms.Since.OLDEST)
    return found


def test_the_writer_is_told_what_each_stream_is_to_have_and_what_is_needed(tmp_path: Path) -> None:
    planner = SimpleNamespace(
        read=lambda look: look(Ledger(number=9, plant=Plant(deliveries={"slow": "lasts.changes"}), latest={"lasts.changes": 7}))
    )
    graph = compile_topology(topology_of(tmp_path, print))
    writer = Writer(graph, Folder(tmp_path), cast(Any, None), cast(Any, planner), ms.Options(retention=ms.DAY), 1)
    assert writer._keeping == {"clicks": Keeping(ms.SECOND), "lasts.changes": Keeping(ms.DAY, ms.SECOND, True)}
    said: list[object] = []
    writer._send = said.append  # type: ignore[assignment,method-assign]
    writer._tell_needed()
    writer._tell_needed()
    assert said == [Needed({"lasts.changes": 1}, 9)]


@pytest.mark.spark
def test_events_go_and_of_a_table_the_newest_changes_stay(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    released, delivered = threading.Event(), []

    def deliver(step: int, records: list[ms.Record[ms.Change[str]]]) -> None:
        released.wait()
        delivered.extend(records)

    users = [f"u{n}" for n in range(20)]
    (tmp_path / "clicks").mkdir()
    run = started(topology_of(tmp_path, deliver))
    for file in range(3):
        pages = [click(user, 10 * file + n, f"/{file}/{n}") for n in range(2) for user in users]
        write_lines(tmp_path / "clicks" / f"{file}.jsonl", pages)
        wait_until(lambda upto=40 * file + 40: streams(run, "clicks") == upto)  # type: ignore[misc]
    write_lines(tmp_path / "clicks" / "3.jsonl", [click(user, 50, "/logout") for user in users[:5]])
    wait_until(lambda: streams(run, "lasts.changes") == 125)
    wait_until(lambda: is_gone(at, "clicks"))
    assert len(ms.read(at, "lasts.changes")) == 125, "a delivery has still to get them"
    released.set()
    wait_until(lambda: len(ms.read(at, "lasts.changes")) == 15)
    assert len(delivered) == 125
    assert {(r.key, r.value["before"], r.value["after"]) for r in ms.read(at, "lasts.changes")} == {
        (user, "/2/0", "/2/1") for user in users[5:]
    }
    run.drain()

    started(topology_of(tmp_path, deliver, copies=True)).drain()  # a reader that comes later has the rows
    assert {(r.key, r.value) for r in ms.read(at, "copy.seen")} == {(user, "/2/1") for user in users[5:]}


def streams(run: ms.Run, name: str) -> int:
    found = run.status().streams.get(name)
    return 0 if found is None else found.records


def is_gone(at: Path, stream: str) -> bool:
    try:
        return not ms.read(at, stream)
    except ms.LogError as error:
        return f"the log has no record of a stream '{stream}'" in str(error)
