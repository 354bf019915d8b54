"""The replication protocol of PostgreSQL: a slot is made, its WAL is streamed, and the server is told how far it was read.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import selectors
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from millstream.clients.postgres_connection import AWAY, connect, in_words, reaching
from millstream.clients.postgres_dsn import Dsn
from millstream.errors import LogError, Unreachable
from millstream.sources.postgres_pgoutput import EPOCH
from millstream.sources.postgres_place import lsn_of, lsn_text
from millstream.sources.postgres_values import AS_TEXT

TIMEOUT = 30.0  # seconds that an answer may take which the server need not wait for

_STATUS = struct.Struct(">cqqqqB")
_KEEPALIVE = struct.Struct(">xQQB")
_DATA, _ALIVE = b"wk"
_HEADER = 25  # bytes before a message of the plugin


@dataclass(frozen=True)
class Keepalive:
    """Everything up to here is sent."""

    end: int
    asks: bool  # for a status, or the connection is ended


@dataclass(frozen=True)
class MadeSlot:
    """Transactions with a commit before `point` are in the snapshot; those at or after it are sent."""

    point: int
    snapshot: str | None


class Statement:
    """A statement that may take long on the server: it is waited for a little at a time. One at a time on a connection."""

    def __init__(self, connection: psycopg.Connection[Any], hidden: list[str]) -> None:
        self.connection, self.hidden = connection, hidden
        self._pg = connection.pgconn
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pg.socket, selectors.EVENT_READ)
        self._waiting = False  # for an answer

    def send(self, statement: str) -> None:
        with reaching(self.hidden):
            self._pg.send_query(statement.encode())
            self.flush()
        self._waiting = True

    def result(self, timeout: float) -> PGresult | None:
        """None: not yet. Raises the errors of psycopg for what the server refuses, and `ms.Unreachable`."""
        deadline = time.monotonic() + timeout
        self._waiting = False
        with reaching(self.hidden):
            while self._pg.is_busy():
                if not self.readable(deadline - time.monotonic()):
                    self._waiting = True
                    return None
                self._pg.consume_input()
            found = self._pg.get_result()
        if found is None:
            raise Unreachable("the server has ended the connection")
        if found.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(found, "utf-8")
        if found.status != ExecStatus.COPY_BOTH:
            while self._pg.get_result() is not None:
                pass
        return found

    def run(self, statement: str) -> PGresult:
        """One that is answered at once."""
        self.send(statement)
        found = self.result(TIMEOUT)
        if found is None:
            raise Unreachable(f"the server has not answered for {TIMEOUT:.0f} seconds")
        return found

    def readable(self, timeout: float) -> bool:
        return bool(self._selector.select(max(0.0, timeout)))

    def flush(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while self._pg.flush():
            if time.monotonic() > deadline:
                raise Unreachable(f"the server has taken nothing for {TIMEOUT:.0f} seconds")
            self._pg.consume_input()
            time.sleep(0.001)

    def close(self) -> None:
        """What the server still does for it is cancelled."""
        with suppress(psycopg.Error):
            if self._waiting:
                self.connection.cancel_safe(timeout=5.0)
        self._selector.close()
        self.connection.close()


class Replication:
    """A connection for replication: it makes a slot, or streams from one."""

    def __init__(self, dsn: Dsn, *, what: str, name: str) -> None:
        options = " ".join(f"-c {setting}={value}" for setting, value in AS_TEXT.items())
        connection, hidden = connect(dsn, what=what, name=name, replication="database", options=options)
        self._statement, self._pg, self._hidden = Statement(connection, hidden), connection.pgconn, hidden

    def identify(self) -> str:
        """Which cluster this is. It stays the same when the server moves, restarts, or a replica takes its place."""
        with reaching(self._hidden):
            found = self._statement.run("IDENTIFY_SYSTEM")
        return (found.get_value(0, 0) or b"").decode()

    def create_slot(self, slot: str, *, temporary: bool, snapshot: bool) -> None:
        """The server waits for all transactions that are open now: `created` says when it has."""
        kind, export = " TEMPORARY" if temporary else "", "EXPORT_SNAPSHOT" if snapshot else "NOEXPORT_SNAPSHOT"
        self._statement.send(f'CREATE_REPLICATION_SLOT "{slot}"{kind} LOGICAL pgoutput {export}')

    def created(self, timeout: float) -> MadeSlot | None:
        """The snapshot lives until the connection is used or closed."""
        with reaching(self._hidden):
            found = self._statement.result(timeout)
        if found is None:
            return None
        point, snapshot = lsn_of((found.get_value(0, 1) or b"").decode()), found.get_value(0, 2)
        assert point is not None
        return MadeSlot(point, snapshot.decode() if snapshot else None)

    def start(self, slot: str, lsn: int) -> None:
        """Stream what was committed from there on. The publication is called as the slot is."""
        statement = f"START_REPLICATION SLOT \"{slot}\" LOGICAL {lsn_text(lsn)} (proto_version '1', publication_names '\"{slot}\"')"
        try:
            found = self._statement.run(statement)
        except psycopg.Error as error:
            raise self._refusal(error) from None
        if found.status != ExecStatus.COPY_BOTH:
            raise Unreachable("the server does not stream")

    def receive(self) -> bytes | Keepalive | None:
        """A message of the plugin, a word of the server's own, or None if there is nothing right now."""
        try:
            size, data = self._pg.get_copy_data(1)
            if size == 0:
                self._pg.consume_input()
                size, data = self._pg.get_copy_data(1)
        except psycopg.Error as error:
            raise self._refusal(error) from None
        if size < 0:
            raise self._ending()
        if size == 0:
            return None
        if data[0] == _DATA:
            return bytes(data[_HEADER:])
        if data[0] == _ALIVE:
            end, _, asks = _KEEPALIVE.unpack_from(data)
            return Keepalive(end, bool(asks))
        raise LogError(f"the server sent a message {bytes(data[:1])!r}, which the protocol of replication does not have")

    def readable(self, timeout: float) -> bool:
        return self._statement.readable(timeout)

    def say(self, read: int, confirmed: int, *, ask: bool = False) -> None:
        """How far it is read, and from where it may have to be read again. With `ask`, a `Keepalive` comes at once."""
        clock = int(time.time() * 1_000_000) - EPOCH
        try:
            self._pg.put_copy_data(_STATUS.pack(b"r", read, confirmed, confirmed, clock, ask))
            self._statement.flush()
        except psycopg.Error as error:
            raise self._refusal(error) from None

    def close(self) -> None:
        self._statement.close()

    def _ending(self) -> Exception:
        with suppress(psycopg.Error):
            found = self._pg.get_result()
            if found is not None and found.status == ExecStatus.FATAL_ERROR:
                return self._refusal(psycopg.errors.error_from_result(found, "utf-8"))
        return Unreachable("the server has ended the replication")

    def _refusal(self, error: psycopg.Error) -> Exception:
        """What may pass is `ms.Unreachable`; a slot, a publication or a right that is gone is not that."""
        text = in_words(error, self._hidden)
        lasting = isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState) or not isinstance(error, AWAY)
        return LogError(f"the server does not stream: {text}") if lasting else Unreachable(text)
