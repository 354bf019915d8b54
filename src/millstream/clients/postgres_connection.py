"""A connection to a PostgreSQL server: how it is made, and what of its errors may pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from millstream.clients.postgres_dsn import Dsn
from millstream.errors import Unreachable

# A server that is gone is noticed within half a minute. What the dsn says goes before these.
CONNECTING = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "target_session_attrs": "read-write",
}
# And so is a client: what a run that is gone has locked would keep the next one waiting.
NOTICE_CLIENT = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}

# While connecting there is no code that says why, only text. A message that is none of these, or of another language, may pass.
_NOT_ADMITTED = re.compile(
    "authentication failed|no pg_hba.conf entry|pg_hba.conf rejects|does not exist|"
    "not permitted to log in|permission denied|must be superuser"
)

AWAY = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)


class NotAdmitted(Unreachable):
    """The server answers, and does not let the user in."""


def connect(dsn: Dsn, *, what: str, name: str, **more: str) -> tuple[psycopg.Connection[Any], list[str]]:
    """A connection that is called `name` on the server, and what must not be shown. `ms.Unreachable` if it cannot be had,
    `NotAdmitted` where that is known to be the user's affair.

    `more` goes before what the dsn says, but for `options`, which are added to it.
    """
    given, hidden = dsn.options(what)
    if "options" in more and "options" in given:
        more["options"] = f"{given['options']} {more['options']}"
    options = {**CONNECTING, "application_name": name, **given, **more, "client_encoding": "UTF8"}
    why, needs_password = "", False
    try:
        return psycopg.connect(**options), hidden  # type: ignore[arg-type]
    except psycopg.Error as error:
        why, needs_password = in_words(error, hidden), error.pgconn is not None and error.pgconn.needs_password
    kind = NotAdmitted if needs_password or _NOT_ADMITTED.search(why) else Unreachable
    raise kind(why)  # outside, so that the error of the driver hangs on to nothing


def configure(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    """Settings of the session; and, where the server can, it looks after its client while it works for it."""
    with connection.transaction():
        calls = sql.SQL(", ").join(sql.SQL("set_config({}, {}, false)").format(name, value) for name, value in settings.items())
        connection.execute(sql.SQL("SELECT {}").format(calls))
    with suppress(psycopg.DataError, psycopg.ProgrammingError), connection.transaction():
        connection.execute("SET client_connection_check_interval = '5s'")  # not every version and platform has it


@contextmanager
def reaching(hidden: Sequence[str]) -> Iterator[None]:
    """What may pass is `ms.Unreachable`: whoever needs the server opens it anew."""
    try:
        yield
    except AWAY as error:
        raise Unreachable(in_words(error, hidden)) from None


def in_words(error: Exception, hidden: Sequence[str] = ()) -> str:
    """The error's own words in one line, without what must not be shown."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__
    for each in hidden:
        text = text.replace(each, "***")
    return text
