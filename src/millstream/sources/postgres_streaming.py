"""Changes as the server streams them, and how the low watermark goes on while there are none."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

import psycopg

from millstream.clients.postgres_connection import reaching
from millstream.errors import LogError
from millstream.source import Batch
from millstream.sources.postgres_assembly import Assembly
from millstream.sources.postgres_catalog import first
from millstream.sources.postgres_pgoutput import decode
from millstream.sources.postgres_place import end_of_record, ends_page
from millstream.sources.postgres_replication import Keepalive, Replication
from millstream.timestamp import SECOND, Duration, Timestamp

LOOK_EVERY = 1.0  # seconds
ASK_EVERY = 0.1  # seconds, while it is not known whether everything is read
FLUSH_AFTER = 1.0  # seconds in which the end of the WAL was not reached
SAY_EVERY = 5.0  # seconds; the server ends a connection on which nothing is said for a minute
SLACK = SECOND  # by which commits may reach the WAL in another order than that of their times
HELD_IS_MUCH = 4 << 30  # bytes
MESSAGES_PER_CLOCK = 512

# The time first: what was committed by then is in the WAL before the place that is asked for afterwards. Only what is flushed is sent;
# commits are at once, or within three times `wal_writer_delay` where they are asynchronous, and other records may be much later.
_LOOK = """
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, (pg_current_wal_flush_lsn() - '0/0')::bigint,
           (pg_current_wal_insert_lsn() - '0/0')::bigint, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint
    FROM (SELECT) AS one LEFT JOIN pg_replication_slots ON slot_name = %s
"""
_FLUSHED_AFTER = "SELECT (extract(epoch FROM current_setting('wal_writer_delay')::interval) * 3000000)::bigint"


class WalWatch:
    """Asks the server now and then for its time, the end of its WAL, and how much of it the slot holds back."""

    def __init__(self, connection: psycopg.Connection[Any], hidden: list[str], slot: str) -> None:
        self._connection, self._hidden, self._slot = connection, hidden, slot
        self._looked = 0.0
        self.time, self.end, self.inserted, self.held = Timestamp(0), 0, 0, 0
        self.flushed_after = Duration(0)

    def look(self, *, anyway: bool = False) -> bool:
        """Whether it has asked. One round trip, a second."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY and not anyway:
            return False
        with reaching(self._hidden):
            if self._looked == 0.0:
                self.flushed_after = Duration(first(self._connection, _FLUSHED_AFTER))
            row = self._connection.execute(_LOOK, [self._slot]).fetchone()
        assert row is not None
        self._looked, self.time, self.end, self.inserted, self.held = now, Timestamp(row[0]), row[1], end_of_record(row[2]), row[3] or 0
        return True

    def flush(self) -> None:
        """Let the server flush its WAL, by a record of our own. Where the user may not write, it must do so by itself."""
        with reaching(self._hidden), suppress(psycopg.ProgrammingError, psycopg.errors.ReadOnlySqlTransaction):
            self._connection.execute("SELECT pg_logical_emit_message(true, 'millstream', '')")

    @property
    def complete(self) -> Timestamp:
        """What was committed before this is in the WAL before `end`."""
        return self.time - SLACK - self.flushed_after

    @property
    def trouble(self) -> str | None:
        if self.held <= HELD_IS_MUCH:
            return None
        return f"slot {self._slot} holds back {self.held / (1 << 30):.1f} GB of WAL on the server: changes are read slower than they come"


