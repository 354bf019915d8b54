"""Tables of PostgreSQL as a source of their changes. What speaks to the server is loaded when it is used."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from millstream import arguments
from millstream.change import Change
from millstream.clients.postgres_dsn import LONGEST_NAME, Dsn, TableName, checked_dsn, checked_table, needs_psycopg
from millstream.errors import TopologyError
from millstream.secret import Secret
from millstream.source import Position, Source, SourceContext, SourceReader
from millstream.sources.postgres_place import WalPlace, end_of_record, lsn_of
from millstream.sources.postgres_rows import row_fields

if TYPE_CHECKING:
    from millstream.sources.postgres_capture import Capture

R = TypeVar("R")

COLUMNS = frozenset({"key", "commit_time", "table", "lsn"})  # beside the values

_SLOT = re.compile(rf"[a-z0-9_]{{1,{LONGEST_NAME}}}")


@dataclass(frozen=True)
class PostgresChanges(Source[Change[R]]):
    """One thread of the driver reads them, through one slot: transactions come in the order of their commits."""

    has_columns = True
    tables: tuple[TableName, ...]
    row: type[R]
    dsn: Dsn
    slot: str | None
    snapshot: bool
    ignore_truncates: bool

    @property
    def value_type(self) -> Any:
        return Change[self.row]  # type: ignore[name-defined]

    def describe(self) -> str:
        return f"changes of {', '.join(map(str, self.tables))} of PostgreSQL at {self.dsn.place}"

    def identity(self) -> str:
        """Where the server is does not count, for it may move. Which cluster it is of stands in the positions."""
        names = ", ".join(map(str, self.tables))
        return f"changes of {names} of PostgreSQL" + ("" if self.slot is None else f", by slot {self.slot}")

    def check(self, context: SourceContext) -> None:
        needs_psycopg("postgres_changes")
        unknown = sorted(context.columns - COLUMNS)
        if unknown:
            raise TopologyError(
                f"injector {context.injector!r}: {self.describe()} have no column {unknown[0]!r}; there are {', '.join(sorted(COLUMNS))}"
            )
        self.capture(context).check(context.positions)

    def open(self, context: SourceContext) -> SourceReader:
        needs_psycopg("postgres_changes")
        from millstream.sources.postgres_reader import PostgresReader

        return PostgresReader(self.capture(context), context)

    def position(self, of: object) -> Mapping[str, Position] | None:
        """A place in the WAL, as `pg_current_wal_lsn()` gives it, or as a number."""
        lsn = lsn_of(of) if isinstance(of, str) else of
        return {"": end_of_record(lsn)} if isinstance(lsn, int) and not isinstance(lsn, bool) else None

    def reached(self, positions: Mapping[str, Position], wanted: Mapping[str, Position]) -> bool:
        """What was there before the slot is read when the snapshot is."""
        place = WalPlace.of(positions)
        if place is None or (place.snapshot is not None and not place.snapshot.done):
            return False
        return super().reached(positions, wanted)

    def capture(self, context: SourceContext) -> Capture:
        from millstream.sources.postgres_capture import Capture

        return Capture(
            self.dsn,
            self.tables,
            self.row,
            row_fields("postgres_changes", self.row),
            self.slot or slot_for(context.injector),
            context.injector,
            context.columns,
            self.snapshot,
            self.ignore_truncates,
        )


def postgres_changes(
    tables: str | Sequence[str],
    row: type[R],
    *,
    dsn: str | Secret,
    slot: str | None = None,
    snapshot: bool = True,
    ignore_truncates: bool = False,
) -> Source[Change[R]]:
    """The rows of a table of PostgreSQL as they are, and then every change of them, transaction by transaction.

    `tables` is `table` or `schema.table`, or several of them whose rows are of one type. `row` has a field for each column that
    is wanted. `dsn` says where the server is, without a password; a whole dsn that is secret is given as `ms.secret(env="SHOP_DSN")`.
    `slot` is what the server keeps its place under; without it, the name is made of that of the injector. With `snapshot=False` only
    changes from now on are given. A table that is truncated ends the run, unless `ignore_truncates` is set.

    The columns `key`, `commit_time`, `table` and `lsn` stand beside the values.
    """
    names = [tables] if isinstance(tables, str) else tables
    if not isinstance(names, Sequence) or not names:
        raise TopologyError(f"postgres_changes({tables!r}): give the name of a table, such as 'orders' or 'shop.orders', or a list of them")
    found = tuple(checked_table("postgres_changes", name) for name in names)
    row_fields("postgres_changes", row)
    if slot is not None and (not isinstance(slot, str) or not _SLOT.fullmatch(slot)):
        raise TopologyError(f"postgres_changes(slot={slot!r}): give a name of small letters, digits and '_', of at most {LONGEST_NAME}")
    arguments.flag("postgres_changes", "snapshot", snapshot)
    arguments.flag("postgres_changes", "ignore_truncates", ignore_truncates)
    return PostgresChanges(found, row, checked_dsn("postgres_changes", dsn), slot, snapshot, ignore_truncates)


def slot_for(injector: str) -> str:
    """A name that PostgreSQL takes for a slot, the same for the same injector, and no other's."""
    plain = "millstream_" + re.sub(r"[^a-z0-9_]", "_", injector.lower())
    if plain == f"millstream_{injector}" and len(plain) <= LONGEST_NAME:
        return plain
    return f"{plain[:50]}_{hashlib.blake2b(injector.encode(), digest_size=5).hexdigest()}"


def drop(source: PostgresChanges[Any], injector: str) -> None:
    """Remove slot and publication of an injector that is not to be run any more. `ms.LogError` if somebody reads them."""
    needs_psycopg("postgres_changes")
    from millstream.clients.postgres_slots import drop_slot

    drop_slot(source.dsn, source.slot or slot_for(injector))
