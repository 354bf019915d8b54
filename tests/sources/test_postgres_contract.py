"""What a source must keep to, of a table of PostgreSQL whose rows are there when it is opened, and of one whose changes come later."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.testing import SourceContract
from tests.services.postgres import PostgresServer
from tests.sources.postgres_captures import Captured


@dataclass(frozen=True)
class Measured:
    value: float


class TestPostgresChanges(SourceContract):
    value_type = ms.Change[Measured]
    tells_lag = True

    @pytest.fixture(autouse=True)
    def _table(self, postgres: PostgresServer) -> Iterator[None]:
        self.captured = Captured(postgres)
        self.table = self.captured.table("id bigserial PRIMARY KEY, value float8 NOT NULL")
        yield
        if not postgres.running:
            postgres.start()
        self.captured.close()

    def make(self) -> ms.Source[Any]:
        return self.captured.source(row=Measured, slot=self.captured.slot)

    def add(self, values: Sequence[int], partition: int) -> None:
        """The first few in one transaction, the others in one each."""
        rows = [f"INSERT INTO {self.table} (value) VALUES ({value})" for value in values]
        self.captured.execute(*rows[:2])
        for row in rows[2:]:
            self.captured.execute(row)

    def read_as(self, value: int) -> ms.Change[Measured]:
        return ms.Change(None, Measured(value))

    def add_bad(self, partition: int) -> None:
        self.captured.execute(f"INSERT INTO {self.table} (value) VALUES ('NaN')")

    def cut_off(self) -> None:
        self.captured.server.stop(signal.SIGQUIT)

    def reconnect(self) -> None:
        self.captured.server.start()
