"""A schema of its own for a test, and records to write there."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql
from psycopg.errors import UndefinedTable

import millstream as ms
from tests.services.postgres import PostgresServer

NOON = ms.Timestamp(1_700_000_000_000_000)


@dataclass
class Schema:
    """What a test does in it leaves the others alone."""

    server: PostgresServer
    name: str = field(default_factory=lambda: f"s{uuid.uuid4().hex}")

    def __post_init__(self) -> None:
        self.execute(f"CREATE SCHEMA {self.name}")

    def target(self, table: str, *, dsn: str | None = None, **options: Any) -> ms.Target:
        return ms.to_postgres(f"{self.name}.{table}", dsn=dsn or self.server.dsn, **options)

    def execute(self, statement: str) -> None:
        with self.server.connect() as connection:
            connection.execute(statement.encode())

    def rows(self, table: str, columns: str, *, where: str = "true", order: str = "1") -> list[tuple[Any, ...]]:
        """None of a table that is not there."""
        query = f"SELECT {columns} FROM {{}} WHERE {where} ORDER BY {order}"
        with self.server.connect() as connection:
            try:
                return connection.execute(sql.SQL(query).format(sql.Identifier(self.name, table))).fetchall()  # type: ignore[arg-type]
            except UndefinedTable:
                return []

    def has(self, table: str) -> bool:
        with self.server.connect() as connection:
            found = connection.execute("SELECT FROM pg_tables WHERE schemaname = %s AND tablename = %s", [self.name, table])
            return found.fetchone() is not None


def context(kind: Any, *, fence: int = 1, identity: str = "i") -> ms.DeliveryContext:
    return ms.DeliveryContext("out", "numbers", kind, identity, fence)


def row(key: str, value: Any, *, number: int = 0) -> ms.Record[Any]:
    return ms.Record(key, value, NOON, False, "numbers/1/", number)


def written(target: ms.Target, kind: Any, *steps: Sequence[ms.Record[Any]]) -> None:
    """One step after the other."""
    with closing(target.open(context(kind))) as sink:
        for number, records in enumerate(steps):
            sink.write(ms.Step(number, number, number + 1), records)
