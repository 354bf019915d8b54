"""Files that are torn, corrupted, gone or from another copy: refused by name, never a wrong answer, and mended by restoring them.

Every test begins with the same folder: three epochs done, a fourth file of clicks waiting. It does one damage after
another to it. Each must be refused, and nothing delivered. What was damaged is then put back, and in the end the run
must go on as if nothing had been: what was refused has changed nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import millstream as ms
from millstream.log.staged import read_records
from millstream.log.status import status_of
from tests.spark.clicks import Click, Count, click, write_lines
from tests.spark.damages import cut, damaged, emptied, garbled, removed, replaced_by, torn, turned, turned_digit, turned_page, unchecked
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

USERS = ("anna", "bert", "carl")
DONE, ALL = 3, 4  # files of clicks that were taken in before the damage, and files that there are


@dataclass(frozen=True)
class Place:
    """A folder of a run, what goes in and what comes out, and copies of it from two moments."""

    base: Path
    spark: SparkSession

    @property
    def at(self) -> Path:
        return self.base / "mill"

    @property
    def out(self) -> Path:
        return self.base / "out"

    @property
    def copy(self) -> Path:
        return self.base / "copy"

    @property
    def earlier(self) -> Path:
        return self.base / "earlier"

    def click(self, number: int) -> None:
        write_lines(self.base / "clicks" / f"{number}.jsonl", [click(user, number) for user in USERS])

    def topology(self, *deliveries: str) -> ms.Topology:
        topology, count = ms.Topology("damage"), Count()
        usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
        topology.compute("count", count).reads(topology.inject("clicks", ms.files(f"{self.base}/clicks/*.jsonl", Click), **usual))
        for name in ("out", *deliveries):
            topology.deliver(name, count.counts, ms.delta(str(self.base / name)))
        return topology

    def drain(self, *deliveries: str) -> None:
        ms.start(self.topology(*deliveries), at=self.at, spark=self.spark, options=ms.Options(partitions=2, buckets=4)).drain()

    def delivered(self, name: str = "out") -> list[tuple[str, int]]:
        rows = DeltaTable(str(self.base / name)).to_pyarrow_table().to_pylist()
        return sorted((row["key"], row["value"]) for row in rows)

    def keep(self) -> None:
        """This is the moment to come back to; after it, one more file of clicks."""
        for name in ("mill", "out"):
            shutil.copytree(self.base / name, self.copy / name)
        self.click(ALL)

    def restore(self) -> None:
        for name in ("mill", "out"):
            shutil.rmtree(self.base / name)
            shutil.copytree(self.copy / name, self.base / name)


def counted(files: int) -> list[tuple[str, int]]:
    """The model: a user has one click in each file, and they are numbered."""
    return sorted((user, number) for user in USERS for number in range(1, files + 1))


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("damage"), spark)
    for number in range(1, DONE):
        place.click(number)
        place.drain()
    shutil.copytree(place.at, place.earlier)
    place.click(DONE)
    place.drain()
    assert place.delivered() == counted(DONE)
    place.keep()
    return place


@pytest.fixture
def place(made: Place) -> Place:
    made.restore()
    return made


def refusal(place: Place, *deliveries: str) -> str:
    """How a start is refused: in words of ours, and with nothing delivered."""
    with pytest.raises((ms.LogError, ms.RunFailed)) as refused:
        place.drain(*deliveries)
    told = str(refused.value)
    assert "\n" not in told
    assert not any(word in told for word in ("org.apache", "com.fasterxml", "Py4J", "Kernel error")), told
    assert place.delivered() == counted(DONE)
    return told


def refused_or_right(place: Place) -> str | None:
    """How a start was refused, with nothing delivered; None if it went on, and rightly."""
    told = None
    try:
        place.drain()
    except (ms.LogError, ms.RunFailed) as error:
        told = str(error)
    assert place.delivered() == counted(ALL if told is None else DONE), told
    return told


def goes_on(place: Place) -> None:
    place.drain()
    assert place.delivered() == counted(ALL)


def newest(folder: Path, pattern: str = "[0-9]*") -> Path:
    """The file with the highest number at the beginning of its name."""
    return max(folder.glob(pattern), key=lambda path: int(path.name.split("_")[0]))


# The tests.


@pytest.mark.parametrize("query", ["mill", *(pytest.param(query, marks=pytest.mark.soak) for query in ("inject clicks", "deliver out"))])
def test_a_damaged_checkpoint_is_refused_by_name(query: str, place: Place) -> None:
    checkpoint = place.at / "checkpoints" / query
    offset, commit, metadata = newest(checkpoint / "offsets"), newest(checkpoint / "commits"), checkpoint / "metadata"
    damages: list[tuple[Path, Callable[[Path], None]]] = [
        (offset, unchecked(torn)),
        (offset, turned),
        (offset, unchecked(removed)),
        (commit, torn),
        (commit, turned),
        (metadata, unchecked(torn)),
        (metadata, unchecked(removed)),
        (checkpoint / "offsets", removed),
        (checkpoint / "commits", removed),
        (checkpoint, removed),
        (checkpoint, replaced_by(place.earlier / "checkpoints" / query)),
    ]
    for path, damage in damages:
        with damaged(path, damage):
            told = refusal(place)
            assert str(path) in told, damage
            assert "restore" in told
    goes_on(place)


def test_a_damaged_list_of_files_read_is_refused_by_name(place: Place) -> None:
    """Without it, Spark's source would read all files again."""
    read = place.at / "checkpoints" / "inject clicks" / "sources" / "0"
    for path, damage, named in [
        (newest(read), unchecked(torn), newest(read)),
        (newest(read), unchecked(removed), read),
        (read / "0", unchecked(removed), read / "0"),
        (read.parent, removed, read),
    ]:
        with damaged(path, damage):
            assert str(named) in refusal(place), damage
    goes_on(place)


