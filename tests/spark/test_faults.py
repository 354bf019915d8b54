"""Faults while a run is on: processes that die, deliveries that are slow, keys that are hot, input that comes twice or in disorder."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.errors import StreamingQueryException

import millstream as ms
from millstream.core.backlog import Position
from millstream.core.epoch import Tally
from millstream.core.graph import MILL, compile_topology
from millstream.core.plan import Ledger
from millstream.log.folder import Folder
from millstream.log.table import tail
from millstream.spark.owner import pin
from tests.conformance.stages import DriverStage
from tests.spark.clicks import Click, Count, T, click, write_lines
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


class Fatal(ms.Computation[int]):
    """Counts; kills its own process at one page, once."""

    counts: ms.Output[int]

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)
        if record.value.page == "/fatal" and not self.flag.exists():
            self.flag.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


def counting(folder: Path, out: ms.Target, computation: ms.Computation[int] | None = None, late: ms.Late = ms.Late.PROCESS) -> ms.Topology:
    """Clicks of files, counted by user; what cannot be counted is set aside."""
    topology, count = ms.Topology("faults"), computation or Count()
    usual: dict[str, object] = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(10 * ms.SECOND)}
    folder.mkdir(exist_ok=True)
    clicks = topology.inject("clicks", ms.files(f"{folder}/*.jsonl", Click), **usual)  # type: ignore[arg-type]
    topology.compute("count", count, errors=ms.Errors.DEAD_LETTER).reads(clicks, late=late)  # type: ignore[arg-type]
    topology.deliver("counts", count.counts, out)  # type: ignore[attr-defined]
    return topology


def counted(*users: str) -> list[tuple[str, int]]:
    """The model: every click of a user gets the next number."""
    seen: Counter[str] = Counter()
    found = []
    for user in users:
        seen[user] += 1
        found.append((user, seen[user]))
    return sorted(found)


def rows(out: Path) -> list[tuple[str, int]]:
    return sorted((row["key"], row["value"]) for row in DeltaTable(str(out)).to_pyarrow_table().to_pylist())


def test_a_worker_that_is_killed_is_told_in_a_sentence_and_the_next_start_goes_on(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    folder, out, flag = tmp_path / "clicks", tmp_path / "out", tmp_path / "flag"
    write_lines(folder / "1.jsonl", [click("anna", 1), click("bert", 2), click("anna", 3, "/fatal"), click("bert", 4)])
    with pytest.raises(ms.RunFailed) as failed:
        started(counting(folder, ms.delta(str(out)), Fatal(flag))).drain()
    wait_until(lambda: not psutil.pid_exists(int(flag.read_text())))  # gone, once its parent has noticed
    (line,) = str(failed.value).splitlines()
    assert line.startswith("the mill stopped: a Python process of Spark's died, perhaps killed for lack of memory")
    assert line.endswith("nothing is lost: start again, and the run goes on where it was")
    started(counting(folder, ms.delta(str(out)), Fatal(flag))).drain()
    assert rows(out) == counted("anna", "bert", "anna", "bert")


def processes(kind: str) -> list[psutil.Process]:
    """Spark's Python processes that run a module of this name."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if any(kind in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def drained_or_failed(run: ms.Run) -> str | None:
    try:
        run.drain()
    except ms.RunFailed as error:
        return str(error)
    return None


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["python_streaming_source_runner", "python_streaming_sink_runner"])
def test_a_planner_or_a_committer_that_is_killed_loses_nothing(kind: str, tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    """A query that talks to it at that moment stops with a sentence; one that does not gets a new one. The result is the same."""
    folder, out = tmp_path / "clicks", tmp_path / "out"
    topology = counting(folder, ms.delta(str(out)))
    run = started(topology)
    write_lines(folder / "1.jsonl", [click("anna", 1), click("bert", 2)])
    wait_until(lambda: run.status().epoch >= 1)
    killed = processes(kind)
    assert killed
    for process in killed:
        process.kill()
    psutil.wait_procs(killed, timeout=10)
    write_lines(folder / "2.jsonl", [click("anna", 3), click("bert", 4)])
    failure = drained_or_failed(run)
    if failure is not None:
        assert "a Python process of Spark's died" in failure
        assert "start again, and the run goes on" in failure
        started(topology).drain()
    assert rows(out) == counted("anna", "bert", "anna", "bert")


class Late:
    """A query whose planner came too late."""

    isActive = False  # noqa: N815

    def exception(self) -> StreamingQueryException:
        return StreamingQueryException("Python worker failed to connect back.")

    def processAllAvailable(self) -> None:
        raise self.exception()

    def stop(self) -> None: ...


def test_a_query_whose_planner_comes_too_late_is_started_again(
    tmp_path: Path, started: Callable[..., ms.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine Spark gives up after ten seconds; then the watcher of the run starts the query, not the user's thread."""
    from millstream.spark import run as module

    launched: Counter[str] = Counter()

    def late_once(start: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*given: Any, **told: Any) -> Any:
            launched[start.__name__] += 1
            return Late() if launched[start.__name__] == 1 else start(*given, **told)

        return begin

    for start in (module.start_mill, module.start_delivery):
        monkeypatch.setattr(module, start.__name__, late_once(start))
    folder, out = tmp_path / "clicks", tmp_path / "out"
    run = started(counting(folder, ms.delta(str(out))))
    with run._looking:
        run._inputs.queries["clicks"].stop()
        run._inputs.queries["clicks"] = Late()  # type: ignore[assignment]
    write_lines(folder / "1.jsonl", [click("anna", 1), click("anna", 2)])
    wait_until(lambda: not isinstance(run._inputs.queries["clicks"], Late))
    wait_until(lambda: min(launched["start_mill"], launched["start_delivery"]) >= 2)  # by the watcher: nobody has asked for anything yet
    with run._looking:
        run._inputs.queries["clicks"].stop()
        run._inputs.queries["clicks"] = Late()  # type: ignore[assignment]
        write_lines(folder / "2.jsonl", [click("bert", 3)])
        run._halting.set()  # so that it is drain() that finds it
    run.drain()
    assert rows(out) == counted("anna", "anna", "bert")


def test_a_run_that_died_while_spark_wrote_its_first_offsets_begins(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    """Spark writes them under another name first; what is left of that was taken for a sign of another query."""
    folder, out = tmp_path / "clicks", tmp_path / "out"
    write_lines(folder / "1.jsonl", [click("anna", 1)])
    topology = counting(folder, ms.delta(str(out)))
    made = Folder(at)
    made.open()
    pin(made, compile_topology(topology), buckets=4, partitions=1)
    for query in ("inject clicks", MILL, "deliver counts"):
        for name in (".0.a1b2.tmp", "..0.a1b2.tmp.crc"):
            torn = made.checkpoint(query) / "offsets" / name
            torn.parent.mkdir(parents=True, exist_ok=True)
            torn.write_text("v1\n{")
    started(topology).drain()
    assert rows(out) == counted("anna")
    assert not list(made.path.rglob("*a1b2*"))


def test_a_slow_delivery_gets_everything_once_and_in_order_while_the_mill_runs_ahead(
    tmp_path: Path, at: Path, started: Callable[..., ms.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all have read is cleaned away at once, and the delivery stands still meanwhile: what it has not read must stay."""
    monkeypatch.setattr("millstream.spark.run.MAINTAIN", 0.1)
    for name, value in {"CHECKPOINT_EVERY": 2, "COMMITS_KEPT": 0, "HOURS_KEPT": 0}.items():
        monkeypatch.setattr(f"millstream.log.maintenance.{name}", value)
    files, came, ahead = 8, list[tuple[int, int]](), list[int]()

    def slow(epoch: int, records: list[ms.Record[int]]) -> None:
        came.extend((epoch, record.value) for record in records)
        if records and not ahead:
            wait_until(lambda: ms.status_of(at).streams["count.counts"].records == files and cleaned("injector clicks"))
            ahead.append(files - len(came))
        time.sleep(0.3)

    def cleaned(table: str) -> bool:
        with contextlib.suppress(DeltaError):  # the table is being cleaned at this moment
            return len(DeltaTable(str(at / "log" / table)).file_uris()) < files
        return False

    folder = tmp_path / "clicks"
    run = started(counting(folder, ms.function(slow)), retention=ms.Duration(1))
    for n in range(1, files + 1):
        write_lines(folder / f"{n}.jsonl", [click("anna", n)])
        wait_until(lambda n=n: run.status().injectors["clicks"].injected == n and bool(came))  # type: ignore[misc]
    run.drain()
    assert ahead == [files - 1], "the mill had published all while the first record was being delivered"
    assert [value for _, value in came] == list(range(1, files + 1))
    assert [epoch for epoch, _ in came] == sorted(epoch for epoch, _ in came)


class Sum(ms.Computation[int]):
    """Adds up; tells its total when all is there. Also how much memory its process has needed, at the first record and at the end."""

    totals: ms.Output[int]
    memory: ms.Output[float]

    def process_record(self, record: ms.Record[int]) -> None:
        if not self.state:
            self.memory.produce(megabytes(), timestamp=record.timestamp)
            self.set_timer("end", at=record.timestamp)
        self.state += 1

    def process_timer(self, timer: ms.Timer) -> None:
        self.totals.produce(self.state, timestamp=timer.at)
        self.memory.produce(megabytes(), timestamp=timer.at)


def megabytes() -> float:
    """The most that this process has ever needed."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def test_one_hot_key_with_a_hundred_thousand_records_in_one_epoch(tmp_path: Path, at: Path, drained: Callable[..., ms.Run]) -> None:
    count = 100_000
    write_lines(tmp_path / "numbers" / "1.jsonl", range(count))
    topology, total = ms.Topology("hot"), Sum()
    numbers = topology.inject(
        "numbers",
        ms.files(f"{tmp_path}/numbers/*.jsonl", int, bounded=True),
        key=lambda number: "hot",
        timestamp=lambda number: ms.Timestamp(T + number),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("sum", total).reads(numbers)
    kept, memory = ms.memory(), ms.memory()
    topology.deliver("totals", total.totals, kept)
    topology.deliver("memory", total.memory, memory)
    tally = drained(topology, records_an_epoch=10 * count).status().computations["sum"].tally
    assert [record.value for record in kept.records] == [count]
    assert (tally.received, tally.applied) == (count, count)
    assert [after - before for before, after in received_by_epoch(at, "sum") if after > before] == [count], "one epoch"
    first, last = (record.value for record in memory.records)
    assert last - first < 100


def received_by_epoch(at: Path, computation: str) -> list[tuple[int, int]]:
    """What a computation had received before and after each epoch, by the ledgers of the log."""
    notes = [commit.note for commit in tail(at / "log" / MILL, MILL, Position()) if commit.note is not None]
    tallies = [msgspec.json.decode(note, type=Ledger).tallies for note in notes]
    received = [tally[computation].received if computation in tally else 0 for tally in tallies]
    return list(zip([0, *received], received, strict=False))


def shuffled(chance: random.Random, *seconds: float, **others: str) -> list[Click]:
    """Clicks at these seconds, some of them twice, in any order."""
    found = [click(chance.choice(["anna", "bert"]), second) for second in seconds]
    found += chance.sample(found, len(found) // 3)
    found += [click("anna", seconds[0], page) for page in others.values()]
    chance.shuffle(found)
    return found


def test_input_that_comes_twice_and_in_disorder_is_counted_as_the_driver_counts_it(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    """Within the promise nothing is late; beyond it, what is late is dropped and counted; and nothing is lost unseen."""
    chance = random.Random(7)
    files = [
        shuffled(chance, 0, 1, 2, 3, 4, 5),
        shuffled(chance, 20, 14, 12, 11, bad="/bad"),  # within ten seconds of each other
        shuffled(chance, 40, 1, 2, 29, 31),  # some beyond the promise
        shuffled(chance, 30, 31, 3, 4, bad="/bad"),  # a whole file that comes too late
    ]
    kept = ms.memory()
    topology = counting(tmp_path / "clicks", kept, Picky(), late=ms.Late.DROP)
    run = started(topology)
    driver = DriverStage(topology)
    for number, clicks in enumerate(files):
        write_lines(tmp_path / "clicks" / f"{9 - number}.jsonl", clicks)  # their names say another order
        taken = sum(len(file) for file in files[: number + 1])
        wait_until(lambda taken=taken: applied(run) is not None and applied(run).received == taken)  # type: ignore[misc, union-attr]
        driver.send(topology.injected["clicks"], *clicks)
        driver.advance(low_watermark=max(ms.to_timestamp(c.at) for c in clicks) - 10 * ms.SECOND)
    run.drain()
    tally, wanted = applied(run), driver.tally("count")
    assert tally == wanted
    assert tally is not None
    assert tally.late == tally.dropped > 0 < tally.dead
    assert run.status().injected == tally.applied + tally.dropped + tally.dead
    read = driver.read(topology.nodes["count"].computation.counts)  # type: ignore[attr-defined]
    assert sorted((r.timestamp, r.key, r.value) for r in kept.records) == sorted((r.timestamp, r.key, r.value) for r in read)


class Picky(ms.Computation[int]):
    """Counts, but not every page."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        if record.value.page == "/bad":
            raise ValueError("this page is bad")
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)


def applied(run: ms.Run) -> Tally | None:
    found = run.status().computations.get("count")
    return None if found is None else found.tally


def test_a_file_is_what_its_name_says_and_is_read_once_however_old_it_is(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    """Touched: not read again. Under a new name: read. With an old time, as a copy may have: read too."""
    folder, out = tmp_path / "clicks", tmp_path / "out"
    topology = counting(folder, ms.delta(str(out)))
    write_lines(folder / "1.jsonl", [click("anna", 1)])
    started(topology).drain()
    os.utime(folder / "1.jsonl", (time.time() + 60, time.time() + 60))
    shutil.copy(folder / "1.jsonl", folder / "2.jsonl")
    write_lines(folder / ".3.jsonl", [click("bert", 2)])
    os.utime(folder / ".3.jsonl", (0, 0))
    (folder / ".3.jsonl").rename(folder / "3.jsonl")
    started(topology).drain()
    assert rows(out) == counted("anna", "anna", "bert")
    os.utime(folder / "3.jsonl")
    run = started(topology)
    run.drain()
    assert rows(out) == counted("anna", "anna", "bert")
    assert run.status().injectors["clicks"].injected == 3
