"""A table of PostgreSQL that is open: each step is one transaction, and the ledger says whether it went in."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from millstream.clients.postgres_connection import AWAY, NOTICE_CLIENT, configure, connect, in_words, reaching
from millstream.delivery import Mode
from millstream.errors import Fenced, LogError, RecordError, TopologyError, Unreachable
from millstream.record import Record, in_order
from millstream.target import DeliveryContext, Sink, Step
from millstream.targets.postgres import PostgresTarget
from millstream.targets.postgres_columns import columns_of, is_deletion
from millstream.targets.postgres_table import STAGE, FoundTable, PostgresTable, ledger_at
from millstream.targets.steps import ways_out

log = logging.getLogger("millstream")

MOST_AS_ARRAYS = 50  # rows that go as parameters of one statement where a copy would need the stage, which costs milliseconds

_SESSION = {
    **NOTICE_CLIENT,
    "lock_timeout": "30s",
    "statement_timeout": "0",  # a first step may have a million rows
    "idle_in_transaction_session_timeout": "60s",
}

# Of the same family, and yet it is the record: no server will ever take it.
_TOO_LARGE = (
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
    psycopg.errors.TooManyColumns,
    psycopg.errors.TooManyArguments,
)
_UNFIT = (psycopg.Error, ValueError, OverflowError, TypeError)  # the latter from values that never reach the server

_CLAIM = sql.SQL("""
    INSERT INTO {} AS known (identity, delivery, stream, table_name, fence) VALUES (%s, %s, %s, %s, %s)
    ON CONFLICT (identity) DO UPDATE SET fence = EXCLUDED.fence, table_name = EXCLUDED.table_name
    WHERE known.fence <= EXCLUDED.fence RETURNING step
""")
# One statement locks the row, looks at it and moves it on; nobody comes between.
_ADVANCE = sql.SQL("""
    UPDATE {} SET step = %s, after = %s, upto = %s, records = records + %s, written_at = now()
    WHERE identity = %s AND fence = %s AND (upto = %s OR (step IS NULL AND %s = 0))
