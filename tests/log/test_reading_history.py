"""What is read of log and journal together is what a plain list would hold."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

import millstream as ms
from millstream.core.parts import Columns, Part
from millstream.errors import LogError
from millstream.journal.disk import Disk, LocalDisk
from millstream.log import reading_history
from millstream.log import upkeep as upkeep_module
from millstream.log.reading_history import LogPiece, history, lines, python_records, records
from millstream.log.rows import Rows
from millstream.log.upkeep import Upkeep
from millstream.record import Record
from millstream.timestamp import END_OF_TIME, Timestamp
from tests.journal.simdisk import SimDisk
from tests.log.made import Table, local

Plain = tuple[int, int, int, int, str]  # epoch, timestamp, major, minor, value
Parts = list[tuple[int, Columns, Part]]


def random_parts(rng: random.Random, epochs: int) -> Parts:
    """An injected stream: an epoch may take several batches, and a batch comes in several parts."""
    found: Parts = []
    major = 0
    for epoch in range(1, epochs + 1):
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            major += 1
            minors = sorted(rng.sample(range(40), rng.randint(1, 12)))
            for lane in range(2):
                mine = [minor for minor in minors if minor % 2 == lane]
                times = [Timestamp(rng.randint(0, 50)) for _ in mine]
                columns = Columns([f"k{m % 3}" for m in mine], [b"%d" % rng.randint(0, 9) for _ in mine], times, mine)
                found.append((epoch, columns, Part(0, 0, 0, lane, "s", "", "in", major, len(mine), min(times, default=END_OF_TIME))))
    return found


def plain(parts: Parts) -> list[Plain]:
    return sorted(
        (epoch, int(at), part.major, minor, value.decode())
        for epoch, columns, part in parts
        for at, minor, value in zip(columns.timestamps, columns.minors, columns.values, strict=True)
    )


def read(disk: Disk, tail: Parts, last: int | None = None) -> list[Plain]:
    table = records(disk, "s", last=last, tail=tail)
    columns = [table[name].to_pylist() for name in ("epoch", "timestamp", "major", "minor", "value")]
    return [(e, round(at.timestamp() * 1e6), major, minor, value) for e, at, major, minor, value in zip(*columns, strict=True)]


def write(table: Table, parts: Parts, rng: random.Random) -> int:
    """Some of them, in entries of some epochs each; up to which epoch."""
    upto = 0
    while upto < rng.randint(0, 30):
        to = upto + rng.randint(1, 9)
        rows = Rows()
        for epoch, columns, part in parts:
            if upto < epoch <= to:
                rows.add(epoch, part.origin, part.major, columns)
        rows_of = rows.pieces() if len(rows) else []
        at = table.history.commit([table.history.stage("s", piece) for piece in rows_of], after=table.at, to=to)
        assert at is not None
        table.at, upto = at, to
    return upto


@pytest.mark.parametrize("seed", range(20))
def test_log_and_tail_are_what_a_plain_list_is(seed: int) -> None:
    rng = random.Random(seed)
    parts = random_parts(rng, 40)
    table = Table(SimDisk())
    upto = write(table, parts, rng)
    tail = [each for each in parts if each[0] > rng.randint(0, upto)]  # it may begin before the log ends
    want = plain(parts)
    assert read(table.history.disk, tail) == want
    for last in (0, 1, 5, len(want) // 2, len(want), len(want) + 5):
        assert read(table.history.disk, tail, last) == want[max(0, len(want) - last) :]


@pytest.mark.parametrize("seed", range(10))
def test_so_they_are_after_merges_and_epoch_by_epoch(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "FILES_PER_MERGE", 3)
    monkeypatch.setattr(upkeep_module, "ROWS_PER_FILE", 20)
    monkeypatch.setattr("millstream.log.rows.ROWS_PER_FILE", 7)
    rng = random.Random(seed)
    parts = random_parts(rng, 40)
    table = local(tmp_path)
    upto = write(table, parts, rng)
    keeper = Upkeep(table.history, tmp_path, retention=None)
    for _ in range(rng.randint(0, 9)):
        keeper.run(table.clock.now)
    tail = [each for each in parts if each[0] > upto]
    want = plain(parts)
    assert read(table.history.disk, tail, 9) == want[-9:]
    after, end = rng.randint(0, 10), rng.randint(10, 40)
    found = list(history(table.history.disk, "s", after, end))
    epochs = [epoch for epoch, _ in found]
    assert epochs == sorted(set(epochs))
    assert flat(found) == [row for row in want if after < row[0] <= min(end, upto)]


def flat(found: list[tuple[int, list[LogPiece]]]) -> list[Plain]:
    return sorted(
        (epoch, int(at), piece.major, minor, value.decode())
        for epoch, pieces in found
        for piece in pieces
        for at, minor, value in zip(piece.columns.timestamps, piece.columns.minors, piece.columns.values, strict=True)
    )


def test_only_as_many_files_are_read_as_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = local(tmp_path)
    table.grow(*range(1, 51))
    opened: list[str] = []
    real = reading_history.read_file
    monkeypatch.setattr(reading_history, "read_file", lambda disk, path: opened.append(path) or real(disk, path))
    assert [row[0] for row in read(table.history.disk, [], 5)] == [48, 49, 49, 50, 50]
    assert len(opened) == 3
    opened.clear()
    reading = history(table.history.disk, "s", 20, 50)
    assert next(reading)[0] == 21
    assert len(opened) == 1


def test_a_record_is_a_line_and_a_record_of_python() -> None:
    disk = SimDisk()
    table, rows = Table(disk), Rows()
    rows.add(3, "in", 7, Columns(["anna"], ['{"page": "/ä"}'.encode()], [Timestamp(1_500_000)], [9]))
    table.history.commit([table.history.stage("visits", rows)], after=table.at, to=3)
    found = records(disk, "visits")
    (line,) = lines(found)
    assert json.loads(line) == {"key": "anna", "value": {"page": "/ä"}, "timestamp": "1970-01-01T00:00:01.500000Z", "id": "in/7/9"}
    assert list(python_records(found)) == [Record("anna", {"page": "/ä"}, Timestamp(1_500_000))]

    class Visit(msgspec.Struct):
        page: str

    assert next(python_records(found, msgspec.json.Decoder(Visit).decode)).value == Visit("/ä")


def test_a_value_of_another_type_is_named_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    table, rows = Table(disk), Rows()
    rows.add(3, "in", 7, Columns(["a", "b"], [b'"x"', b"5"], [Timestamp(1), Timestamp(2)], [8, 9]))
    table.history.commit([table.history.stage("visits", rows)], after=table.at, to=3)
    monkeypatch.setattr("millstream.log.reading._table", lambda at, stream, last: records(disk, stream, last=last))
    assert [record.value for record in ms.read("mill", "visits")] == ["x", 5]
    with pytest.raises(ms.MillstreamError) as caught:
        ms.read("mill", "visits", value=str)
    assert str(caught.value) == (
        "read(value=str): record in/7/9 of stream 'visits' is of another type: Expected `str`, got `int`; "
        "give the type that the stream carries, or leave value= out"
    )


def test_a_stream_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    table = local(tmp_path)
    table.grow(1)
    with pytest.raises(LogError, match="no record of a stream 'x'; streams with records: s"):
        records(LocalDisk(tmp_path), "x")
    with pytest.raises(LogError, match="streams with records: none yet"):
        records(LocalDisk(tmp_path / "nothing"), "x")


def test_what_is_not_in_the_log_yet_is_read_from_the_tail_alone(tmp_path: Path) -> None:
    parts = random_parts(random.Random(1), 5)
    assert read(LocalDisk(tmp_path), parts) == plain(parts)


def test_a_lost_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    table = local(tmp_path)
    table.grow(1, 2)
    for file in tmp_path.glob("*-*/*02-*.parquet"):
        file.unlink()
    with pytest.raises(LogError, match="is missing, and the log names it"):
        list(history(table.history.disk, "s", 0, 2))
