"""The sources that the driver reads, against the contract that holds for every source.

Those of other systems have theirs beside their other tests, and the worked example in test_own.py.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.testing import SourceContract


@dataclass(frozen=True)
class Number:
    n: int
    name: str


class TestValues(SourceContract):
    bounded = True

    @pytest.fixture(autouse=True)
    def at(self) -> None:
        self.values: list[Any] = []

    def make(self) -> ms.Source[int]:
        return ms.values(self.values, int)

    def add(self, values: Sequence[int], partition: int) -> None:
        self.values += values

    def add_bad(self, partition: int) -> None:
        self.values.append("text")


class TestValuesOfAFunction(TestValues):
    def make(self) -> ms.Source[int]:
        return ms.values(lambda taken: iter(self.values[taken:]), int)


class FilesContract(SourceContract):
    """A file appears whole, and is newer than those before it."""

    value_type: Any = Number
    backlog: int | None = 1_000
    max_bytes = 8 << 10
    name = "*.jsonl"
    files = itertools.count()

    @pytest.fixture(autouse=True)
    def at(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "numbers"
        self.folder.mkdir()

    def make(self) -> ms.Source[Any]:
        return ms.files(self.folder / self.name, self.value_type, bounded=self.bounded)

    def value(self, n: int) -> Any:
        return Number(n, f"the number {n}")

    def add(self, values: Sequence[Any], partition: int) -> None:
        """Two files, where there is more than one value."""
        middle = len(values) // 2
        for some in (values[:middle], values[middle:]):
            if some:
                self.write(self.content([asdict(value) for value in some]))

    def content(self, rows: list[dict[str, Any]]) -> bytes:
        return "".join(json.dumps(row) + "\n" for row in rows).encode()

    def write(self, content: bytes) -> None:
        number = next(self.files)
        path = self.folder / f".being-written-{number}"
        path.write_bytes(content)
        os.utime(path, (number, number))
        path.rename(self.folder / self.name.replace("*", str(number)))


class TestJsonLines(FilesContract):
    def add_bad(self, partition: int) -> None:
        self.write(b"{no json\n")


class TestBoundedJsonLines(TestJsonLines):
    bounded = True


class TestText(FilesContract):
    name = "*.txt"
    value_type = str

    def value(self, n: int) -> str:
        return f"line {n}"

    def add(self, values: Sequence[str], partition: int) -> None:
        self.write("".join(f"{value}\n" for value in values).encode())


class TestCompressedCsv(FilesContract):
    name = "*.csv.gz"
    backlog = 5_000  # more than fits into a piece, so a file is read from record to record

    def content(self, rows: list[dict[str, Any]]) -> bytes:
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        return gzip.compress(text.getvalue().encode())

    def add_bad(self, partition: int) -> None:
        self.write(gzip.compress(b"n,name\n1,2,3\n"))


class TestParquet(FilesContract):
    name = "*.parquet"

    def content(self, rows: list[dict[str, Any]]) -> bytes:
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), sink)
        return sink.getvalue()

    def add_bad(self, partition: int) -> None:
        self.write(self.content([{"n": "one", "name": "of another type"}]))


# Kafka: test_kafka_contract.py.
# PostgreSQL: a class beside test_postgres_changes.py, with value_type = ms.Change[...], read_as = lambda row: ms.Change(None, row),
# tells_lag, a slot of its own for each test, and cut_off by the proxy.
