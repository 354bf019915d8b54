"""Whatever goes wrong: a message that a user understands, and a log and state that are intact afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import Fenced, ProcessDied
from millstream.mill.driving import Ended
from millstream.spark.failure import explained, kind_of
from millstream.spark.session import session_for
from tests.spark.clicks import Click, Count, click, framed, inject, write_lines

pytestmark = pytest.mark.spark


class Fragile(ms.Computation[int]):
    """Breaks on one page."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)
        if record.value.page == "/bad":
            raise RuntimeError("this page is bad")


def files_topology(
    folder: Path, computation: ms.Computation[int], *, errors: ms.Errors = ms.Errors.FAIL, **options: object
) -> tuple[ms.Topology, ms.MemoryTarget]:
    topology = ms.Topology("errors")
    usual: dict[str, object] = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    stream = topology.inject("clicks", ms.files(f"{folder}/*.jsonl", Click, bounded=True), **{**usual, **options})  # type: ignore[arg-type]
    kept = ms.memory()
    topology.compute("count", computation, errors=errors).reads(stream)  # type: ignore[arg-type]
    topology.deliver("counts", computation.counts, kept)  # type: ignore[attr-defined]
    return topology, kept


def test_code_that_raises_stops_the_run_with_its_own_traceback_and_can_be_mended(tmp_path: Path, drained: Callable[..., ms.Run]) -> None:
    folder = tmp_path / "clicks"
    write_lines(folder / "1.jsonl", [click("anna", 1), click("anna", 2, "/bad"), click("bert", 3)])
    with pytest.raises(ms.RunFailed) as failed:
        drained(files_topology(folder, Fragile())[0])
    assert failed.value.kind is ms.Failure.USER_CODE
    assert isinstance(failed.value.__cause__, Ended)
    lines = str(failed.value).splitlines()
    assert lines[0].startswith("computation 'count', key 'anna', record clicks/0/")
    assert "of stream 'clicks': RuntimeError: this page is bad" in lines[0]
    assert 'raise RuntimeError("this page is bad")' in str(failed.value)
    assert "org.apache.spark" not in str(failed.value)
    topology, kept = files_topology(folder, Count())
    drained(topology)
    assert sorted((r.key, r.value) for r in kept.records) == [("anna", 1), ("anna", 2), ("bert", 1)]


def test_a_function_that_raises_stops_the_run_and_its_step_comes_again(tmp_path: Path, drained: Callable[..., ms.Run]) -> None:
    folder, calls, broken = tmp_path / "clicks", list[tuple[int, list[int]]](), [True]
    write_lines(folder / "1.jsonl", [click("anna", 1), click("anna", 2)])

    def keep(step: int, records: list[ms.Record[int]]) -> None:
        calls.append((step, [record.value for record in records]))
        if broken[0]:
            raise KeyError("no such account")

    def topology() -> ms.Topology:
        count = Count()
        made, _ = files_topology(folder, count)
        made.deliver("kept", count.counts, ms.function(keep))
        return made

    with pytest.raises(ms.RunFailed) as failed:
        drained(topology())
    assert failed.value.kind is ms.Failure.USER_CODE
    assert str(failed.value).startswith("delivery 'kept': KeyError: 'no such account'")
    assert isinstance(failed.value.__cause__, ms.RecordError)
    assert isinstance(failed.value.__cause__.__cause__, KeyError)
    assert 'raise KeyError("no such account")' in str(failed.value)
    broken[0] = False
    drained(topology())
    assert calls == [(0, [1, 2])] * 2


