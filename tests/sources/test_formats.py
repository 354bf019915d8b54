"""Every kind of file: what it holds, where each record stands, how it goes on after a restart, what is refused."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.core.graph import DEAD_LETTERS, Graph, compile_topology
from millstream.core.lanes import Lanes
from millstream.mill.messages import Range
from millstream.sources import formats
from millstream.sources.file_source import FileSource
from millstream.sources.pieces import PiecesReader, context_of
from millstream.sources.reading import FILE_BITS, PLACE_BITS, FilePiece, encode_pieces
from millstream.timestamp import Timestamp

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW = ms.to_timestamp(NOON + timedelta(hours=1))


@dataclass(frozen=True)
class Order:
    customer: str
    at: datetime
    total: float = 0.0
    note: str | None = None


class Keep(ms.Computation[None]):
    kept: ms.Output[str]

    def process_record(self, record: ms.Record[Any]) -> None: ...


def graph_of(path: Path | str, value: Any = Order, **told: Any) -> Graph:
    topology = ms.Topology("formats")
    source = ms.files(path, value, **{name: told.pop(name) for name in ("format", "separator", "columns") if name in told})
    usual = {"key": lambda o: o.customer, "timestamp": lambda o: o.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    topology.compute("keep", Keep()).reads(topology.inject("orders", source, **{**usual, **told}))
    return compile_topology(topology)


class Found(msgspec.Struct):
    keys: list[str]
    values: list[Any]
    timestamps: list[Timestamp]
    ids: list[tuple[int, int]]
    letters: list[Any]
    positions: dict[str, int | str]
    slices: int


def read(reader: PiecesReader, *pieces: FilePiece) -> Found:
    found = Found([], [], [], [], [], {}, 0)
    for some in reader.read(Range("orders", 0, 0, encode_pieces(list(pieces))), NOW):
        found.slices += bool(some.dealt)
        found.positions = some.positions or found.positions
        for dealt in some.dealt:
            values = [json.loads(value) for value in dealt.columns.values]
            if dealt.stream == DEAD_LETTERS:
                found.letters += values
                continue
            found.keys += dealt.columns.keys
            found.values += values
            found.timestamps += dealt.columns.timestamps
            found.ids += [(dealt.major, minor) for minor in dealt.columns.minors]
    return found


def reader_of(path: Path | str, value: Any = Order, *, at_once: int = 100, **told: Any) -> PiecesReader:
    return PiecesReader(graph_of(path, value, **told), Lanes(4, 1), at_once=at_once)


def whole(number: int, file: Path) -> FilePiece:
    return FilePiece(number, str(file), file.stat().st_size)


def test_csv(tmp_path: Path) -> None:
    """Quotes, empty cells, a byte order mark, lines of Windows, and newlines in cells; blank lines are none."""
    file = tmp_path / "orders.csv"
    rows = ["customer,at,total,note", 'anna,2026-01-01T12:00:00Z,1.5,"a ""b"",\nc"', "", "bert,2026-01-01T12:00:01Z,,"]
    file.write_text("\ufeff" + "\r\n".join(rows) + "\r\n")
    found = read(reader_of(file), whole(3, file))
    assert found.values == [
        {"customer": "anna", "at": "2026-01-01T12:00:00Z", "total": 1.5, "note": 'a "b",\nc'},
        {"customer": "bert", "at": "2026-01-01T12:00:01Z"},  # the rest is as the type says
    ]
    assert found.ids == [(0, 3 << PLACE_BITS), (0, 3 << PLACE_BITS | 1)]
    assert found.positions == {"file": 4, "byte": 0, "record": 0}


def test_csv_with_another_separator_and_other_names(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("Kunde;at;Summe\nanna;2026-01-01T12:00:00Z;1.5\n")
    names = {"customer": "Kunde", "total": "Summe"}
    assert read(reader_of(file, separator=";", columns=names), whole(0, file)).values[0]["total"] == 1.5
    with pytest.raises(ms.RecordError, match=r"injector 'orders', .*orders.csv: there is no column 'Kundin'; there are Kunde, at, Summe"):
        read(reader_of(file, separator=";", columns={"customer": "Kundin"}), whole(0, file))


def test_rows_that_are_no_records_are_set_aside_or_stop_the_run(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("customer,at,total\nanna,2026-01-01T12:00:00Z,1\nbert,2026-01-01T12:00:00Z\ncarl,2026-01-01T12:00:00Z,much\n")
    found = read(reader_of(file, errors=ms.Errors.DEAD_LETTER), whole(0, file))
    assert found.keys == ["anna"]
    assert [letter["value"] for letter in found.letters][:1] == ["bert,2026-01-01T12:00:00Z"]
    assert "it has 2 cells, and the header has 3" in found.letters[0]["reason"]
    assert "cannot be decoded: Expected `float`" in found.letters[1]["reason"]
    with pytest.raises(ms.RecordError, match=r"injector 'orders', value bert,.*: it has 2 cells, and the header has 3"):
        read(reader_of(file), whole(0, file))
    for content, message in (
        (b'customer,at\n"anna', r"line 2: this is not CSV"),
        (b"customer,customer\n1,2\n", r"two of its columns have the same name"),
        (b"customer,at\n\xff,x\n", r"it cannot be read: .*utf-8"),
    ):
        file.write_bytes(content)
        with pytest.raises(ms.RecordError, match=rf"injector 'orders', .*orders.csv.*{message}"):
            read(reader_of(file), whole(0, file))


def lines_of(count: int) -> str:
    return "".join(f'{{"customer":"c{n}","at":"2026-01-01T12:00:00Z"}}\n' + "\n" * (n % 2) for n in range(count))


def parquet_of(path: Path, count: int) -> None:
    table = pa.table({"customer": [f"c{n}" for n in range(count)], "at": [NOON] * count})
    pq.write_table(table, path, row_group_size=7)


def csv_of(path: Path, count: int) -> None:
    path.write_text("customer,at\n" + "".join(f"c{n},2026-01-01T12:00:00Z\n" for n in range(count)))


WHOLE: dict[str, Callable[[Path, int], object]] = {
    "orders.jsonl.gz": lambda path, count: path.write_bytes(gzip.compress(lines_of(count).encode())),
    "orders.json.bz2": lambda path, count: path.write_bytes(bz2.compress(lines_of(count).encode())),
    "orders.csv": csv_of,
    "orders.csv.gz": lambda path, count: path.write_bytes(
        gzip.compress(("customer,at\n" + "".join(f"c{n},2026-01-01T12:00:00Z\n" for n in range(count))).encode())
    ),
    "orders.parquet": parquet_of,
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_that_cannot_be_cut_is_read_some_records_at_a_time(tmp_path: Path, name: str, restarts: bool) -> None:
    """By the reader that has it open, or by another one that begins again and passes over what was read."""
    file = tmp_path / name
    WHOLE[name](file, 100)
    reader, offset, keys, ids, ranges = reader_of(file, at_once=10), 0, list[str](), list[tuple[int, int]](), 0
    while True:
        found = read(reader, FilePiece(5, str(file), 1, offset, at_most=20))
        keys, ids, ranges = keys + found.keys, ids + found.ids, ranges + 1
        assert found.slices <= 3, "memory is bounded whatever the file"
        if found.positions["file"] > 5:
            break
        offset = found.positions["record"]
        if restarts:
            reader = reader_of(file, at_once=10)
    assert keys == [f"c{n}" for n in range(100)]
    assert ids == sorted(set(ids))
    assert ranges > 4


def test_parquet_with_columns_for_key_and_time(tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    micros = [int(ms.to_timestamp(NOON)) + n for n in range(3)]
    table = {
        "customer": pa.array([1, 2, 3], pa.int32()),
        "at": pa.array([NOON] * 3, pa.timestamp("ns", "Europe/Berlin")),
        "day": pa.array([date(2026, 1, 1)] * 3),
        "micros": micros,
        "text": ["x"] * 3,
    }
    pq.write_table(pa.table(table), file)
    for column, want in (("at", [ms.to_timestamp(NOON)] * 3), ("micros", micros), ("day", [ms.to_timestamp(NOON.replace(hour=0))] * 3)):
        reader = reader_of(file, dict[str, Any], key="customer", timestamp=column)
        found = read(reader, whole(0, file))
        assert (found.keys, found.timestamps) == (["1", "2", "3"], want)
    for column, message in (
        ("text", r"the column 'text' is string; a time is a timestamp, or microseconds"),
        ("no", r"there is no column 'no'"),
    ):
        with pytest.raises(ms.RecordError, match=message):
            read(reader_of(file, dict[str, Any], key="customer", timestamp=column), whole(0, file))


def test_every_type_of_parquet_becomes_the_json_that_it_reads_as(tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    columns = {
        "customer": pa.array(["anna", None]),
        "at": pa.array([NOON, NOON + timedelta(microseconds=1)], pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2026, 1, 1)] * 2, pa.timestamp("ms")),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "tags": pa.array([["a", "b"], []]),
        "by": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        "inner": pa.array([{"n": 2**62 + 1, "when": NOON}, None], pa.struct([("n", pa.int64()), ("when", pa.timestamp("ns", "UTC"))])),
        "raw": pa.array([b"\x00\xff", None]),
    }
    pq.write_table(pa.table(columns), file)
    reader = reader_of(file, dict[str, Any], key=lambda row: row["customer"] or "nobody", timestamp="at")
    first, second = read(reader, whole(0, file)).values
    assert first == {
        "customer": "anna",
        "at": "2026-01-01T12:00:00Z",
        "local": "2026-01-01T00:00:00",
        "price": 1.5,
        "tags": ["a", "b"],
        "by": {"a": 1},
        "inner": {"n": 2**62 + 1, "when": "2026-01-01T12:00:00Z"},
        "raw": "AP8=",
    }
    assert second["price"] is None
    assert second["at"] == "2026-01-01T12:00:00.000001Z"


def test_what_a_library_cannot_read_is_told_as_a_matter_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    twice = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"customer": ["anna"], "at": [NOON], "by": twice}), file)
    with pytest.raises(ms.RecordError, match=r"injector 'orders', .*orders.parquet: it cannot be read: KeyError"):
        read(reader_of(file), whole(0, file))
    kinds = {
        "large": pa.array([[NOON]], pa.large_list(pa.timestamp("ns", "UTC"))),
        "map": pa.array([[("a", NOON)]], pa.map_(pa.string(), pa.timestamp("ns", "UTC"))),
        "long": pa.array([timedelta(seconds=1)], pa.duration("ns")),
    }
    pq.write_table(pa.table({"customer": ["anna"], "at": [NOON], **kinds}), file)
    (found,) = read(reader_of(file, dict[str, Any], key="customer", timestamp="at"), whole(0, file)).values
    assert (found["large"], found["map"]) == (["2026-01-01T12:00:00Z"], {"a": "2026-01-01T12:00:00Z"})


def test_a_file_that_cannot_be_cut_and_has_lost_records_is_refused(tmp_path: Path) -> None:
    for name, make in WHOLE.items():
        make(tmp_path / name, 10)
        with pytest.raises(ms.RecordError, match=r"it was cut: .*; put it back as it was, or an empty file in its place"):
            read(reader_of(tmp_path / name), FilePiece(0, str(tmp_path / name), 1, 50, at_most=20))
        (tmp_path / name).write_bytes(b"")
        assert read(reader_of(tmp_path / name), FilePiece(0, str(tmp_path / name), 99, 50)).positions["file"] == 1


def test_large_records_are_read_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "BYTES_AT_ONCE", 1_000)
    for name, make in WHOLE.items():
        make(tmp_path / name, 100)
        injection = graph_of(tmp_path / name).injections["orders"]
        assert isinstance(injection.source, FileSource)
        records = formats.read_records(injection.source, context_of(injection), str(tmp_path / name), 0, 65_536)
        sizes = [len(lines.texts) for lines in records]
        assert sum(sizes) == 100
        assert max(sizes) < 70, name


def test_a_line_that_is_not_text_is_refused_also_where_the_value_does_not_see_it(tmp_path: Path) -> None:
    """It would be in the log as it is, and no table could hold it."""
    good, bad = (
        b'{"customer":"anna","at":"2026-01-01T12:00:00Z","x":"\xc3\xa4"}\n',
        b'{"customer":"bert","at":"2026-01-01T12:00:00Z","x":"\xff"}\n',
    )
    deep = b'{"customer":"carl","at":"2026-01-01T12:00:00Z","x":' + b"[" * 5_000 + b"]" * 5_000 + b"}\n"
    for name, content in (("orders.jsonl", good + bad + deep), ("orders.jsonl.gz", gzip.compress(good + bad + deep))):
        file = tmp_path / name
        file.write_bytes(content)
        found = read(reader_of(file, errors=ms.Errors.DEAD_LETTER), whole(0, file))
        assert found.keys == ["anna"]
        assert [letter["reason"].partition(":")[0] for letter in found.letters] == ["it is not UTF-8", "it cannot be decoded"]


def test_the_old_times_of_spark_are_utc(tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    pq.write_table(pa.table({"customer": ["anna"], "at": pa.array([NOON], pa.timestamp("us"))}), file, use_deprecated_int96_timestamps=True)
    assert read(reader_of(file), whole(0, file)).timestamps == [ms.to_timestamp(NOON)]


def test_lines_of_text(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    file.write_bytes(b'\xef\xbb\xbf2026-01-01T12:00:00Z GET "/"\r\n2026-01-01T12:00:01Z GET /\xff\n')
    told = {"key": lambda line: "all", "timestamp": lambda line: datetime.fromisoformat(line.split()[0])}
    found = read(reader_of(file, str, **told), whole(0, file))
    assert found.values == ['2026-01-01T12:00:00Z GET "/"', "2026-01-01T12:00:01Z GET /\ufffd"]
    assert [minor for _, minor in found.ids] == [3, 33], "an id says where a line begins"


def test_an_id_is_a_place_also_of_the_millionth_file(tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(lines_of(3))
    number = (1 << FILE_BITS) * 3 + 7
    found = read(reader_of(file), whole(number - 8, file), whole(number, file))
    assert len(set(found.ids)) == 6
    assert found.ids == sorted(found.ids)
    assert found.ids[-1][0] == 3


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"separator": ";"}, r"files\(separator=';'\): only CSV has one, and these are JSON_LINES"),
        ({"separator": ";;", "format": ms.Format.CSV}, r"files\(separator=';;'\): give one character, such as ';'"),
        ({"columns": {"a": "b"}}, r"files\(columns=.*JSON_LINES has no columns"),
        ({"columns": {"a": 1}, "format": ms.Format.CSV}, r"files\(columns=.*give a dictionary from names to names"),
        ({"columns": {"a": "b", "c": "b"}, "format": ms.Format.CSV}, r"two fields cannot come from one column"),
        ({"format": ms.Format.TEXT}, r"a line of text is a str, not .*Order"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_given(told: dict[str, Any], message: str) -> None:
    with pytest.raises(ms.TopologyError, match=message):
        ms.files("orders/*.jsonl", Order, **told)
