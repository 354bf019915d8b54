"""An open capture: a slot is made, the rows that are there are given, and then every change."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psycopg
from psycopg import sql

from millstream.clients.postgres_connection import in_words, reaching
from millstream.clients.postgres_slots import drop_command, slot_named
from millstream.errors import LogError, Unreachable
from millstream.source import Batch, Piece, Position, SourceContext, SourceReader
from millstream.sources.postgres_assembly import Assembly
from millstream.sources.postgres_capture import Capture
from millstream.sources.postgres_catalog import CapturedTable, check_publication, files_of, first
from millstream.sources.postgres_place import SYSTEM, WAL, SnapshotPlace, WalPlace, lsn_text
from millstream.sources.postgres_replication import MadeSlot, Replication
from millstream.sources.postgres_snapshot import SnapshotRows, not_in_snapshot
from millstream.sources.postgres_streaming import Streaming, WalWatch
from millstream.timestamp import Timestamp

log = logging.getLogger("millstream")

WAITING_IS_LONG = 5.0  # seconds for a slot to be made
CLAIM = "slot"  # the file that says that a slot is ours, until a commit does

_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class Creating:
    """A slot that the server is making: it waits for all transactions that are open."""

    def __init__(self, replication: Replication, files: list[int | None], begun: Timestamp) -> None:
        self.replication, self.files, self.begun = replication, files, begun
        self._since = time.monotonic()

    @property
    def trouble(self) -> str | None:
        if time.monotonic() - self._since < WAITING_IS_LONG:
            return None
        return "waits for the transactions that are open on the server: a slot begins when all of them have ended"

    def close(self) -> None:
        self.replication.close()


class PostgresReader(SourceReader):
    """One of three is under way: the slot is made, the snapshot is read, the changes are streamed."""

    def __init__(self, capture: Capture, context: SourceContext) -> None:
        self._capture = capture
        self._claim = None if context.folder is None else context.folder / CLAIM
        self._place = WalPlace.of(context.positions)
        self._phase: Creating | SnapshotRows | Streaming
        self._connection, self._hidden = capture.connect()
        self._watch = WalWatch(self._connection, self._hidden, capture.slot)
        self._truncated = ""
        try:
            with reaching(self._hidden):
                cluster = capture.check_cluster(context.positions)
                self._unsaid = {} if SYSTEM in context.positions else {SYSTEM: cluster}
                self._tables: Sequence[CapturedTable] = capture.find_tables(self._connection)
                if self._place is None:
                    self._phase = self._begin()
                else:
                    self._check_slot(self._place)
                    self._phase = self._go_on(self._place)
        except BaseException:
            self._connection.close()
            raise

    # What a reader does.

    def poll(self, at_most: int, timeout: float) -> Sequence[Batch | Piece]:
        with reaching(self._hidden):
            given = self._poll(at_most, timeout)
        if given and self._unsaid:
            given[0].positions = {**given[0].positions, **self._unsaid}
            self._unsaid = {}
        return given

    def _poll(self, at_most: int, timeout: float) -> Sequence[Batch]:
        if isinstance(self._phase, Streaming):
            return self._stream(self._phase, at_most, timeout)
        self._watch.look()
        if isinstance(self._phase, SnapshotRows):
            batch = self._phase.poll(at_most, timeout)
            return [] if batch is None else [self._read(batch, self._phase)]
        try:
            made = self._phase.replication.created(timeout)
        except psycopg.errors.DuplicateObject:
            if self._claim is not None:
                self._claim.unlink(missing_ok=True)  # it is another's, who was a moment quicker
            raise self._taken() from None
        except psycopg.Error as error:
            raise LogError(f"{self._capture.what}: the slot cannot be made: {in_words(error, self._hidden)}") from None
        return [] if made is None else [self._made(made, self._phase)]

    def confirm(self, positions: Mapping[str, Position]) -> None:
        if self._claim is not None:
            self._claim.unlink(missing_ok=True)  # from here on, positions say whose the slot is
            self._claim = None
        if isinstance(self._phase, Streaming) and WAL in positions:
            with reaching(self._hidden):
                self._phase.confirm(int(positions[WAL]))

    def finish(self) -> None:
        super().finish()
        if isinstance(self._phase, Streaming):
            with reaching(self._hidden):
                self._phase.finish()

    def ended(self) -> bool:
        return isinstance(self._phase, Streaming) and self._phase.finished

    def lag(self) -> Mapping[str, int]:
        """Bytes of the server's WAL; how many changes are in them is not known. While a snapshot is read there is always something."""
        phase = self._phase
        if isinstance(phase, Streaming):
            behind = self._watch.end - phase.assembly.place.lsn
            return {WAL: behind} if behind > 0 else {}
        return {WAL: max(1, self._watch.end - self._place.lsn) if self._place is not None else 1}

    @property
    def trouble(self) -> str | None:
        phase = self._phase
        if isinstance(phase, Creating) and phase.trouble is not None:
            return phase.trouble
        return self._watch.trouble or (f"table {self._truncated} was truncated, and its rows are kept" if self._truncated else None)

    def close(self) -> None:
        self._phase.close()
        self._connection.close()

    # The three of them.

    def _begin(self) -> Creating:
        """Nothing is committed yet. A slot of an earlier try is of no use: its snapshot went with it."""
        capture, slot = self._capture, slot_named(self._connection, self._capture.slot)
        if slot is not None:
            if self._claim is None or not _claims(self._claim, capture.slot):
                raise self._taken()
            if slot.active:
                raise Unreachable(f"slot {slot.name} is still being made or read, by process {slot.pid} of the server")
            self._connection.execute("SELECT pg_drop_replication_slot(%s)", [slot.name])
        if not check_publication(self._connection, capture.slot, self._tables):
            names = ", ".join(f"ONLY {table.name.quoted}" for table in self._tables)
            self._connection.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(sql.Identifier(capture.slot), sql.SQL(names)))
        if self._claim is not None:
            _write_claim(self._claim, capture.slot)
        return self._create(capture.slot, temporary=False, snapshot=capture.snapshot)

    def _taken(self) -> LogError:
        capture = self._capture
        return LogError(
            f"{capture.what}: slot {capture.slot} is there already, and not made by this run: another one reads with it, or did. "
            f"Give this one another name, slot=..., or drop it: {drop_command(capture.dsn, capture.slot)}"
        )

    def _go_on(self, place: WalPlace) -> Creating | Streaming:
        if place.snapshot is None or place.snapshot.done:
            return self._streaming(place)
        name = f"{self._capture.slot[:50]}_{uuid.uuid4().hex[:12]}"  # the server may still have that of an earlier try
        return self._create(name, temporary=True, snapshot=True)

    def _create(self, name: str, *, temporary: bool, snapshot: bool) -> Creating:
        files, clock = files_of(self._connection, self._tables), Timestamp(first(self._connection, _CLOCK))
        replication = self._capture.replicate()
        try:
            replication.create_slot(name, temporary=temporary, snapshot=snapshot)
        except BaseException:
            replication.close()
            raise
        return Creating(replication, files, clock)

    def _made(self, made: MadeSlot, creating: Creating) -> Batch:
        """The slot is there: what was committed before it is in the snapshot, what is committed later will be sent."""
        place = self._place
        if made.snapshot is None:
            self._place = WalPlace(made.point)
            creating.close()
            self._phase = self._streaming(self._place)
            return Batch([], [], self._place.positions())
        if place is None or place.snapshot is None:
            at = SnapshotPlace(made.point, made.point, creating.begun)
        else:
            at = place.snapshot.resumed(made.point)
        rows = SnapshotRows(self._capture, self._tables, at, made.snapshot)
        self._phase = rows
        creating.close()  # it has kept the snapshot until here
        if rows.files != creating.files:
            raise Unreachable("a table was written anew while its snapshot was taken")
        self._place = WalPlace(at.begun, snapshot=at)
        return Batch([], [], self._place.positions())

    def _read(self, batch: Batch, rows: SnapshotRows) -> Batch:
        """Some of the snapshot; after the last of it, changes."""
        self._place = WalPlace.of(batch.positions)
        if rows.place.done:
            rows.close()
            assert self._place is not None
            self._phase = self._streaming(self._place)
        return batch

    def _streaming(self, place: WalPlace) -> Streaming:
        capture, keep = self._capture, None
        if place.snapshot is not None:
            keep = not_in_snapshot(self._connection, self._tables, place.snapshot)
        assembly = Assembly(
            place,
            lambda relation: capture.encoder_of(relation, self._tables, self._connection),
            capture.columns,
            keep=keep,
            ignore_truncates=capture.ignore_truncates,
        )
        replication = capture.replicate()
        try:
            replication.start(capture.slot, place.lsn)
            found = Streaming(replication, assembly, self._watch)
            if self.finishing:
                found.finish()
        except LogError as error:
            replication.close()
            raise LogError(f"{capture.what}: {error}") from None
        except BaseException:
            replication.close()
            raise
        return found

    def _stream(self, streaming: Streaming, at_most: int, timeout: float) -> Sequence[Batch]:
        try:
            found = streaming.poll(at_most, timeout)
        except LogError as error:
            raise LogError(f"{self._capture.what}: {error}") from None
        if streaming.assembly.truncated != self._truncated:
            self._truncated = streaming.assembly.truncated
            log.warning("%s: table %s was truncated; its rows are kept, as was asked for", self._capture.what, self._truncated)
        return found

    def _check_slot(self, place: WalPlace) -> None:
        """Refuse to go on where changes are missing; a slot is never made anew in silence."""
        capture, slot = self._capture, slot_named(self._connection, self._capture.slot)
        anew = (
            f"What was changed since {lsn_text(place.lsn)} cannot be read any more. Begin anew: give the injector another name, "
            f"or the run another folder"
        )
        drop = f"{anew}; and drop the slot: {drop_command(capture.dsn, capture.slot)}"
        if slot is None:
            raise LogError(f"{capture.what}: slot {capture.slot} is gone from the server. {anew}")
        if slot.plugin != "pgoutput" or not slot.here:
            raise LogError(f"{capture.what}: slot {capture.slot} is of another database or plugin now. {anew}")
        if slot.lost:
            raise LogError(f"{capture.what}: the server has given up slot {capture.slot}, for it held back too much WAL. {drop}")
        if slot.confirmed is not None and slot.confirmed > place.lsn:
            raise LogError(
                f"{capture.what}: slot {capture.slot} was read up to {lsn_text(slot.confirmed)} by another run, or by this one before its "
                f"folder was put back. {drop}"
            )
        end = first(self._connection, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        if end < place.lsn:
            raise LogError(
                f"{capture.what}: the WAL of the server ends at {lsn_text(end)}, before what was read: it was put back to a backup. {drop}"
            )
        if slot.active:
            raise Unreachable(f"slot {slot.name} is being read, by process {slot.pid} of the server; an earlier run may be ending")
        if not check_publication(self._connection, capture.slot, self._tables):
            raise LogError(f"{capture.what}: publication {capture.slot} is gone from the server. {drop}")


def _claims(claim: Path, slot: str) -> bool:
    with suppress(FileNotFoundError):
        return claim.read_text() == slot
    return False


def _write_claim(claim: Path, slot: str) -> None:
    claim.parent.mkdir(parents=True, exist_ok=True)
    with claim.open("w") as file:
        file.write(slot)
        file.flush()
        os.fsync(file.fileno())