""")
_LAST = sql.SQL("SELECT step, after, upto, table_name FROM {} WHERE identity = %s")
_OTHERS = sql.SQL("SELECT max(upto) FROM {} WHERE delivery = %s AND table_name = %s AND identity <> %s")


@dataclass(frozen=True)
class _Prepared:
    """A step on its way: the keys to delete, and the columns of the rows to write."""

    deleted: list[str]
    columns: list[list[Any]]

    @property
    def rows(self) -> int:
        return len(self.columns[0])


def check(target: PostgresTarget, context: DeliveryContext) -> None:
    """The server answers, and the table fits or can be made."""
    table = _table(target, context)
    try:
        connection, hidden = _connect(target, context)
        with reaching(hidden), connection:
            table.find(connection)
    except Unreachable as error:
        raise TopologyError(f"delivery {context.delivery!r}: {target.describe()} cannot be reached: {error}") from None


class PostgresSink(Sink):
    """Whoever opens it waits for an earlier session in the middle of a step, for that has locked its row of the ledger:
    what `last_step` says then is final."""

    def __init__(self, target: PostgresTarget, context: DeliveryContext) -> None:
        self._target, self._context = target, context
        self._table = _table(target, context)
        self._connection, self._hidden = _connect(target, context)
        try:
            with reaching(self._hidden):
                self._found = self._create_missing()
                self._claim()
        except BaseException:
            self._connection.close()
            raise
        self._statements()

    def last_step(self) -> Step | None:
        with reaching(self._hidden), self._connection.transaction():
            number, after, upto, _ = self._ledger_row() or (None, 0, 0, "")
        return None if number is None else Step(number, after, upto)

    def write(self, step: Step, records: Sequence[Record[Any]]) -> None:
        with reaching(self._hidden):
            try:
                prepared = self._prepare(records)  # before the row of the ledger is locked
                with self._connection.transaction():
                    self._advance(step, len(records))
                    self._put(prepared)
            except _TOO_LARGE as error:
                raise self._refusal(records, error) from None
            except AWAY:
                raise
            except _UNFIT as error:
                if self._connection.closed:  # whatever it said before it went
                    raise Unreachable(in_words(error, self._hidden)) from None
                raise self._refusal(records, error) from None

    def close(self) -> None:
        self._connection.close()

    # Opening.

    def _create_missing(self) -> FoundTable:
        with self._connection.transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(hashtext('millstream_deliveries'))")  # two that create the same
            found = self._table.find(self._connection)
            self._table.create_missing(self._connection, found)
            self._found = found
            last = self._ledger_row()
            if found.oid is None and last is not None and last[0] is not None and last[3] == self._table.name.table:
                place, name = self._target.describe(), self._context.delivery
                raise LogError(f"{place} is missing, and delivery {name!r} has delivered to it up to epoch {last[2]}: {ways_out(name)}")
        return found

    def _claim(self) -> None:
        """From here on no older run writes."""
        context, ledger, name = self._context, ledger_at(self._found), self._table.name.table
        with self._connection.transaction():
            values = [context.identity, context.delivery, context.stream, name, context.fence]
            row = self._connection.execute(_CLAIM.format(ledger), values).fetchone()
            if row is None:
                raise Fenced(f"{self._target.describe()}: a newer run delivers there, so this one must not")
            others = self._connection.execute(_OTHERS.format(ledger), [context.delivery, name, context.identity]).fetchone()
        if row[0] is None and self._target.mode is Mode.APPEND and others is not None and others[0] is not None:
            log.warning(
                "delivery %r: %s has rows of this delivery from another folder, or from before it began anew; they stay there",
                context.delivery,
                self._target.describe(),
            )

    def _statements(self) -> None:
        """What every step uses, put together once."""
        table, found = self._table, self._found
        self._insert_arrays, self._insert_staged, self._delete = table.insert_arrays(found), table.insert_staged(found), table.delete(found)
        self._staged = table.mode is Mode.UPSERT or not found.exact
        self._copy = table.copy(STAGE if self._staged else table.at(found))

    def _ledger_row(self) -> Any:
        return self._connection.execute(_LAST.format(ledger_at(self._found)), [self._context.identity]).fetchone()

    # A step.

    def _prepare(self, records: Sequence[Record[Any]]) -> _Prepared:
        deleted: list[str] = []
        if self._table.mode is Mode.UPSERT:
            newest = {record.key: record for record in sorted(records, key=in_order)}
            deleted = [key for key, record in newest.items() if is_deletion(record.value)]
            records = [record for record in newest.values() if not is_deletion(record.value)] if deleted else list(newest.values())
        return _Prepared(deleted, [column.values(records) for column in self._table.columns])

    def _advance(self, step: Step, records: int) -> None:
        context = self._context
        values = [step.number, step.after, step.upto, records, context.identity, context.fence, step.after, step.number]
        if self._connection.execute(_ADVANCE.format(ledger_at(self._found)), values).rowcount != 1:
            raise Fenced(f"{self._target.describe()} is not at epoch {step.after}, or a newer run delivers there: this one must not")

    def _put(self, step: _Prepared) -> None:
        if step.deleted:
            self._connection.execute(self._delete, [step.deleted])
        if self._staged and 0 < step.rows <= MOST_AS_ARRAYS:
            self._connection.execute(self._insert_arrays, step.columns)
        elif step.rows:
            self._put_by_copy(step.columns)

    def _put_by_copy(self, columns: list[list[Any]]) -> None:
        with self._connection.cursor() as cursor:
            if self._staged:
                cursor.execute(self._table.create_stage())
            with cursor.copy(self._copy) as copy:
                copy.set_types([column.type for column in self._table.columns])
                write = copy.write_row
                for row in zip(*columns, strict=True):
                    write(row)
            if self._staged:
                cursor.execute(self._insert_staged)

    # What does not fit.

    def _refusal(self, records: Sequence[Record[Any]], error: Exception) -> Exception:
        """Says which record is to blame, and which column."""
        delivery, place = self._context.delivery, self._target.describe()
        if isinstance(error, psycopg.ProgrammingError):  # no record is to blame: a table that has changed, a right that was taken away
            return LogError(
                f"delivery {delivery!r}: {place} does not take the step: {in_words(error, self._hidden)}; put it right, and start again"
            )
        record = self._to_blame(records)
        if record is None:
            return RecordError(
                f"delivery {delivery!r}", f"{place} does not take the step, and nothing of it was written: {in_words(error, self._hidden)}"
            )
        error = self._failure([record]) or error
        column = self._column_to_blame(record) or getattr(getattr(error, "diag", None), "column_name", None)
        what = f"the value for column {column!r}" if column else "the row"
        return RecordError(
            f"delivery {delivery!r}, record {record.id or 'without an id'}, key {record.key!r}",
            f"{what} does not fit into {place}, and nothing of the step was written: {in_words(error, self._hidden)}; "
            f"change the column, or the code that makes such values, and start again",
        )

    def _to_blame(self, records: Sequence[Record[Any]]) -> Record[Any] | None:
        """Halves are tried until one record is left; None if they fail only together."""
        while len(records) > 1:
            middle = len(records) // 2
            records = records[:middle] if self._failure(records[:middle]) else records[middle:]
        return records[0] if records and self._failure(records) else None

    def _failure(self, records: Sequence[Record[Any]]) -> Exception | None:
        try:
            with self._connection.transaction(force_rollback=True):
                self._put(self._prepare(records))
                self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except _TOO_LARGE as error:
            return error
        except AWAY:
            raise
        except _UNFIT as error:
            return error
        return None

    def _column_to_blame(self, record: Record[Any]) -> str | None:
        for column in self._table.columns:
            try:
                with self._connection.transaction(force_rollback=True):
                    self._connection.execute(sql.SQL("SELECT %s::{}[]").format(sql.SQL(column.type)), [column.values([record])])
            except _TOO_LARGE:
                return column.name
            except AWAY:
                raise
            except _UNFIT:
                return column.name
        return None


def _table(target: PostgresTarget, context: DeliveryContext) -> PostgresTable:
    columns = columns_of(context.value_type, target.names, deletes=target.mode is Mode.UPSERT)
    return PostgresTable(target.table, target.mode, columns)


def _connect(target: PostgresTarget, context: DeliveryContext) -> tuple[psycopg.Connection[Any], list[str]]:
    """And what must not be shown."""
    connection, hidden = connect(target.dsn, what=target.describe(), name=f"millstream {context.delivery}")
    try:
        with reaching(hidden):
            configure(connection, _SESSION)
            with connection.transaction():
                if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):  # the step is recorded as delivered after this
                    connection.execute("SET synchronous_commit = on")
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    except BaseException:
        connection.close()
        raise
    return connection, hidden
