"""Faults while a run is on: processes that die or hang, code that raises, deliveries that are slow, keys that are hot, input that
comes twice or in disorder."""

from __future__ import annotations

import logging
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

import millstream as ms
from millstream.core.epoch import Tally
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.log.folder import Folder
from millstream.spark.owner import pin
from tests.conformance.stages import DriverStage
from tests.spark.clicks import Click, Count, T, click, framed, write_lines
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


class Fatal(ms.Computation[int]):
    """Counts; kills its own process at one page, so many times."""

    counts: ms.Output[int]

    def __init__(self, flag: Path, times: int = 1) -> None:
        self.flag, self.times = flag, times

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)
        if record.value.page == "/fatal" and len(killed(self.flag)) < self.times:
            with self.flag.open("a") as file:
                file.write(f"{os.getpid()}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def killed(flag: Path) -> list[int]:
    return [int(line) for line in flag.read_text().splitlines()] if flag.exists() else []


def counting(
    folder: Path,
    out: ms.Target,
    computation: ms.Computation[int] | None = None,
    late: ms.Late = ms.Late.PROCESS,
    errors: ms.Errors = ms.Errors.DEAD_LETTER,
    source: ms.Source[Click] | None = None,
) -> ms.Topology:
    """Clicks of files, counted by user; what cannot be counted is set aside."""
    topology, count = ms.Topology("faults"), computation or Count()
    usual: dict[str, object] = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(10 * ms.SECOND)}
    folder.mkdir(exist_ok=True)
    clicks = topology.inject("clicks", source or ms.files(f"{folder}/*.jsonl", Click), **usual)  # type: ignore[arg-type]
    topology.compute("count", count, errors=errors).reads(clicks, late=late)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice in one epoch"])
def test_a_lane_that_is_killed_comes_back_by_itself(
    tmp_path: Path, started: Callable[..., ms.Run], times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed twice by one epoch: the epoch is planned with half as much. The logger of Millstream tells of it all."""
    caplog.set_level(logging.INFO, "millstream")
    folder, out, flag = tmp_path / "clicks", tmp_path / "out", tmp_path / "flag"
    for number in range(3):  # a part each: an epoch can be made smaller by parts
        write_lines(folder / f"{number}.jsonl", [click("anna", number), click("bert", number, "/fatal" if number == 1 else "/")])
    run = started(counting(folder, ms.delta(str(out)), Fatal(flag, times), source=framed(folder)))
    run.drain()
    assert len(set(killed(flag))) == times
    assert not any(psutil.pid_exists(process) for process in killed(flag))
    assert rows(out) == counted(*["anna", "bert"] * 3)
    told = [record.getMessage() for record in caplog.records if record.name == "millstream"]
    assert re.fullmatch(r"topology 'faults' runs on .* from epoch \d+ on, 1 lanes", told[0])
    assert sum(message.startswith("lane 0 was lost, and is started again: ") for message in told) == times
    assert sum(message.startswith("lane 0 was lost, and is back after ") for message in told) == times
    assert re.fullmatch(r"topology 'faults' on .* has stopped after epoch \d+", told[-1])


def test_an_epoch_that_kills_its_lane_however_small_it_is_ends_the_run_and_a_repaired_program_goes_on(
    tmp_path: Path, started: Callable[..., ms.Run]
) -> None:
    folder, out, flag = tmp_path / "clicks", tmp_path / "out", tmp_path / "flag"
    write_lines(folder / "1.jsonl", [click("anna", 1), click("anna", 2, "/fatal")])
    with pytest.raises(ms.RunFailed, match=r"lane 0 died twice of epoch \d+, which cannot be made smaller\. It may be killed for lack of"):
        started(counting(folder, ms.delta(str(out)), Fatal(flag, times=100))).wait(120)
    assert len(killed(flag)) == 2
    started(counting(folder, ms.delta(str(out)))).drain()
    assert rows(out) == counted("anna", "anna")


class Sleepy(ms.Computation[int]):
    """Does not come back from one page."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        while record.value.page == "/sleep":
            time.sleep(0.1)
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)


