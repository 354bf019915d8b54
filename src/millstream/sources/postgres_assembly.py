"""Messages of pgoutput become batches of changes: whole transactions, or parts of one that is large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.errors import LogError
from millstream.source import Batch
from millstream.sources.postgres_pgoutput import Cell, Decoded, Relation, RowChange, TransactionBegin, TransactionEnd, Truncated
from millstream.sources.postgres_place import WalPlace, lsn_text
from millstream.sources.postgres_rows import RowEncoder
from millstream.timestamp import Timestamp

MAX_BYTES = 8 << 20  # of the values of a batch, about: rows may be large
MAX_MESSAGES = 1 << 30  # of a transaction: what its numbers have room for

Keep = Callable[["Sequence[PendingChange]"], "Sequence[PendingChange]"]
Encoders = Callable[[Relation], RowEncoder | None]  # None of a table that is not captured; LogError if it has changed too much


class PendingChange(msgspec.Struct):
    """One value of a batch that is not given yet."""

    number: int
    value: bytes
    columns: dict[str, Any] | None
    reason: str
    commit: int
    table: str
    key: list[str]  # the values of its columns; only where somebody wants to `keep` some and not others


class Boundary(msgspec.Struct):
    """The end of a transaction: how many changes there are up to it, and how far it is read then."""

    changes: int
    place: WalPlace


class Assembly:
    """Messages in, batches out. Knows nothing of a server, and no clock."""

    def __init__(
        self, place: WalPlace, encoders: Encoders, columns: frozenset[str], *, keep: Keep | None = None, ignore_truncates: bool = False
    ) -> None:
        """With `keep`, changes are left out that it does not return."""
        self.place = place  # how far the stream is read: what is not given yet counts
        self.given = place  # how far it is given
        self.truncated = ""  # the last table that was, where that is ignored
        self._encoders, self._columns, self._keep, self._ignore_truncates = encoders, columns, keep, ignore_truncates
        self._relations: dict[int, tuple[str, RowEncoder] | None] = {}
        self._changes: list[PendingChange] = []
        self._boundary: Boundary | None = None
        self._begin: TransactionBegin | None = None
        self._messages = 0  # of the open transaction, so far
        self._skipped = 0  # messages at the beginning of the open transaction that were given before
        self._size = 0

    @property
    def within(self) -> bool:
        """Whether a transaction is open."""
        return self._begin is not None

    @property
    def empty(self) -> bool:
        return not self._changes

    @property
    def has_whole(self) -> bool:
        """Whether there are changes of a transaction that is whole."""
        return self._boundary is not None and self._boundary.changes > 0

    def full(self, at_most: int) -> bool:
        return len(self._changes) >= at_most or self._size >= MAX_BYTES

    def take(self, message: Decoded) -> None:
        match message:
            case RowChange():
                self._row(message)
            case TransactionBegin():
                self._start(message)
            case TransactionEnd():
                self._end(message)
            case Relation():
                encoder = self._encoders(message)
                name = f"{message.schema}.{message.table}"
                self._relations[message.oid] = None if encoder is None else (name, encoder)
            case Truncated():
                self._truncate(message)

    def advance(self, lsn: int) -> None:
        """Everything up to there is sent, says the server."""
        if self._begin is None and lsn > self.place.lsn:
            if self.place.commit and lsn > self.place.commit:
                raise self._missing(f"the server is at {lsn_text(lsn)}")
            self.place = self._at(lsn)
            if self._boundary is not None:
                self._boundary.place = self.place

    def batches(self, at_most: int) -> list[Batch]:
        """Whole transactions, if there are any; of one that alone is more than is wanted, what there is of it."""
        count, place = (self._boundary.changes, self._boundary.place) if self._boundary is not None else (0, self.place)
        if count == 0 and self._changes and self.full(at_most):
            count, place = len(self._changes), self.place
        taken, self._changes = self._changes[:count], self._changes[count:]
        self._size = sum(len(change.value) for change in self._changes)
        self._boundary = None
        if not taken:
            return []
        self.given = place
        kept = taken if self._keep is None else self._keep(taken)
        if not kept:
            return [Batch([], [], place.positions())]
        found, first = [], 0
        for last in range(1, len(kept) + 1):  # one batch has one upper half of the numbers; that changes between transactions only
            if last == len(kept) or kept[last].commit >> 32 != kept[first].commit >> 32:
                found.append(_batch(kept[first:last], place if last == len(kept) else self._at(kept[last].commit)))
                first = last
        return found

    def _at(self, lsn: int) -> WalPlace:
        """Between transactions. One that is half read stays so until it comes again; and what a snapshot has of changes is of no
        concern any more once they are all read."""
        place, snapshot = self.place, self.place.snapshot
        half = (place.commit, place.taken) if place.commit >= lsn else (0, 0)
        return WalPlace(lsn, *half, None if snapshot is None or lsn >= snapshot.point else snapshot)

    # What the messages do.

    def _start(self, begin: TransactionBegin) -> None:
        place = self.place
        if place.commit and place.lsn <= begin.commit and begin.commit != place.commit:
            raise self._missing(f"the next one is at {lsn_text(begin.commit)}")
        self._begin, self._messages = begin, 0
        self._skipped = MAX_MESSAGES if begin.commit < place.lsn else place.taken

    def _missing(self, instead: str) -> LogError:
        return LogError(
            f"the transaction at {lsn_text(self.place.commit)} was half read, and is not sent any more: {instead}; was the publication "
            f"changed? Begin anew, with another name for the injector"
        )

    def _end(self, commit: TransactionEnd) -> None:
        self._begin = None
        if commit.end > self.place.lsn:
            self.place = self._at(commit.end)
            self._boundary = Boundary(len(self._changes), self.place)

    def _row(self, row: RowChange) -> None:
        begin, number = self._begin, self._messages
        assert begin is not None
        self._messages = number + 1
        if number < self._skipped:
            return
        if number >= MAX_MESSAGES:
            raise LogError(f"the transaction at {lsn_text(begin.commit)} has more than {MAX_MESSAGES:,} changes, which have no numbers")
        known = self._relations.get(row.relation)
        if known is not None:
            self._changed(*known, number, row)
        self.place = WalPlace(self.place.lsn, begin.commit, number + 1, self.place.snapshot)

    def _changed(self, table: str, encoder: RowEncoder, number: int, row: RowChange) -> None:
        before, after = row.before, row.after
        if not row.whole:
            raise LogError(
                f"table {table}: what a row was before a change was not sent; the table was changed to another REPLICA IDENTITY than "
                f"FULL, and the changes since then are not to be had; begin anew, with another name for the injector"
            )
        if after is not None and (lacking := encoder.completed(after, before)) is not None:
            raise LogError(f"table {table}: a value of column {lacking!r} was not sent, for it did not change, nor is it in the old row")
        if before is None or after is None or encoder.same_key(before, after):
            self._add(2 * number, table, encoder, before, after)
        else:
            self._add(2 * number, table, encoder, before, None)
            self._add(2 * number + 1, table, encoder, None, after)

    def _add(self, number: int, table: str, encoder: RowEncoder, before: Sequence[Cell] | None, after: Sequence[Cell] | None) -> None:
        begin, reasons = self._begin, list[str]()
        assert begin is not None
        cells = after if after is not None else before
        assert cells is not None
        value = change_json(encoder, before, after, reasons)
        columns = columns_beside(self._columns, encoder, cells, table, begin.time, begin.commit) if self._columns else None
        number |= (begin.commit & 0xFFFFFFFF) << 31
        key = encoder.key_values(cells) if self._keep is not None else []
        self._changes.append(PendingChange(number, value, columns, "; ".join(reasons), begin.commit, table, key))
        self._size += len(value)

    def _truncate(self, truncated: Truncated) -> None:
        known = [self._relations.get(relation) for relation in truncated.relations]
        names = [each[0] for each in known if each is not None]
        if names and self._begin is not None and self._skipped < MAX_MESSAGES:
            if not self._ignore_truncates:
                raise LogError(
                    f"table {names[0]} was truncated, in the transaction at {lsn_text(self._begin.commit)}; which rows that took is not "
                    f"known, so they cannot be given as changes. Begin anew, with another name for the injector, after the slot is "
                    f"dropped; or go on with ignore_truncates=True, as if these rows were still there"
                )
            self.truncated = names[0]


def change_json(encoder: RowEncoder, before: Sequence[Cell] | None, after: Sequence[Cell] | None, reasons: list[str]) -> bytes:
    """A `ms.Change` as JSON text."""
    old = b"null" if before is None else encoder.row(before, reasons)
    new = b"null" if after is None else encoder.row(after, reasons)
    return b'{"before":' + old + b',"after":' + new + b"}"


def columns_beside(
    wanted: frozenset[str], encoder: RowEncoder, cells: Sequence[Cell], table: str, time: Timestamp, commit: int
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "key" in wanted:
        found["key"] = encoder.key(cells)
    if "commit_time" in wanted:
        found["commit_time"] = time
    if "table" in wanted:
        found["table"] = table
    if "lsn" in wanted:
        found["lsn"] = lsn_text(commit)
    return found


def _batch(changes: Sequence[PendingChange], place: WalPlace) -> Batch:
    return Batch(
        values=[change.value for change in changes],
        numbers=[change.number for change in changes],
        positions=place.positions(),
        major=changes[0].commit >> 32,
        columns=[change.columns or {} for change in changes] if changes[0].columns is not None else None,
        reasons={place: change.reason for place, change in enumerate(changes) if change.reason},
    )
