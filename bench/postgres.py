"""Upserts into PostgreSQL by `ms.to_postgres`, against COPY and one upsert by hand in the same run; and where copying begins to pay."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import psycopg

import millstream as ms
from bench.goals import at_least
from millstream.targets import postgres_sink
from tests.services.postgres import PostgresServer, running

RECORDS, ROUNDS = 200_000, 3
NOON = ms.Timestamp(1_700_000_000_000_000)
COLUMNS = "key text PRIMARY KEY, customer text NOT NULL, total double precision NOT NULL, number bigint NOT NULL"


@dataclass(frozen=True)
class Order:
    customer: str
    total: float
    number: int


def records(count: int) -> list[ms.Record[Order]]:
    values = [Order(f"customer {n % 1_000}", n * 1.5, n) for n in range(count)]
    return [ms.Record(f"order {n}", value, NOON + n * ms.MILLISECOND, False, "orders/1/", n) for n, value in enumerate(values)]


class Ours:
    """The target as a delivery uses it: a step for each call."""

    def __init__(self, dsn: str) -> None:
        target = ms.to_postgres("ours", dsn=dsn, mode=ms.Mode.UPSERT)
        self.sink, self.number = target.open(ms.DeliveryContext("bench", "orders", Order, str(time.monotonic_ns()), 1)), 0

    def write(self, step: list[ms.Record[Order]]) -> None:
        self.sink.write(ms.Step(self.number, self.number, self.number + 1), step)
        self.number += 1


def by_hand(connection: psycopg.Connection[tuple[object, ...]], step: list[ms.Record[Order]]) -> None:
    """The shortest program that keeps the same six columns; no ledger, no ids to put together, no tombstones."""
    rows = [(each.key, each.value.customer, each.value.total, each.value.number, ms.to_datetime(each.timestamp), each.id) for each in step]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE stage (LIKE hand) ON COMMIT DROP")
        with cursor.copy("COPY stage FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["text", "text", "float8", "int8", "timestamptz", "text"])
            for row in rows:
                copy.write_row(row)
        cursor.execute(
            "INSERT INTO hand SELECT * FROM stage ON CONFLICT (key) DO UPDATE SET customer = EXCLUDED.customer, total = EXCLUDED.total, "
            "number = EXCLUDED.number, timestamp = EXCLUDED.timestamp, id = EXCLUDED.id"
        )


def timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def fresh(server: PostgresServer) -> None:
    with server.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS ours, hand, millstream_deliveries")
        connection.execute(f"CREATE TABLE hand ({COLUMNS}, timestamp timestamptz NOT NULL, id text NOT NULL)".encode())
        connection.execute("CHECKPOINT")


def compare(server: PostgresServer, step: list[ms.Record[Order]]) -> None:
    """New keys, then the same ones again; in turns, the first one changing."""
    took: dict[str, list[float]] = {}
    for turn in range(ROUNDS):
        fresh(server)
        ours = Ours(server.dsn)
        with closing(ours.sink), psycopg.connect(server.dsn, autocommit=True) as connection:
            for what in ("new keys", "known keys"):
                contestants = {"ours": lambda ours=ours: ours.write(step), "by hand": lambda to=connection: by_hand(to, step)}
                for name in sorted(contestants, reverse=bool(turn % 2)):
                    took.setdefault(f"{what}, {name}", []).append(timed(contestants[name]))
    for what in ("new keys", "known keys"):
        ours_took, hand_took = median(took[f"{what}, ours"]), median(took[f"{what}, by hand"])
        print(
            f"  upsert of {len(step):,} records, {what}: {len(step) / ours_took:,.0f} rows/s, by hand {len(step) / hand_took:,.0f}",
            flush=True,
        )
        at_least("against COPY and one upsert by hand", hand_took / ours_took, 0.5, "of its rate")


def small(server: PostgresServer) -> None:
    """Milliseconds a step of upserts as parameters of one statement, and copied."""
    kept = postgres_sink.MOST_AS_ARRAYS
    try:
        for size in (1, 10, 50, 100, 1_000):
            found = []
            for most in (1 << 30, 0):
                postgres_sink.MOST_AS_ARRAYS = most
                fresh(server)
                ours, step = Ours(server.dsn), records(size)
                with closing(ours.sink):
                    found.append(median(timed(lambda ours=ours, step=step: ours.write(step)) for _ in range(max(9, 300 // size))))
            print(f"  step of {size:,}: {found[0] * 1e3:.2f} ms as arrays, {found[1] * 1e3:.2f} ms copied", flush=True)
    finally:
        postgres_sink.MOST_AS_ARRAYS = kept


def main() -> None:
    print("PostgreSQL, wall time", flush=True)
    server = running()
    try:
        compare(server, records(RECORDS))
        small(server)
    finally:
        server.remove()