def test_damaged_state_is_refused_by_name(place: Place) -> None:
    state = place.at / "checkpoints" / "mill" / "state"
    change = newest(state / "0" / "0", "[0-9]*.changelog")
    for path, damage, named in [
        (change, torn, change),
        (change, unchecked(turned), state),
        (change, unchecked(removed), change),
        (state, removed, state),
    ]:
        with damaged(path, damage):
            assert str(named) in refusal(place), damage
    goes_on(place)


@pytest.mark.soak
def test_a_damaged_snapshot_of_state_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """Spark makes one of several changelogs, once a minute. What it can do without, it does without."""
    place = Place(tmp_path, spark)
    state = place.at / "checkpoints" / "mill" / "state" / "0"
    spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1")
    try:
        place.click(1)
        with ms.start(place.topology(), at=place.at, spark=spark, options=ms.Options(partitions=2, buckets=4)) as run:
            for number in range(1, DONE + 1):
                wait_until(lambda files=number: status_of(place.at).injected == files * len(USERS))
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
        told = refused_or_right(place)
        named = [state.parent] if "removed" in damage.__name__ else files
        assert told is None or any(str(file) in told for file in named), (damage.__name__, told)
        refused += [(files[0].suffix, damage.__name__)] if told is not None else []
    assert {(snapshots[0].suffix, damage.__name__) for _, damage in damages} <= set(refused)
    place.restore()
    goes_on(place)


def test_a_damaged_log_is_refused_by_name(place: Place) -> None:
    """Commits and tables; also a commit that nobody would miss but those who have read it."""
    for table in ("mill", "injector clicks"):
        path = place.at / "log" / table
        commits = sorted(path.glob("_delta_log/*.json"))
        last = max(commit for commit in commits if len(commit.read_bytes().splitlines()) > 3)  # one that brought records
        damages: list[tuple[Path, Callable[[Path], None], Path]] = [
            (commits[-1], torn, commits[-1]),
            (commits[-1], emptied, commits[-1]),
            (last, cut, last),
            (last, turned_digit, last),
            (commits[2], removed, commits[2]),
            (commits[-1], removed, path),
            (path, removed, path),
        ]
        for damaged_path, damage, named in damages:
            with damaged(damaged_path, damage):
                assert str(named) in refusal(place), damage
    goes_on(place)


def test_damaged_checkpoints_of_delta_are_refused_by_name(place: Place) -> None:
    DeltaTable(str(place.at / "log" / "mill")).create_checkpoint()
    log = place.at / "log" / "mill" / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    for path, damage in [(checkpoint, torn), (checkpoint, garbled)]:
        with damaged(path, damage):
            assert str(path) in refusal(place), damage
    torn(log / "_last_checkpoint")  # only a hint
    goes_on(place)


def test_damaged_small_files_are_refused_by_name(place: Place) -> None:
    identity = place.at / "checkpoints" / "deliver out" / "identity.json"
    for path, damage in [
        (place.at / "topology.json", torn),
        (place.at / "topology.json", emptied),
        (place.at / "topology.json", removed),
        (place.at / "topology.json", turned_digit),
        (place.at / "consumers" / "mill.json", torn),
        (place.at / "consumers" / "mill.json", turned_digit),
        (place.at / "consumers" / "deliver out.json", emptied),
        (identity, torn),
        (identity, removed),
    ]:
        with damaged(path, damage):
            assert str(path) in refusal(place), damage
    goes_on(place)


def test_what_a_run_says_of_itself_is_worthless_after_it(place: Place) -> None:
    """So a torn one stops nobody; and where a reader has come is written again."""
    for path in (place.at / "run" / "owner.json", place.at / "run" / "mill.json"):
        torn(path)
    for path in (place.at / "consumers").glob("*.json"):
        path.unlink()
    assert ms.status_of(place.at).epoch == DONE
    goes_on(place)


def test_an_epoch_that_is_not_published_yet_needs_its_manifest(place: Place) -> None:
    """Nobody has read the newest epoch; it is taken back, as if the run had died before it was published."""
    table = place.at / "log" / "mill" / "_delta_log"
    last = max(commit for commit in table.glob("*.json") if '"add"' in commit.read_text())
    for commit in table.glob("*.json"):
        if commit >= last:
            commit.unlink()
    for name in ("checkpoints", "consumers"):  # a delivery that has not begun
        for path in (place.at / name).glob("deliver out*"):
            removed(path)
    shutil.rmtree(place.out)
    manifest = max((place.at / "manifests").iterdir())
    kept = manifest.read_bytes()
    for damage in (torn, emptied, turned_digit, removed):
        damage(manifest)
        with pytest.raises(ms.LogError, match=r"manifests/.* is damaged|lacks the manifest of epoch 3"):
            place.drain()
        manifest.write_bytes(kept)
    goes_on(place)


def test_a_damaged_file_of_records_is_refused_by_name_when_it_is_read(place: Place) -> None:
    """Read by a new delivery, which begins with what the log holds."""
    records = min((place.at / "log" / "mill").glob("0*/*.parquet"))
    assert read_records(records).num_rows
    for damage in (torn, emptied, turned_page, removed):
        with damaged(records, damage), pytest.raises(ms.LogError, match=rf"{records} is (damaged|missing)"):
            read_records(records)
    for damage in (turned_page, removed):
        with damaged(records, damage), pytest.raises(ms.RunFailed, match=rf"{records} is (damaged|missing)"):
            place.drain("again")
    place.drain("again")
    assert place.delivered() == place.delivered("again") == counted(ALL)
