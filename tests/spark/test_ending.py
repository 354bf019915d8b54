"""The end of a run: it waits for nothing for ever, says what it gave up on, and leaves no thread to the next run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

import millstream as ms
from millstream.log.folder import Folder
from millstream.sources import values
from millstream.spark import feeds, run
from millstream.spark.ending import join_all, stop_queries, wait_for
from millstream.spark.feeds import Feeds
from millstream.spark.launch import Launcher
from millstream.spark.owner import Lock
from millstream.spark.planning import Planning
from tests.spark.clicks import NOON, Click, Count, click
from tests.waiting import wait_until

SHORT = 0.2  # seconds that a test gives to what never ends
USUAL = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}


@pytest.fixture
def open_gate() -> Iterator[threading.Event]:
    """What waits for it in a test ends after the test."""
    gate = threading.Event()
    yield gate
    gate.set()


class Stuck:
    """A query in a batch that takes until the gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate, self.asked = gate, 0

    def stop(self) -> None:
        self.asked += 1
        self._gate.wait()


class Raising:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def stop(self) -> None:
        raise self._error


class Slow(Py4JJavaError):
    """What Spark raises after `spark.sql.streaming.stopTimeout`."""

    def __init__(self) -> None: ...

    def __str__(self) -> str:
        return "An error occurred while calling o1.stop.\n: java.util.concurrent.TimeoutException: Stream Execution thread failed to stop"


def free() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


def test_threads_that_run_on_are_named(open_gate: threading.Event) -> None:
    stuck, done = threading.Thread(target=open_gate.wait, name="stuck", daemon=True), threading.Thread(target=lambda: None, name="done")
    unborn = threading.Thread(name="unborn")
    stuck.start()
    done.start()
    assert join_all([stuck, done, unborn, threading.current_thread()], SHORT) == ["stuck"]


def test_queries_are_stopped_side_by_side_and_one_that_is_stuck_is_named(open_gate: threading.Event) -> None:
    others = [Stuck(free()), Stuck(free())]
    assert stop_queries({"first": others[0], "stuck": Stuck(open_gate), "second": others[1], "slow": Raising(Slow())}, SHORT) == [
        "stuck",
        "slow",
    ]
    assert [other.asked for other in others] == [1, 1]


def test_what_spark_raises_else_is_raised() -> None:
    with pytest.raises(ConnectionError, match="gone"):
        stop_queries({"gone": Raising(ConnectionError("gone"))}, 60.0)


def test_a_wait_ends_with_what_a_look_finds(open_gate: threading.Event) -> None:
    def look() -> None:
        raise RuntimeError("a lane is lost for good")

    with pytest.raises(RuntimeError, match="for good"):
        wait_for(open_gate.wait, name="drains", look=look, pause=0.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="its own"):
        wait_for(lambda: int("its own"), name="drains", look=lambda: None)  # type: ignore[arg-type, return-value]


def inputs() -> Feeds:
    """The inputs of a run around which there is none."""
    launcher = SimpleNamespace(graph=SimpleNamespace(injections={}))
    return Feeds(cast(Launcher, launcher), cast(Planning, SimpleNamespace()), cast(Any, None), must_end=False)


def test_a_query_that_does_not_stop_is_given_up_once(
    open_gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feeds, "QUERY_TIMEOUT", SHORT)
    found, stuck = inputs(), Stuck(open_gate)
    found.queries = cast(Any, {"clicks": stuck, "others": Stuck(free())})
    with caplog.at_level(logging.WARNING, "millstream"):
        found.stop()
        found.stop()
    (record,) = caplog.records
    assert record.getMessage().startswith("gave up on injector 'clicks': Spark is in a batch of it")
    assert stuck.asked == 1


class Parts:
    """The parts of a run, as far as its end goes: each says what is asked of it. One may meet a Java process that died."""

    def __init__(self, *, dies: str = "", waits: threading.Event | None = None) -> None:
        self.asked: list[str] = []
        self._dies, self._waits = dies, waits
        self.begun = threading.Event()

    def run(self) -> ms.Run:
        made = ms.Run.__new__(ms.Run)
        parts = {name: SimpleNamespace(**{what: self._asked(f"{name} {what}") for what in ASKED}) for name in PARTS}
        parts["mill"].planner = SimpleNamespace(join=self._asked("planner join"), ledger=SimpleNamespace(number=7))
        made.__dict__.update({f"_{name}": part for name, part in parts.items()})
        made._ending, made._ended, made._closing = threading.Lock(), threading.Event(), threading.Event()
        made._watcher = threading.Thread(target=made._end, name="millstream watches", daemon=True)
        made._failure, made._spark_log = None, None
        made._graph, made._folder = cast(Any, SimpleNamespace(name="parts")), Folder("parts")
        return made

    def _asked(self, what: str) -> Callable[..., list[str]]:
        def ask(*_: object) -> list[str]:
            self.asked.append(what)
            self.begun.set()
            if self._waits is not None:
                self._waits.wait()
            if what == self._dies:
                raise ConnectionRefusedError("Java is gone")
            return []

        return ask


