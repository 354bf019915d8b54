"""The command, as a person would use it: in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from millstream.core.epoch import Tally
from millstream.log.status import ComputationStatus, InjectorStatus, Status, StreamStatus
from tests.kills import kill_tree
from tests.spark.clicks import click, write_lines
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

FILE = """
from __future__ import annotations
from dataclasses import dataclass
from datetime import datetime
import millstream as ms
import helper_of_mine

@dataclass(frozen=True)
class Click:
    user: str
    page: str
    at: datetime

class Count(ms.Computation[int]):
    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state = helper_of_mine.next_of(self.state)
        self.counts.produce(self.state, timestamp=record.timestamp)

topology = ms.Topology("mine")
clicks = topology.inject("clicks", ms.files("clicks/*.jsonl", Click), key=lambda c: c.user, timestamp=lambda c: c.at,
                         low_watermark=ms.BoundedDisorder(ms.SECOND))
count = Count()
topology.compute("count", count).reads(clicks)
topology.deliver("counts", count.counts, ms.to_files("counts"))
"""


def millstream(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "millstream.command.main", *words], cwd=cwd, capture_output=True, text=True, check=False)


def test_run_status_read_and_stop(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "helper_of_mine.py").write_text("def next_of(n: int) -> int:\n    return n + 1\n")
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", 1), click("anna", 2), click("bert", 3)])
    command = [sys.executable, "-m", "millstream.command.main", "run", "mine.py", "--at", "mill"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until(lambda: process.poll() is not None or len(list((tmp_path / "counts").glob("*.jsonl"))) > 0, 180)
        status = json.loads(millstream("status", "mill", "--json", cwd=tmp_path).stdout)
        for found, kind in [
            (status, Status),
            (status["computations"]["count"], ComputationStatus),
            (status["computations"]["count"]["tally"], Tally),
            (status["injectors"]["clicks"], InjectorStatus),
            (status["streams"]["count.counts"], StreamStatus),
        ]:
            assert set(found) == set(kind.__struct_fields__)
        assert status["running"] is True
        assert status["computations"]["count"]["tally"]["applied"] == 3
        assert status["computations"]["count"]["keys"] == 2
        assert (status["injectors"]["clicks"]["injected"], status["injectors"]["clicks"]["finished"]) == (3, False)
        assert status["deliveries"].keys() == {"counts"}
        shown = millstream("status", "mill", cwd=tmp_path).stdout
        assert "mine: running" in shown
        assert "count.counts" in shown
        assert "…" not in shown  # eighty columns are enough
        read = {n: millstream("read", "mill", "count.counts", "-n", f"{n}", cwd=tmp_path).stdout.splitlines() for n in (2, 20)}
        counted = [(line["key"], line["value"]) for line in map(json.loads, read[20])]
        assert [each for each in counted if each[0] == "anna"] == [("anna", 1), ("anna", 2)]
        assert sorted(counted) == [("anna", 1), ("anna", 2), ("bert", 1)]  # whose lane comes first is first
        assert read[2] == read[20][-2:], "the newest"
        second = millstream("run", "mine.py", "--at", "mill", cwd=tmp_path)
        assert second.returncode == 1
        assert "another run holds" in second.stderr
        unknown = millstream("read", "mill", "count.cuonts", cwd=tmp_path)
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "the log has no record of a stream 'count.cuonts'; streams with records: clicks, count.counts" in unknown.stderr
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to Spark's processes, too
        words = process.communicate(timeout=180)[1]
        assert process.returncode == 0, words
    finally:
        if process.poll() is None:
            kill_tree(process)
    assert words.startswith("starting Spark")
    assert "epoch " in words
    assert "stopping" in words
    assert "WARN" not in words
    assert json.loads(millstream("status", "mill", "--json", cwd=tmp_path).stdout)["running"] is False


def test_sigterm_to_all_processes_of_a_run_is_a_stop_in_order(tmp_path: Path) -> None:
    """As services and `timeout` send it: Spark must live until the lanes have saved what they keep."""
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "helper_of_mine.py").write_text("def next_of(n: int) -> int:\n    return n + 1\n")
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", 1), click("anna", 2)])
    command = [sys.executable, "-m", "millstream.command.main", "run", "mine.py", "--at", "mill"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until(lambda: process.poll() is not None or len(list((tmp_path / "counts").glob("*.jsonl"))) > 0, 180)
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGTERM)
        words = process.communicate(timeout=180)[1]
    finally:
        if process.poll() is None:
            kill_tree(process)
    assert process.returncode == 0, words
    assert "stopping" in words
    assert "died" not in words
    _, left = psutil.wait_procs(family, timeout=30)
    assert not left


HANGS = """
from mine import *
import time

def hang(step, records):
    open("called", "w").close()
    time.sleep(3600)

topology.deliver("hangs", count.counts, ms.function(hang))
"""


def test_sigterm_asks_for_an_end_in_order_and_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "helper_of_mine.py").write_text("def next_of(n: int) -> int:\n    return n + 1\n")
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", 1)])
    command = [sys.executable, "-m", "millstream.command.main", "run", "hangs.py", "--at", "mill"]
    said = tmp_path / "said"
    with said.open("w") as stderr:
        process = subprocess.Popen(command, cwd=tmp_path, stderr=stderr, text=True, start_new_session=True)
    try:
        wait_until(lambda: process.poll() is not None or (tmp_path / "called").exists(), 180)
        os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda: process.poll() is not None or "stopping" in said.read_text())
        assert process.poll() is None, said.read_text()  # it waits for the delivery
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) != 0
    finally:
        if process.poll() is None:
            kill_tree(process)
    assert "Traceback" not in said.read_text()
    assert millstream("read", "mill", "count.counts", cwd=tmp_path).stdout.count("anna") == 1


BROKEN = """
def next_of(n: int) -> int:
    raise ValueError(f"cannot count beyond {n}")
"""


def test_a_bug_is_told_with_the_users_own_traceback_and_nothing_of_java(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "helper_of_mine.py").write_text(BROKEN)
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", 1)])
    found = millstream("run", "mine.py", "--at", "mill", cwd=tmp_path)
    assert found.returncode == 1
    lines = found.stderr[found.stderr.index("millstream: ") :].splitlines()
    assert (
        lines[0] == "millstream: computation 'count', key 'anna', record clicks/0/0 of stream 'clicks': ValueError: cannot count beyond 0"
    )
    assert lines[1:3] == ["", "Traceback (most recent call last):"]
    assert lines[3].endswith('mine.py", line 18, in process_record')  # the first frame is the user's
    assert lines[-1] == f"Spark's log is in {tmp_path / 'mill' / 'spark.log'}"
    assert not any(word in found.stderr for word in ("java", "org.apache", "py4j", "millstream/"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nothing.py", "--at", "mill"), "there is no file nothing.py"),
        (("run", "empty.py", "--at", "mill"), "which topology of empty.py? It has none; make one with"),
        (("run", "mine.py:other", "--at", "mill"), "has no topology called 'other'; it has topology"),
        (("status", "nowhere"), "holds no run of Millstream"),
        (("read", "nowhere", "counts"), "holds no run of Millstream"),
    ],
)
def test_mistakes_are_told_in_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "mine.py").write_text("import millstream as ms\ntopology = ms.Topology('t')\n")
    found = millstream(*words, cwd=tmp_path)
    assert found.returncode == 1
    assert message in found.stderr
    assert "Traceback" not in found.stderr
