"""How far a capture is: in the WAL, within a transaction, and in the snapshot at its beginning."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from millstream.errors import LogError
from millstream.source import Position
from millstream.timestamp import Timestamp

WAL, WITHIN, SNAPSHOT, SYSTEM = "", "transaction", "snapshot", "system"  # the names of the positions


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes a place in the WAL."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int | None:
    """None of what is not written so."""
    high, slash, low = text.strip().partition("/")
    with suppress(ValueError):
        if slash and 0 < len(high) <= 8 and 0 < len(low) <= 8:
            return int(high, 16) << 32 | int(low, 16)
    return None


PAGE = 8192  # bytes of the WAL, of a server as it is usually built
HEADS = (24, 40)  # bytes at the beginning of a page that belong to no record


def end_of_record(lsn: int) -> int:
    """Where the next record would begin, as the end of the last one: between them may be the head of a page."""
    return lsn - lsn % PAGE if lsn % PAGE in HEADS else lsn


def ends_page(lsn: int) -> bool:
    return lsn % PAGE == 0


class Cut(msgspec.Struct, array_like=True, frozen=True):
    """A row in the order in which a snapshot is read, by the name of its table and its primary key."""

    table: str
    key: tuple[str, ...]


class SnapshotStretch(msgspec.Struct, array_like=True, frozen=True):
    """Rows after those of the stretch before it, up to a cut, are as they were at a place in the WAL."""

    point: int
    upto: Cut


class SnapshotPlace(msgspec.Struct, frozen=True):
    """A snapshot that is being read, or whose changes are: it may have been taken in several stretches.

    A run that ends takes its snapshot with it. The next one takes a later one for the rows that are missing, while changes
    are read from the first one on. So a change from before `point` is already in the rows of a later stretch, and must be
    left out for those, and for no others.
    """

    begun: int  # the place in the WAL of the first one: changes are read from here on
    point: int  # of the newest one
    time: Timestamp  # of the first one
    rows: int = 0  # that were given
    upto: Cut | None = None  # the last one that was given
    stretches: tuple[SnapshotStretch, ...] = ()  # before the newest one
    done: bool = False  # all rows were given

    def resumed(self, point: int) -> SnapshotPlace:
        """With a later snapshot for the rows that are missing."""
        before = self.stretches if self.upto is None else (*self.stretches, SnapshotStretch(self.point, self.upto))
        return msgspec.structs.replace(self, point=point, stretches=before)


class WalPlace(msgspec.Struct, frozen=True):
    """All transactions whose commit stands before `lsn` are read; of the next one, so many messages."""

    lsn: int
    commit: int = 0  # of a transaction that is half read
    taken: int = 0  # of its messages
    snapshot: SnapshotPlace | None = None

    def positions(self) -> dict[str, Position]:
        """Always all of them, for what is not said stays as it was."""
        return {
            WAL: self.lsn,
            WITHIN: f"{lsn_text(self.commit)} {self.taken}" if self.commit else "",
            SNAPSHOT: msgspec.json.encode(self.snapshot).decode() if self.snapshot else "",
        }

    @classmethod
    def of(cls, positions: Mapping[str, Position]) -> WalPlace | None:
        """None at the beginning."""
        lsn, within, snapshot = positions.get(WAL), str(positions.get(WITHIN, "")), str(positions.get(SNAPSHOT, ""))
        if lsn is None:
            return None
        try:
            commit, _, taken = within.partition(" ")
            state = msgspec.json.decode(snapshot, type=SnapshotPlace) if snapshot else None
            return cls(int(lsn), lsn_of(commit) or 0, int(taken or 0), state)
        except (ValueError, msgspec.MsgspecError):
            raise LogError(f"the positions {dict(positions)} are not those of a capture from PostgreSQL; which source was read?") from None
