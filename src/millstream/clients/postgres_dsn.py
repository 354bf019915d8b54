"""Where a PostgreSQL server is, and names there. What speaks to the server is loaded when it is used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.errors import TopologyError
from millstream.secret import Secret

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
class Dsn:
    """A dsn as it was given, and so without secrets: either there are none in it, or it says where it is kept."""

    given: str | Secret

    def options(self, what: str) -> tuple[dict[str, str], list[str]]:
        """What it says, as it is now; and what of that must not be shown. `what` is connected is for the message."""
        found = _parsed(self.given.reveal() if isinstance(self.given, Secret) else self.given)
        if found is None:
            raise TopologyError(f"{what}: what is there is not a dsn; it looks like host=db.example.com dbname=shop")
        hidden = [option.val.decode() for option in found if option.val and _is_secret(option)]
        return {option.keyword.decode(): option.val.decode() for option in found if option.val is not None}, hidden

    @property
    def place(self) -> str:
        """The server, for people."""
        if isinstance(self.given, Secret):
            return f"the dsn in {f'the environment variable {self.given.env}' if self.given.file is None else self.given.file}"
        shown, _ = self.options("the dsn")
        host = shown.get("service") or shown.get("host") or shown.get("hostaddr") or "the default host"
        port = f":{shown['port']}" if "port" in shown else ""
        return f"{host}{port}" + (f"/{shown['dbname']}" if "dbname" in shown else "")


def checked_dsn(call: str, given: Any) -> Dsn:
    """Refuse what is no dsn, or has a password in it; neither message repeats it. A secret one is read when it is used."""
    if isinstance(given, Secret):
        return Dsn(given)
    needs_psycopg(call)
    found = _parsed(given) if isinstance(given, str) else None
    if found is None:
        raise TopologyError(f"{call}(dsn=...): give text such as 'host=db.example.com dbname=shop', or ms.secret(env='SHOP_DSN')")
    secret = [option.keyword.decode() for option in found if option.val and _is_secret(option)]
    if secret:
        raise TopologyError(
            f"{call}(dsn=...): there is a {secret[0]} in it, and a dsn is written down and shown; leave it out, and give it as "
            f"PGPASSWORD in the environment or in ~/.pgpass, or keep the whole dsn elsewhere: dsn=ms.secret(env='SHOP_DSN')"
        )
    return Dsn(given)


def checked_table(call: str, given: Any) -> TableName:
    """A name as `table` or `schema.table`; what has a dot in it is quoted, as in SQL."""
    match = _NAME.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise TopologyError(f"{call}({given!r}): give the name of a table, such as 'orders' or 'shop.orders'")
    schema, table = (None if part is None else _unquoted(part) for part in (match["schema"], match["table"]))
    assert table is not None
    for part in (schema, table):
        if part is not None and (len(part.encode()) > LONGEST_NAME or "\0" in part):
            raise TopologyError(f"{call}({given!r}): PostgreSQL has names of at most {LONGEST_NAME} bytes, without NUL")
    return TableName(schema, table)


def needs_psycopg(call: str) -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise TopologyError(f'{call} needs psycopg ({error}); install it: pip install "millstream[postgres]"') from None


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


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
