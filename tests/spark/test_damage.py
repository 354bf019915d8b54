"""Files that are torn, corrupted, gone or from another copy: refused by name, never a wrong answer, and put right by restoring them.

Every test begins with the same folder: files of clicks taken in by several runs, of which the last broke off, and one more
waiting. It does one damage after another to it. Each must be refused, and nothing delivered. What was damaged is then put
back, and in the end the run must go on as if nothing had been: what was refused has changed nothing.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import millstream as ms
from millstream.journal.commits import Commits, Snapshot
from millstream.journal.disk import LocalDisk
from millstream.journal.opening import open_ledger
from millstream.log.snapshot import LogSnapshot
from tests.spark.clicks import Count, click, framed, write_lines
from tests.spark.damages import (
    Damage,
    cut_off,
    damaged,
    emptied,
    removed,
    replaced_by,
    replaced_by_file,
    torn,
    turned,
    turned_digit,
    turned_first_digit,
    turned_page,
    turned_rows,
    unchecked,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

USERS = ("anna", "bert", "carl")
DONE, ALL = 4, 5  # files of clicks that were taken in before the damage, and files that there are


@dataclass(frozen=True)
class Place:
    """A folder of a run, what goes in and what comes out, and copies of it from two moments."""

    base: Path
    spark: SparkSession

    @property
    def at(self) -> Path:
        return self.base / "mill"

    @property
    def copy(self) -> Path:
        return self.base / "copy"

    def earlier(self, run: int) -> Path:
        """As the folder was after this run."""
        return self.base / f"after {run}"

    def click(self, number: int) -> None:
        write_lines(self.base / "clicks" / f"{number}.jsonl", [click(user, number) for user in USERS])

    def topology(self, *deliveries: str, breaks: bool = False) -> ms.Topology:
        topology, count = ms.Topology("damage"), Count()
        usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
        topology.compute("count", count).reads(topology.inject("clicks", framed(self.base / "clicks"), **usual))
        for name in ("out", *deliveries):
            topology.deliver(name, count.counts, ms.delta(str(self.base / name), every=50 * ms.MILLISECOND))
        topology.deliver("lines", count.counts, ms.to_files(str(self.base / "lines"), every=50 * ms.MILLISECOND))
        if breaks:
            topology.deliver("breaks", count.counts, ms.function(self._break))
        return topology

    def _break(self, step: int, records: list[object]) -> None:
        wait_until(lambda: self.delivered() == counted(DONE) and len(self.lines()) == DONE * len(USERS))
        raise RuntimeError("the run breaks off")

    def start(self, *deliveries: str, breaks: bool = False, **options: ms.Duration) -> ms.Run:
        topology = self.topology(*deliveries, breaks=breaks)
        return ms.start(topology, at=self.at, spark=self.spark, options=ms.Options(lanes=1, buckets=4, **options))  # type: ignore[arg-type]

    def delivered(self, name: str = "out") -> list[tuple[str, int]]:
        rows = DeltaTable(str(self.base / name)).to_pyarrow_table().to_pylist()
        return sorted((row["key"], row["value"]) for row in rows)

    def exists(self, name: str) -> bool:
        return bool(self.delivered(name)) if (self.base / name / "_delta_log").exists() else False

    def lines(self) -> list[str]:
        return [line for file in (self.base / "lines").glob("*.jsonl") for line in file.read_text().splitlines()]

    def keep(self) -> None:
        """This is the moment to come back to; after it, one more file of clicks."""
        for name in ("mill", "out", "lines"):
            shutil.copytree(self.base / name, self.copy / name)
        self.click(ALL)

    def restore(self) -> None:
        for name in ("mill", "out", "lines"):
            shutil.rmtree(self.base / name, ignore_errors=True)
            shutil.copytree(self.copy / name, self.base / name)


def counted(files: int) -> list[tuple[str, int]]:
    """The model: a user has one click in each file, and they are numbered."""
    return sorted((user, number) for user in USERS for number in range(1, files + 1))


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("damage"), spark)
    for number in range(1, DONE):
        place.click(number)
        place.start().drain()
        shutil.copytree(place.at, place.earlier(number))
    commits = Commits(LocalDisk(place.at / "journal"))
    commits.compact(Snapshot.of(open_ledger(commits)))  # so that there is a snapshot, and a merged file
    place.click(DONE)
    with pytest.raises(ms.RunFailed, match="the run breaks off"):
        place.start(breaks=True).wait(100)
    assert place.delivered() == counted(DONE)
    place.keep()
    return place


@pytest.fixture
def place(made: Place) -> Place:
    made.restore()
    return made


def refusal(place: Place, *deliveries: str, about: object = None) -> str:
    """How a start is refused: in words of ours, and with nothing delivered."""
    try:
        place.start(*deliveries).drain()
    except (ms.LogError, ms.RunFailed) as refused:
        message = str(refused)
    else:
        pytest.fail(f"not refused: {about}")
    assert "\n" not in message, message
    assert not any(word in message for word in ("org.apache", "com.fasterxml", "Py4J", "Kernel error")), message
    assert place.delivered() == counted(DONE)
    return message


def refused_by_name(place: Place, *damages: tuple[Path, Damage, Path | str]) -> None:
    """Each of them alone; the message names the third, and says to restore it. Then all is back, and the run goes on."""
    for path, damage, named in damages:
        with damaged(path, damage):
            message = refusal(place, about=(path, damage))
            assert str(named) in message, (path, damage, message)
            assert "restore" in message, (path, damage, message)
    goes_on(place)


def refused_or_right(place: Place) -> str | None:
    """How a start was refused, with nothing delivered; None if it went on, and rightly."""
    message = None
    try:
        place.start().drain()
    except (ms.LogError, ms.RunFailed) as error:
        message = str(error)
    assert place.delivered() == counted(ALL if message is None else DONE), message
    return message


def goes_on(place: Place) -> None:
    place.start().drain()
    assert place.delivered() == counted(ALL)
    assert len(place.lines()) == len(set(place.lines())) == len(counted(ALL))


def newest(folder: Path, pattern: str = "[0-9]*") -> Path:
    """The file with the highest number at the beginning of its name."""
    return max(folder.glob(pattern), key=lambda path: int(path.name.split("_")[0].split(".")[0]))


# The journal.


def test_a_damaged_journal_is_refused_by_name_before_anything_is_changed(place: Place) -> None:
    journal = place.at / "journal"
    snapshot, last, commits = newest(journal / "snapshots"), newest(journal / "commits"), journal / "commits"
    after = commits / f"{int(snapshot.name) + 1:012d}"
    files = sorted(path for path in journal.rglob("*") if path.is_file())
    refused_by_name(
        place,
        (last, torn, last),
        (last, turned, last),
        (last, emptied, last),
        (after, removed, after),
        (last, replaced_by_file(after), last),
        (snapshot, torn, snapshot),
        (snapshot, turned, snapshot),
        (snapshot, removed, journal),
        (journal, removed, journal),
    )
    assert set(files) - {path for path in journal.rglob("*") if path.is_file()} <= {path for path in files if "segments" in path.parts}


def test_segments_that_are_needed_are_checked_at_the_start_and_what_is_in_them_when_it_is_read(place: Place) -> None:
    """The last run broke off. Its lane is given the checkpoint with which it began, so it redoes what it did then."""
    replaced_by(place.earlier(DONE - 1) / "checkpoints" / "lane 0")(place.at / "checkpoints" / "lane 0")
    ledger = open_ledger(Commits(LocalDisk(place.at / "journal")))
    segment = next(name for name, segment in ledger.segments.items() if segment.rows == ledger.touched[0])
    needed = place.at / "journal" / "segments" / segment
    (merged,) = (place.at / "journal" / "merged").iterdir()
    refused_by_name(
        place,
        (needed, torn, needed),
        (needed, removed, needed),
        (needed, turned_rows(ledger.touched[0]), needed),
        (merged, torn, merged),
        (merged, removed, merged.parent),
    )


# Checkpoints.


def test_a_damaged_checkpoint_of_a_lane_is_refused_by_name(place: Place) -> None:
    checkpoint = place.at / "checkpoints" / "lane 0"
    offset, commit, metadata = newest(checkpoint / "offsets"), newest(checkpoint / "commits"), checkpoint / "metadata"
    state = checkpoint / "state"
    (change,) = (file for file in (state / "0" / "0").glob("*.changelog") if file.stem.partition("_")[2] in commit.read_text())
    refused_by_name(
        place,
        (offset, unchecked(torn), offset),
        (commit, turned, commit),
        (metadata, unchecked(removed), metadata),
        (checkpoint / "commits", removed, checkpoint / "commits"),
        (checkpoint, removed, checkpoint),
        (change, torn, change),
        (change, unchecked(removed), change),
        (state, removed, state),
    )


def test_a_lane_cannot_fall_back_two_checkpoints(place: Place) -> None:
    """One is what Spark may do by itself, and the journal has what it lacks then. Of two, it has not."""
    checkpoint = place.at / "checkpoints" / "lane 0"
    with damaged(checkpoint, replaced_by(place.earlier(1) / "checkpoints" / "lane 0")):
        message = refusal(place)
        assert "the checkpoint of lane 0 is of epoch" in message
        assert "restore both from one copy" in message
    goes_on(place)


def test_a_damaged_checkpoint_of_an_injector_is_refused_by_name(place: Place) -> None:
    checkpoint = place.at / "checkpoints" / "inject clicks"
    offset = newest(checkpoint / "offsets")
    refused_by_name(
        place,
        (offset, unchecked(torn), offset),
        (offset, unchecked(removed), offset),
        (checkpoint / "metadata", unchecked(removed), checkpoint / "metadata"),
        (checkpoint, removed, checkpoint),
        (checkpoint, replaced_by(place.earlier(1) / "checkpoints" / "inject clicks"), checkpoint),
    )


def test_a_note_that_was_not_taken_must_be_there_and_whole(place: Place) -> None:
    """As if the last run had broken off between a batch of its injector and the commit that takes it."""
    earlier = place.earlier(DONE - 1)
    for part in ("journal", "log", "deliveries", "checkpoints/lane 0"):
        replaced_by(earlier / part)(place.at / part)
    for name in ("out", "lines"):
        shutil.rmtree(place.base / name)
    message = refusal_before(place)
    assert "and the note of batch" in message
    assert "restore journal and checkpoint from one copy" in message


@pytest.mark.soak
def test_a_damaged_snapshot_of_state_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """Spark makes one of several changelogs, once a minute. What it can do without, it does without."""
    place = Place(tmp_path, spark)
    state = place.at / "checkpoints" / "lane 0" / "state" / "0"
    spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1")
    try:
        place.click(1)
        with place.start(checkpoint_every=ms.SECOND) as run:
            for number in range(1, DONE + 1):
                wait_until(lambda files=number: ms.status_of(place.at).injected == files * len(USERS))
                if number < DONE:
                    place.click(number + 1)
            wait_until(lambda: any(state.glob("*/SSTs/*.sst")), 180)
            run.drain()
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.minDeltasForSnapshot")
    assert place.delivered() == counted(DONE)
    place.keep()
    snapshots, data = sorted(state.glob("*/*.zip")), sorted(state.glob("*/SSTs/*.sst"))
    damages = [(snapshots, damage) for damage in (torn, unchecked(torn), turned, unchecked(turned), emptied, unchecked(removed))]
    refused: list[tuple[str, str]] = []
    for files, damage in (*damages, (data, torn), (data, turned), (data, unchecked(removed))):
        place.restore()
        for file in files:
            damage(file)
        message = refused_or_right(place)
        named = [state.parent] if "removed" in damage.__name__ else files
        assert message is None or any(str(file) in message for file in named), (damage.__name__, message)
        refused += [(files[0].suffix, damage.__name__)] if message is not None else []
    assert len([suffix for suffix, _ in refused if suffix == ".zip"]) >= len(damages) - 1  # one may be held in Spark's memory still
    place.restore()
    goes_on(place)


# Deliveries and the log.


def test_the_position_of_a_delivery_is_refused_by_name_if_it_does_not_fit(place: Place) -> None:
    position = newest(place.at / "deliveries" / "lines")
    older = place.earlier(1) / "deliveries" / "lines"
    refused_by_name(
        place,
        (position, torn, position),
        (position, emptied, position),
        (position, turned_first_digit, position),
        (position.parent, removed, position.parent),
        (position.parent, replaced_by(older), position.parent),
    )


def test_a_damaged_log_is_refused_by_name(place: Place) -> None:
    """A last entry that is gone, and of which no commit knows, is written again: the journal still has what was in it."""
    log = place.at / "log"
    entries = sorted((log / "_delta_log").glob("*.json"))
    refused_by_name(
        place,
        (entries[-1], torn, entries[-1]),
        (entries[-1], turned_digit, entries[-1]),
        (entries[0].parent, cut_off, "the log"),
        (entries[2], removed, entries[2]),
        (log, removed, "the log"),
    )


def test_a_damaged_file_of_the_log_is_refused_by_name_when_it_is_read(place: Place) -> None:
    """By `ms.read`, and by a new delivery, which begins with what the log holds."""
    records = place.at / "log" / LogSnapshot(LocalDisk(place.at / "log")).of_stream("count.counts")[0].path
    for damage in (torn, turned_page, removed):
        with damaged(records, damage):
            with pytest.raises(ms.LogError, match=rf"{records} is (damaged|missing)"):
                ms.read(place.at, "count.counts")
            with pytest.raises(ms.RunFailed, match=rf"{records} is (damaged|missing)"):  # the others go on until then
                place.start("again").drain()
            assert not place.exists("again")
    place.start("again").drain()
    assert place.delivered() == place.delivered("again") == counted(ALL)


# The rest of the folder.


@pytest.mark.parametrize("run", [1, DONE - 1])
def test_a_folder_that_was_restored_in_part_is_refused_with_the_part_named_or_right(place: Place, run: int) -> None:
    """Each part from an earlier moment alone, and each from a later moment than all others."""
    parts = ("journal", "checkpoints/lane 0", "checkpoints/inject clicks", "deliveries", "log")
    refused = 0
    for part in parts:
        for older in ([part], [other for other in parts if other != part]):
            place.restore()
            for each in older:
                replaced_by(place.earlier(run) / each)(place.at / each)
            if (told := refused_or_right(place)) is not None:
                refused += 1
                assert "restore" in told, (older, told)
                assert any(name.rpartition("/")[2] in told for name in (*parts, "out", "lines")), (older, told)
    assert refused >= len(parts)
    place.restore()
    goes_on(place)


def test_what_is_fixed_for_a_folder_is_refused_by_name_if_it_is_damaged(place: Place) -> None:
    path = place.at / "topology.json"
    refused_by_name(place, (path, torn, path), (path, emptied, path), (path, turned_digit, path), (path, removed, path))


def test_what_a_run_says_of_itself_is_worthless_after_it(place: Place) -> None:
    torn(place.at / "run" / "owner.json")
    (place.at / "lock").unlink()
    assert ms.status_of(place.at).injected == DONE * len(USERS)
    goes_on(place)


def refusal_before(place: Place) -> str:
    with pytest.raises(ms.LogError) as refused:
        place.start()
    return str(refused.value)
