"""A table of PostgreSQL as a target. What speaks to the server is loaded when it is used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream import arguments
from millstream.delivery import Mode
from millstream.errors import TopologyError
from millstream.secret import Secret
from millstream.target import DeliveryContext, Sink, Target

if TYPE_CHECKING:
    from psycopg.pq import ConninfoOption

LONGEST_NAME = 63  # bytes; PostgreSQL cuts longer ones off

_PART = r'"(?:[^"]|"")+"|[^".]+'
_NAME = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<table>{_PART})", re.DOTALL)
_NOT_SHOWN = {b"scram_client_key", b"scram_server_key"}  # as good as a password; the others PostgreSQL marks itself


@dataclass(frozen=True)
class TableName:
    """As a user gives it; case counts, for it is always quoted."""

    schema: str | None
    table: str

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    @property
    def quoted(self) -> str:
        """As the server reads it; quotes inside are doubled."""
        return ".".join('"' + part.replace('"', '""') + '"' for part in (self.schema, self.table) if part is not None)


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
    dsn: str | Secret
    mode: Mode
    names: Names

    def describe(self) -> str:
        return f"table {self.table} of PostgreSQL at {self._place()}"

    def check(self, context: DeliveryContext) -> None:
        _needs_psycopg()
        from millstream.targets.postgres_sink import check

        check(self, context)

    def open(self, context: DeliveryContext) -> Sink:
        _needs_psycopg()
        from millstream.targets.postgres_sink import PostgresSink

        return PostgresSink(self, context)

    def connection_options(self) -> tuple[dict[str, str], list[str]]:
        """What the dsn says, as it is now; and what of that must not be shown."""
        dsn = self.dsn.reveal() if isinstance(self.dsn, Secret) else self.dsn
        given = _parsed(dsn)
        if given is None:
            raise TopologyError(f"{self.describe()}: what is there is not a dsn; it looks like host=db.example.com dbname=shop")
        hidden = [option.val.decode() for option in given if option.val and _is_secret(option)]
        return {option.keyword.decode(): option.val.decode() for option in given if option.val is not None}, hidden

    def _place(self) -> str:
        if isinstance(self.dsn, Secret):
            return f"the dsn in {f'the environment variable {self.dsn.env}' if self.dsn.file is None else self.dsn.file}"
        shown, _ = self.connection_options()
        host = shown.get("service") or shown.get("host") or shown.get("hostaddr") or "the default host"
        port = f":{shown['port']}" if "port" in shown else ""
        return f"{host}{port}" + (f"/{shown['dbname']}" if "dbname" in shown else "")


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
    name = _table_name(table)
    arguments.choice("to_postgres", "mode", mode, Mode)
    for option, column in (("key", key), ("timestamp", timestamp), ("id", id)):
        if not isinstance(column, str) or not 0 < len(column.encode()) <= LONGEST_NAME or "\0" in column:
            raise TopologyError(f"to_postgres({option}={column!r}): give the name of a column, of at most {LONGEST_NAME} bytes")
    if len({key, timestamp, id}) < 3:
        raise TopologyError(f"to_postgres(key={key!r}, timestamp={timestamp!r}, id={id!r}): give three columns three names")
    if not isinstance(dsn, Secret):
        _check_dsn(dsn)
    return PostgresTarget(name, dsn, mode, Names(key, timestamp, id))


def _table_name(given: Any) -> TableName:
    match = _NAME.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise TopologyError(f"to_postgres({given!r}): give the name of a table, such as 'orders' or 'shop.orders'")
    schema, table = (None if part is None else _unquoted(part) for part in (match["schema"], match["table"]))
    assert table is not None
    for part in (schema, table):
        if part is not None and (len(part.encode()) > LONGEST_NAME or "\0" in part):
            raise TopologyError(f"to_postgres({given!r}): PostgreSQL has names of at most {LONGEST_NAME} bytes, without NUL")
    return TableName(schema, table)


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _check_dsn(dsn: Any) -> None:
    """Refuse what is no dsn, or has a password in it; neither message repeats it."""
    _needs_psycopg()
    found = _parsed(dsn) if isinstance(dsn, str) else None
    if found is None:
        raise TopologyError("to_postgres(dsn=...): give text such as 'host=db.example.com dbname=shop', or ms.secret(env='SHOP_DSN')")
    secret = [option.keyword.decode() for option in found if option.val and _is_secret(option)]
    if secret:
        raise TopologyError(
            f"to_postgres(dsn=...): there is a {secret[0]} in it, and a dsn is written down and shown; leave it out, and give it as "
            f"PGPASSWORD in the environment or in ~/.pgpass, or keep the whole dsn elsewhere: dsn=ms.secret(env='SHOP_DSN')"
        )


def _parsed(dsn: str) -> list[ConninfoOption] | None:
    """None for what PostgreSQL does not understand; its own message might repeat a secret."""
    import psycopg
    from psycopg.pq import Conninfo

    try:
        return Conninfo.parse(dsn.encode())
    except (psycopg.Error, UnicodeError):
        return None


def _is_secret(option: ConninfoOption) -> bool:
    return option.dispchar == b"*" or option.keyword in _NOT_SHOWN


def _needs_psycopg() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise TopologyError(f'to_postgres needs psycopg ({error}); install it: pip install "millstream[postgres]"') from None