class Streaming:
    """An assembly that a server feeds."""

    def __init__(self, replication: Replication, assembly: Assembly, watch: WalWatch) -> None:
        self.assembly = assembly
        self._replication, self._watch = replication, watch
        self._confirmed = 0  # nothing: of where it is read from, commits may not have all yet
        self._said = self._asked = time.monotonic()
        self._goal: tuple[Timestamp, int] | None = None  # complete up to then, once everything up to there is read
        self._flush_at = math.inf  # if that is not reached before
        self._finish: int | None = None  # no more than up to here
        self._flushed = 0.0  # when all commits up to there are flushed
        self._failure: LogError | None = None

    @property
    def finished(self) -> bool:
        assembly = self.assembly
        return self._finish is not None and assembly.empty and not assembly.within and assembly.place.lsn >= self._finish

    def poll(self, at_most: int, timeout: float) -> list[Batch]:
        deadline = time.monotonic() + timeout
        if self._finish is not None:
            self._look_for_end(self._finish)
        elif self._watch.look() and self._goal is None:
            self._aim(self._watch.end)
        if time.monotonic() > self._flush_at:
            self._flush_at = math.inf
            if self._goal is not None and not self._reached():
                self._watch.flush()
        while True:
            self._take(at_most, deadline)
            left = deadline - time.monotonic()
            if self._failure is not None or self.assembly.full(at_most) or self.assembly.has_whole or self._reached() or left <= 0:
                break
            self._speak()
            self._replication.readable(min(left, ASK_EVERY))
        self._speak()
        return self._batches(at_most)

    def confirm(self, lsn: int) -> None:
        if lsn > self._confirmed:
            self._confirmed = lsn
            self._say()

    def finish(self) -> None:
        self._watch.look(anyway=True)
        self._finish = self._watch.inserted
        self._aim(self._finish)
        self._flushed = time.monotonic() + int(self._watch.flushed_after) / 1e6

    def close(self) -> None:
        self._replication.close()

    def _look_for_end(self, finish: int) -> None:
        """What is still not flushed when all commits are is none, and may stay so for long."""
        if finish > self._watch.end and time.monotonic() > self._flushed:
            self._watch.look(anyway=True)
            self._finish = min(finish, self._watch.end)
            self._aim(self._finish)

    def _aim(self, lsn: int) -> None:
        """A page that is full is flushed without the rest of a record that goes on behind it, and nothing may flush that for long."""
        self._goal = self._watch.complete, lsn
        self._flush_at = time.monotonic() + FLUSH_AFTER if ends_page(lsn) else math.inf

    def _take(self, at_most: int, deadline: float) -> None:
        """What there is, and as much as is wanted. What cannot be taken is raised when all before it is given."""
        replication, assembly, count = self._replication, self.assembly, 0
        if self._failure is not None:
            return
        try:
            while not assembly.full(at_most):
                message = replication.receive()
                if message is None:
                    return
                if isinstance(message, Keepalive):
                    assembly.advance(message.end)
                    if message.asks:
                        self._say()
                else:
                    assembly.take(decode(message))
                count += 1
                if count % MESSAGES_PER_CLOCK == 0:
                    self._speak()
                    if time.monotonic() > deadline:
                        return
        except LogError as error:
            self._failure = error

    def _batches(self, at_most: int) -> list[Batch]:
        found = self.assembly.batches(at_most if self._failure is None else 0)
        if self._failure is not None and not found:
            raise self._failure
        if self._goal is not None and self._reached() and self.assembly.empty:
            complete, self._goal = self._goal[0], None
            if not found:
                self.assembly.given = self.assembly.place
                found.append(Batch([], [], self.assembly.place.positions()))
            found[-1].complete = complete
        return found

    def _reached(self) -> bool:
        return self._goal is not None and not self.assembly.within and self.assembly.place.lsn >= self._goal[1]

    def _speak(self) -> None:
        """Before the server takes the reader for gone; and where its word is wanted that there is nothing more."""
        now = time.monotonic()
        ask = self._goal is not None and not self._reached() and now - self._asked > ASK_EVERY
        if ask or now - self._said > SAY_EVERY:
            self._say(ask=ask)

    def _say(self, *, ask: bool = False) -> None:
        self._said = time.monotonic()
        if ask:
            self._asked = self._said
        self._replication.say(self.assembly.place.lsn, self._confirmed, ask=ask)
