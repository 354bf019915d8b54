"""Replication slots of a PostgreSQL server, and the publications that go with them: what there is, and how it is removed.

A slot makes the server keep its WAL until a reader has confirmed it. It stays when the reader is gone, so somebody must drop it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from millstream.clients.postgres_connection import connect, in_words, reaching
from millstream.clients.postgres_dsn import Dsn
from millstream.errors import LogError
from millstream.secret import Secret

_SLOTS = """
    SELECT s.slot_name, s.plugin, s.database = current_database(), s.active, s.active_pid, s.wal_status,
           (s.confirmed_flush_lsn - '0/0')::bigint, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn)::bigint
    FROM pg_replication_slots s
"""


@dataclass(frozen=True)
class ReplicationSlot:
    """A slot as it is now."""

    name: str
    plugin: str | None
    here: bool | None  # in the database of the connection
    active: bool
    pid: int | None  # of who reads it
    wal_status: str | None
    confirmed: int | None
    held: int | None  # bytes of WAL that the server keeps for it

    @property
    def lost(self) -> bool:
        """Whether the server has removed WAL that it needed."""
        return self.wal_status == "lost"


def slot_named(connection: psycopg.Connection[Any], name: str) -> ReplicationSlot | None:
    row = connection.execute(f"{_SLOTS} WHERE s.slot_name = %s".encode(), [name]).fetchone()
    return None if row is None else ReplicationSlot(*row)


def list_slots(dsn: Dsn) -> Sequence[ReplicationSlot]:
    """Those that may be Millstream's: of the database, with a publication of the same name. By name."""
    connection, hidden = connect(dsn, what="slots", name="millstream slots")
    with reaching(hidden), connection:
        ours = "WHERE s.database = current_database() AND s.slot_name::text IN (SELECT pubname::text FROM pg_publication) ORDER BY 1"
        return [ReplicationSlot(*row) for row in connection.execute(f"{_SLOTS} {ours}".encode())]


def drop_command(dsn: Dsn, name: str) -> str:
    """As it is typed in a shell. The command takes a dsn from the environment, where the list of processes does not show it."""
    given = dsn.given
    if isinstance(given, Secret) and given.env is not None:
        return f"millstream slots --dsn-env {given.env} --drop {name}"
    value = f'"$(cat {shlex.quote(str(given.file))})"' if isinstance(given, Secret) else shlex.quote(given)
    return f"MILLSTREAM_DSN={value} millstream slots --dsn-env MILLSTREAM_DSN --drop {name}"


def drop_slot(dsn: Dsn, name: str) -> None:
    """With its publication, both or neither. `ms.LogError` if there is no such slot, or if somebody reads it."""
    connection, hidden = connect(dsn, what="slots", name="millstream slots")
    try:
        with reaching(hidden), connection:
            connection.autocommit = True
            found = slot_named(connection, name)
            published = connection.execute("SELECT FROM pg_publication WHERE pubname = %s", [name]).fetchone() is not None
            if found is None:
                left = f"; the publication {name} holds nothing back, and may be somebody else's: nothing was changed" if published else ""
                raise LogError(f"there is no slot {name} on this server{left}; without --drop, the command lists those that there are")
            if found.plugin != "pgoutput" or not found.here:
                raise LogError(f"slot {name} is not one of Millstream's: it is of another database or plugin; nothing was changed")
            if found.active:
                raise LogError(f"slot {name} is being read, by process {found.pid} of the server; stop the run that reads it first")
            with connection.transaction():
                if published:
                    connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
                connection.execute("SELECT pg_drop_replication_slot(%s)", [name])  # last: it is not undone with the transaction
    except psycopg.Error as error:
        raise LogError(f"slot {name} cannot be dropped: {in_words(error, hidden)}") from None
