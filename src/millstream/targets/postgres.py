"""A table of PostgreSQL as a target. What speaks to the server is loaded when it is used."""

from __future__ import annotations

from dataclasses import dataclass

from millstream import arguments
from millstream.clients.postgres_dsn import LONGEST_NAME, Dsn, TableName, checked_dsn, checked_table, needs_psycopg
from millstream.delivery import Mode
from millstream.errors import TopologyError
from millstream.secret import Secret
from millstream.target import DeliveryContext, Sink, Target


@dataclass(frozen=True)
class Names:
    """What the columns are called that do not come from the value."""

    key: str
    timestamp: str
    id: str


@dataclass(frozen=True)
class PostgresTarget(Target):
    """Records and step in one transaction; how far it is stands in the table `millstream_deliveries` beside it."""

    transactional = True
    table: TableName
    dsn: Dsn
    mode: Mode
    names: Names

    def describe(self) -> str:
        return f"table {self.table} of PostgreSQL at {self.dsn.place}"

    def check(self, context: DeliveryContext) -> None:
        needs_psycopg("to_postgres")
        from millstream.targets.postgres_sink import check

        check(self, context)

    def open(self, context: DeliveryContext) -> Sink:
        needs_psycopg("to_postgres")
        from millstream.targets.postgres_sink import PostgresSink

        return PostgresSink(self, context)


def to_postgres(
    table: str,
    *,
    dsn: str | Secret,
    mode: Mode = Mode.APPEND,
    key: str = "key",
    timestamp: str = "timestamp",
    id: str = "id",
) -> Target:
    """A table of PostgreSQL, as `table` or `schema.table`. Exactly once: records and step are committed together.

    `dsn` says where the server is, without a password: `host=db.example.com dbname=shop`. A whole dsn that is secret
    is given as `ms.secret(env="SHOP_DSN")`. `key`, `timestamp` and `id` are what the columns of that are called; a value
    with fields has a column for each of them, any other one column `value`. A table that is missing is created.
    """
    name = checked_table("to_postgres", table)
    arguments.choice("to_postgres", "mode", mode, Mode)
    for option, column in (("key", key), ("timestamp", timestamp), ("id", id)):
        if not isinstance(column, str) or not 0 < len(column.encode()) <= LONGEST_NAME or "\0" in column:
            raise TopologyError(f"to_postgres({option}={column!r}): give the name of a column, of at most {LONGEST_NAME} bytes")
    if len({key, timestamp, id}) < 3:
        raise TopologyError(f"to_postgres(key={key!r}, timestamp={timestamp!r}, id={id!r}): give three columns three names")
    return PostgresTarget(name, checked_dsn("to_postgres", dsn), mode, Names(key, timestamp, id))