def test_code_that_raises_can_send_dead_letters_instead(tmp_path: Path, drained: Callable[..., ms.Run]) -> None:
    folder = tmp_path / "clicks"
    write_lines(folder / "1.jsonl", [click("anna", 1), click("anna", 2, "/bad"), click("anna", 3)])
    topology, kept = files_topology(folder, Fragile(), errors=ms.Errors.DEAD_LETTER)
    letters = ms.memory()
    topology.deliver("dead", topology.dead_letters, letters)
    run = drained(topology)
    assert [r.value for r in kept.records] == [1, 2]
    (letter,) = [record.value for record in letters.records]
    assert (letter.stream, letter.computation, letter.key) == ("clicks", "count", "anna")
    assert letter.reason.startswith("RuntimeError: this page is bad")
    assert '"/bad"' in letter.value
    tally = run.status().computations["count"].tally
    assert (tally.received, tally.applied, tally.dead) == (3, 2, 1)


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("{ no json", {}, "cannot be decoded"),
        ('{"user":"a","page":"/","at":"2026-01-01T12:00:00Z"}', {"timestamp": lambda c: None}, "its timestamp is None"),
        (
            '{"user":"a","page":"/","at":"2026-01-01T12:00:00Z"}',
            {"timestamp": lambda c: ms.Timestamp(-(2**60))},
            "out of range for a record",
        ),
        ('{"user":"a","page":"/","at":"2026-01-01T12:00:00Z"}', {"key": lambda c: c.nobody}, "AttributeError"),
    ],
)
def test_a_value_that_cannot_become_a_record_stops_the_run_and_says_how_to_fix_it(
    line: str, options: dict[str, object], message: str, tmp_path: Path, drained: Callable[..., ms.Run]
) -> None:
    folder = tmp_path / "clicks"
    folder.mkdir()
    (folder / "1.jsonl").write_text(line + "\n")
    with pytest.raises(ms.RunFailed) as failed:
        drained(files_topology(folder, Count(), **options)[0])
    assert failed.value.kind is ms.Failure.USER_CODE
    first = str(failed.value).splitlines()[0]
    assert first.startswith("injector 'clicks', value ")
    assert message in first
    assert "errors=ms.Errors.DEAD_LETTER" in first
    if not options:  # when the file is fixed, it is read
        write_lines(folder / "1.jsonl", [click("anna", 1)])
        topology, kept = files_topology(folder, Count())
        drained(topology)
        assert [(r.key, r.value) for r in kept.records] == [("anna", 1)]


def test_the_folder_of_another_topology_is_refused(drained: Callable[..., ms.Run]) -> None:
    def topology(name: str) -> ms.Topology:
        made = ms.Topology(name)
        count = Count()
        made.compute("count", count).reads(inject(made, [click("anna", 1)]))
        return made

    drained(topology("mine"))
    with pytest.raises(ms.LogError, match="is the folder of the topology 'mine', not of 'yours'"):
        drained(topology("yours"))


@contextmanager
def small_disk(at: Path, kilobytes: int) -> Iterator[None]:
    """A file system of its own, which can be made larger."""
    at.mkdir()
    size = f"size={max(kilobytes, 4)}k"
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(at)], capture_output=True).returncode:
        pytest.skip("a file system of our own cannot be mounted here")
    try:
        if kilobytes < 4:
            (at / "full").write_bytes(b"x" * 4096)
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@pytest.mark.parametrize(
    "kilobytes",
    [
        pytest.param(3072, id="in an epoch"),
        # What is written once at a start comes to its end at some place in this row.
        *(pytest.param(size, marks=pytest.mark.soak) for size in (0, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 2560, 3584)),
    ],
)
def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(
    tmp_path: Path, drained: Callable[..., ms.Run], kilobytes: int
) -> None:
    """The clicks fill it."""
    disk, folder = tmp_path / "disk", tmp_path / "clicks"
    write_lines(folder / "1.jsonl", [click(f"user {n} {'x' * 40}", n / 100, f"/{os.urandom(250).hex()}") for n in range(30_000)])
    with small_disk(disk, kilobytes):
        with pytest.raises((ms.RunFailed, ms.LogError), match="No space left on device"):
            drained(files_topology(folder, Count())[0], folder=disk / "mill")
        subprocess.run(["mount", "-o", "remount,size=300m", str(disk)], check=True)
        topology, kept = files_topology(folder, Count())
        drained(topology, folder=disk / "mill")
        assert sorted(r.value for r in kept.records) == [1] * 30_000


def test_a_missing_java_is_said_before_spark_says_it(tmp_path: Path) -> None:
    code = (
        "import millstream as ms; from tests.spark.clicks import *; "
        "t = ms.Topology('t'); c = Count(); t.compute('c', c).reads(inject(t, [])); ms.run(t, at='m')"
    )
    environment = {"PATH": str(tmp_path), "PYTHONPATH": os.getcwd(), "HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "Spark needs Java 17, and none was found. Install it" in found.stderr.splitlines()[-1]


def test_a_java_that_is_too_old_is_told_with_what_it_said(tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'UnsupportedClassVersionError: org/apache/spark/launcher/Main' >&2\nexit 1\n")
    java.chmod(0o755)
    code = (
        "import millstream as ms; from tests.spark.clicks import *; "
        "t = ms.Topology('t'); c = Count(); t.compute('c', c).reads(inject(t, [])); ms.run(t, at='m')"
    )
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "java"), "PYTHONPATH": os.getcwd()}
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert "Spark's Java process did not start: UnsupportedClassVersionError: org/apache/spark/launcher/Main. Spark needs Java 17" in last
    assert last.endswith("m/spark.log")