PARTS = ("telling", "feeds", "deliveries", "writer", "mill", "lock")
ASKED = ("stop", "end", "close", "join", "release")
IN_ORDER = ["telling end", "feeds stop", "deliveries stop", "writer end", "mill close"]
JOINS = ["feeds join", "deliveries join", "writer join", "planner join"]


def test_all_is_ended_and_all_threads_are_joined_before_the_lock_goes() -> None:
    parts = Parts()
    parts.run()._end()
    assert parts.asked == [*IN_ORDER, *JOINS, "lock release"]


def test_where_java_died_the_rest_is_ended_all_the_same() -> None:
    parts = Parts(dies="feeds stop")
    made = parts.run()
    made._end()
    assert parts.asked == [*IN_ORDER, *JOINS, "lock release"]
    with pytest.raises(ms.RunFailed, match="Java process died") as failed:
        made.wait(0.0)
    assert isinstance(failed.value.__cause__, ConnectionRefusedError)


def test_a_run_is_ended_once_and_whoever_comes_later_waits_for_it_but_the_watcher() -> None:
    gate = threading.Event()
    parts = Parts(waits=gate)
    made = parts.run()
    first, second = (threading.Thread(target=made._end, daemon=True) for _ in range(2))
    first.start()
    assert parts.begun.wait(60)
    second.start()
    made._watcher.start()
    made._watcher.join(60)
    assert not made._watcher.is_alive()
    assert second.is_alive()
    gate.set()
    first.join(60)
    second.join(60)
    assert not made.active
    assert parts.asked == [*IN_ORDER, *JOINS, "lock release"]


@pytest.mark.spark
def test_stop_waits_for_no_source_and_no_thread_is_left_when_the_lock_goes(
    spark: SparkSession,
    at: Path,
    tmp_path: Path,
    open_gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    started: Callable[..., ms.Run],
    drained: Callable[..., ms.Run],
) -> None:
    """An iterable that is silent for ever, and a batch DataFrame that would take minutes."""
    monkeypatch.setattr(values, "TAKER_TIMEOUT", SHORT)
    mine: list[str] = []  # the threads that there are when the lock goes
    release, others = Lock.release, threading.enumerate()  # of other tests, whose iterables are silent for ever

    def released(lock: Lock) -> None:
        ours = (thread for thread in threading.enumerate() if thread not in others and thread.name.startswith("millstream"))
        mine.extend(thread.name for thread in ours)
        release(lock)

    monkeypatch.setattr(run, "Lock", type("Watched", (Lock,), {"release": released}))
    begun = str(tmp_path / "begun")

    def silent(taken: int) -> Iterator[Click]:
        yield from [click("anna", 1)][taken:]
        open_gate.wait()

    def slow(of: SparkSession) -> DataFrame:
        return of.range(1, numPartitions=1).mapInPandas(lambda batches: never(batches, begun), "user string, page string, at timestamp")

    topology, count, kept = ms.Topology("ends"), Count(), ms.memory()
    silently = topology.inject("silent", ms.values(silent, Click), **USUAL)
    slowly = topology.inject("slow", ms.dataframe(slow, Click), **USUAL)
    topology.compute("count", count).reads(silently, slowly)
    topology.deliver("counts", count.counts, kept)
    first = started(topology)
    wait_until(lambda: Path(begun).exists() and len(kept.records) == 1)
    with caplog.at_level(logging.WARNING, "millstream"):
        first.stop()
    assert mine == ["millstream takes values of silent"]
    (given_up,) = [record.getMessage() for record in caplog.records if "gave up" in record.getMessage()]
    assert given_up.startswith("gave up on threads that have not ended: 'millstream takes values of silent'; ")
    assert not [thread for thread in threading.enumerate() if thread.name == "millstream watches"]
    again, count = ms.Topology("ends"), Count()
    rest = again.inject(
        "slow", ms.dataframe(spark.createDataFrame([("anna", "/", NOON)], "user string, page string, at timestamp"), Click), **USUAL
    )
    again.compute("count", count).reads(rest)
    more = ms.memory()
    again.deliver("counts", count.counts, more)
    drained(again)
    assert [(record.key, record.value) for record in more.records] == [("anna", 2)]


def never(batches: Iterator[pd.DataFrame], begun: str) -> Iterator[pd.DataFrame]:
    """Runs in Spark's own process, which is told to end."""
    import time
    from pathlib import Path

    Path(begun).touch()
    while True:
        time.sleep(0.05)
    yield from batches
