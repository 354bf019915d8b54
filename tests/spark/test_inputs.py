"""Inputs that have ended, without Spark."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.ledger import Ledger, SourceProgress
from millstream.log.folder import Folder, Pinned
from millstream.spark.feeds import Feeds
from millstream.spark.launch import Died, Launcher
from tests.sources.scripted import Scripted
from tests.sources.test_files import Planner
from tests.spark.clicks import Click, Count, click, framed, write_lines
from tests.waiting import wait_until


def feeds_of(topology: ms.Topology, folder: Folder, planner: Any) -> Feeds:
    pinned, nobody = Pinned(topology.name, "id", str(folder.path), 1, 1), None
    launcher = Launcher(nobody, folder, compile_topology(topology), "", pinned, ms.Options())  # type: ignore[arg-type]
    return Feeds(launcher, planner, lambda name: pytest.fail("nothing is started"), must_end=False)


def test_a_drain_ends_with_what_is_found_while_its_query_waits_for_ever(tmp_path: Path) -> None:
    """Such as a lane that is lost for good: nobody makes room for the query then."""
    gate, looks = threading.Event(), iter([None, None, Died("lane 0", RuntimeError("lost for good"))])

    def look() -> None:
        if (found := next(looks)) is not None:
            raise found

    topology = ms.Topology("waits")
    usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    topology.compute("count", Count()).reads(topology.inject("clicks", framed(tmp_path), **usual))  # type: ignore[arg-type]
    feeds = feeds_of(topology, Folder(tmp_path / "mill"), SimpleNamespace(ledger=Ledger()))
    feeds.queries["clicks"] = SimpleNamespace(processAllAvailable=gate.wait, stop=gate.set)  # type: ignore[assignment]
    with pytest.raises(Died, match="lost for good"):
        feeds.drain(look)
    feeds.stop()
    assert gate.is_set()


def test_an_input_that_has_ended_says_so_of_files_that_came_since(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Folder(tmp_path / "mill")
    folder.open()
    topology = ms.Topology("ended")
    usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    clicks = topology.inject("clicks", ms.files(f"{tmp_path}/clicks/*.jsonl", Click, bounded=True), **usual)  # type: ignore[arg-type]
    topology.compute("count", Count()).reads(clicks)
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", 1)])
    planner: Any = Planner(compile_topology(topology), folder.inputs)
    planner.read_all()
    planner.ledger = Ledger(sources={"clicks": SourceProgress(finished=True, positions=planner.positions)})
    feeds = feeds_of(topology, folder, planner)
    feeds.start()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    write_lines(tmp_path / "clicks" / "2.jsonl", [click("anna", 2)])
    feeds.start()
    assert (
        f"injector 'clicks' has ended with 0 records, and 1 files that came since are not read, such as {tmp_path}/clicks/2.jsonl"
        in caplog.text
    )


class Exiting(Scripted):
    """A source whose library ends the thread that it is called in, as `sys.exit` does."""

    value_type = Click

    def open(self, context: ms.SourceContext) -> ms.SourceReader:
        raise SystemExit(3)


def test_an_input_whose_code_exits_ends_the_run(tmp_path: Path) -> None:
    """And not its thread alone, with the run going on without it."""
    topology = ms.Topology("exits")
    usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    topology.compute("count", Count()).reads(topology.inject("clicks", Exiting(), **usual))  # type: ignore[arg-type]
    folder = Folder(tmp_path / "mill")
    planner = SimpleNamespace(ledger=Ledger(), disk=None, unread=lambda *_: None, take_notes=lambda _: sys.exit(4))
    feeds = feeds_of(topology, folder, planner)
    feeds.start()
    wait_until(lambda: not feeds.join(0.0))
    with pytest.raises(Died, match="SystemExit: 3"):
        feeds.look()
    whole = feeds_of(topology, folder, SimpleNamespace(ledger=Ledger(), take_notes=planner.take_notes, notes=planner))
    planner.next = lambda *_: "a note"  # a batch DataFrame was written, and is only to be taken
    whole._start_whole("clicks", lambda: None)
    wait_until(lambda: not whole.join(0.0))
    with pytest.raises(Died, match="SystemExit"):
        whole.look()