def test_a_lane_that_hangs_ends_the_run_with_computation_and_key(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    folder, out = tmp_path / "clicks", tmp_path / "out"
    write_lines(folder / "1.jsonl", [click("anna", 1), click("bert", 2, "/sleep")])
    with pytest.raises(ms.RunFailed, match="lane 0 has been busy for 3 s in computation 'count', key 'bert'; make it quicker, or raise"):
        started(counting(folder, ms.delta(str(out)), Sleepy()), lane_timeout=3 * ms.SECOND).wait(120)
    started(counting(folder, ms.delta(str(out)))).drain()
    assert rows(out) == counted("anna", "bert")


class Fragile(ms.Computation[int]):
    """Breaks on one page."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)
        if record.value.page == "/bad":
            raise RuntimeError("this page is bad")


def test_nothing_of_an_epoch_that_failed_stays_and_a_repaired_program_goes_on(
    tmp_path: Path, at: Path, started: Callable[..., ms.Run]
) -> None:
    """Two lanes: what the healthy one did in that epoch does not count either, and is done once."""
    folder, out = tmp_path / "clicks", tmp_path / "out"
    users = [f"user {n}" for n in range(8)]  # on both lanes
    run = started(counting(folder, ms.delta(str(out)), Fragile(), errors=ms.Errors.FAIL), lanes=2)
    write_lines(folder / "1.jsonl", [click(user, 1) for user in users])
    wait_until(lambda: (tally := applied(run)) is not None and tally.applied == len(users))
    before = run.status().epoch
    write_lines(folder / "2.jsonl", [click(user, 2, "/bad" if user == users[0] else "/") for user in users])
    with pytest.raises(ms.RunFailed) as failed:
        run.wait(60)
    assert str(failed.value).startswith("computation 'count', key 'user 0', record clicks/0/")
    assert 'raise RuntimeError("this page is bad")' in str(failed.value)
    later = Commits(LocalDisk(at / "journal")).span(before + 1, ms.status_of(at).epoch)
    assert not any(commit.took or commit.summaries for commit in later), "no epoch has taken the second file"
    assert ms.status_of(at).computations["count"].tally.received == len(users)
    started(counting(folder, ms.delta(str(out)), errors=ms.Errors.FAIL), lanes=2).drain()
    assert rows(out) == counted(*users, *users)


class Late:
    """A query whose Python process came too late."""

    isActive = False  # noqa: N815

    def exception(self) -> StreamingQueryException:
        return StreamingQueryException("Python worker failed to connect back.")

    def processAllAvailable(self) -> None:
        raise self.exception()

    def stop(self) -> None: ...


def test_a_query_whose_python_process_comes_too_late_is_started_again(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    """On a busy machine Spark gives up after ten seconds; then the watcher of the run starts the query, or drain() does."""
    folder, out = tmp_path / "clicks", tmp_path / "out"
    run = started(counting(folder, ms.delta(str(out)), source=framed(folder)))

    def make_late() -> None:
        run._feeds.queries["clicks"].stop()
        run._feeds.queries["clicks"] = Late()  # type: ignore[assignment]

    with run._looking:
        make_late()
        lane = run._mill._queries[0]
        lane.stop()
        run._mill._queries[0] = Late()  # type: ignore[assignment]
    write_lines(folder / "1.jsonl", [click("anna", 1), click("anna", 2)])
    wait_until(lambda: not isinstance(run._feeds.queries["clicks"], Late) and not isinstance(run._mill._queries[0], Late))
    with run._looking:
        make_late()
        write_lines(folder / "2.jsonl", [click("bert", 3)])
        run._halting.set()  # so that it is drain() that finds it
    run.drain()
    assert rows(out) == counted("anna", "anna", "bert")


def test_a_run_that_died_while_spark_wrote_its_first_offsets_begins(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    """Spark writes them under another name first; what is left of that was taken for a sign of another query."""
    folder, out = tmp_path / "clicks", tmp_path / "out"
    write_lines(folder / "1.jsonl", [click("anna", 1)])
    made = Folder(at)
    made.open()
    pin(made, "faults", buckets=4, lanes=1)
    for name in (".0.a1b2.tmp", "..0.a1b2.tmp.crc"):
        torn = made.checkpoint("lane 0") / "offsets" / name
        torn.parent.mkdir(parents=True, exist_ok=True)
        torn.write_text("v1\n{")
    started(counting(folder, ms.delta(str(out)))).drain()
    assert rows(out) == counted("anna")
    assert not list(made.path.rglob("*a1b2*"))


def test_a_slow_delivery_gets_everything_once_and_in_order_while_the_mill_runs_ahead(
    tmp_path: Path, at: Path, started: Callable[..., ms.Run]
) -> None:
    """It stands still in its first call until all is milled and in the log; what it has not read yet must stay."""
    files, came, ahead = 6, list[tuple[int, int]](), list[int]()

    def slow(step: int, records: list[ms.Record[int]]) -> None:
        came.extend((step, record.value) for record in records)
        if not ahead:
            wait_until(lambda: ms.status_of(at).streams["count.counts"].records == files)
            ahead.append(files - len(came))

    folder = tmp_path / "clicks"
    run = started(counting(folder, ms.function(slow)), retention=ms.Duration(1))
    for n in range(1, files + 1):
        write_lines(folder / f"{n}.jsonl", [click("anna", n)])
        wait_until(lambda n=n: run.status().injectors["clicks"].injected == n and bool(came))  # type: ignore[misc]
    run.drain()
    assert ahead == [files - 1], "the mill had done all while the first record was being delivered"
    assert [value for _, value in came] == list(range(1, files + 1))
    assert [step for step, _ in came] == sorted(step for step, _ in came)


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
    tally = drained(topology, max_records_per_epoch=10 * count).status().computations["sum"].tally
    assert [record.value for record in kept.records] == [count]
    assert (tally.received, tally.applied) == (count, count)
    commits = Commits(LocalDisk(at / "journal")).span(1, ms.status_of(at).epoch)
    received = [sum(summary.tallies["sum"].received for summary in commit.summaries if "sum" in summary.tallies) for commit in commits]
    assert [each for each in received if each] == [count], "one epoch"
    first, last = (record.value for record in memory.records)
    assert last - first < 100


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