def test_an_input_whose_query_is_stopped_from_outside_has_not_ended(
    tmp_path: Path, spark: SparkSession, started: Callable[..., ms.Run]
) -> None:
    folder = tmp_path / "clicks"
    write_lines(folder / "1.jsonl", [click("anna", 1)])

    def topology() -> ms.Topology:
        made = ms.Topology("outside")
        usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
        made.compute("count", Count()).reads(made.inject("clicks", framed(folder), **usual))
        return made

    run = started(topology())
    for query in spark.streams.active:
        if query.name.endswith("inject clicks"):
            query.stop()
    with pytest.raises(ms.RunFailed, match="injector 'clicks' stopped: its query was stopped from outside"):
        run.wait(60)
    again = started(topology())
    again.drain()
    assert again.status().injectors["clicks"].injected == 1
    assert not again.status().injectors["clicks"].finished


@pytest.mark.parametrize(
    ("where", "error", "kind"),
    [
        ("the mill", Ended("RecordError", "computation 'x' …"), ms.Failure.USER_CODE),
        ("the mill", Ended("LaneLost", "lane 0 was lost 5 times within a minute"), ms.Failure.RESOURCES),
        ("the mill", Ended("LogError", "the checkpoint of lane 0 is of another copy"), ms.Failure.FOLDER),
        ("the mill", Ended("MemoryError", "too large"), ms.Failure.RESOURCES),
        ("the planner", ProcessDied("the planner's process died"), ms.Failure.RESOURCES),
        ("the log", ms.LogError("log/x is damaged"), ms.Failure.FOLDER),
        ("the log", ms.LogError("log/x cannot be used: No space left on device"), ms.Failure.RESOURCES),
        ("delivery 'x'", KeyError("no such account"), ms.Failure.USER_CODE),
        ("injector 'x'", ms.RecordError("injector 'x', value 1", "no key"), ms.Failure.USER_CODE),
        ("the mill", Py4JNetworkError("empty"), ms.Failure.RESOURCES),
        ("the mill", Fenced("a newer run owns the folder"), ms.Failure.OVERTAKEN),
        ("lane 0", RuntimeError("its query was stopped from outside"), ms.Failure.SPARK),
    ],
)
def test_programs_are_told_what_sort_of_cause_it_is(where: str, error: Exception, kind: ms.Failure) -> None:
    assert kind_of(where, error) is kind


def test_an_answer_that_breaks_off_is_a_java_process_that_died() -> None:
    """What py4j makes of a Java process that dies before, while and after it is asked; and of one that answers."""
    for error in (Py4JError("An error occurred while calling o1.isActive"), Py4JNetworkError("empty"), ConnectionRefusedError()):
        assert explained("the mill", error).startswith("Spark's Java process died")
    assert explained("the mill", Py4JError("An error occurred while calling o1.x. Trace:\nno such method\n")).startswith("the mill stopped")


KILL_JAVA = "[java.kill() for java in processes(psutil.Process(), 'java')]"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pass", KILL_JAVA),
        (f"old = feeds.Feeds.start; feeds.Feeds.start = lambda self: ({KILL_JAVA}, old(self))", "pass"),
    ],
    ids=["while it runs", "while it starts"],
)
def test_a_java_process_that_dies_ends_the_run(tmp_path: Path, before: str, after: str) -> None:
    code = (
        f"import psutil, millstream as ms; from millstream.spark import feeds; from tests.kills import processes; "
        f"from tests.spark.clicks import *; {before}; "
        "t = ms.Topology('t'); c = Count(); t.compute('c', c).reads(inject(t, [click('a', 1)])); run = ms.start(t, at='m'); "
        f"{after}; run.wait(100); print('still there')"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert "still there" not in found.stdout
    assert "RunFailed: Spark's Java process died" in found.stderr


def test_a_session_with_speculation_is_refused() -> None:
    given: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: {"spark.speculation": "true"}))
    with pytest.raises(ms.MillstreamError, match=r"spark\.speculation is on in this session: .* switch it off"):
        session_for(given, spark_log=None, sources=())
