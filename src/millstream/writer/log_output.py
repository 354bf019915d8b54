"""The log as one of the writer's outputs."""

from __future__ import annotations

from millstream.core.parts import Columns
from millstream.log.history import At, HistoryTable, StagedFile
from millstream.log.rows import ROWS_PER_FILE, Rows
from millstream.targets.output import Refused
from millstream.targets.typed import Gathered

LOG = "/log"  # no delivery can be called so
ROWS_HELD = 4 * ROWS_PER_FILE  # over all streams


class LogOutput:
    """One commit for all streams: a consistent cut through inputs and outputs."""

    name = LOG
    streams = None

    def __init__(self, table: HistoryTable) -> None:
        self._table = table
        self._at: At | None = None
        self._gathered: dict[str, Gathered] = {}
        self._added = 0  # since it was last counted what is held
        self._staged: list[StagedFile] = []

    def position(self) -> int:
        self._at = self._table.position()
        return self._at.upto

    def open_until(self) -> int | None:
        return None

    def add(self, epoch: int, stream: str, origin: str, major: int, columns: Columns) -> None:
        gathered = self._gathered.get(stream)
        if gathered is None:
            gathered = self._gathered[stream] = Gathered(lambda rows: self._stage(stream, rows))
        gathered.add(epoch, origin, major, columns)
        self._added += len(columns)
        if self._added > ROWS_HELD:
            self._bound()

    def commit(self, to: int) -> int:
        for gathered in self._gathered.values():
            gathered.flush()
        after = self._at or self._table.position()
        staged, self._staged = self._staged, []
        self._at = self._table.commit(staged, after=after, to=to)
        if self._at is None:
            raise Refused(f"the log went on from epoch {after.upto} without this writer; another run writes it")
        return to

    def drop(self) -> None:
        for gathered in self._gathered.values():
            gathered.drop()
        staged, self._staged = self._staged, []
        self._table.discard(staged)

    def _bound(self) -> None:
        """However many streams there are, memory holds no more than this."""
        while (held := sum(map(len, self._gathered.values()))) > ROWS_HELD // 2:
            max(self._gathered.values(), key=len).flush()
        self._added = held

    def _stage(self, stream: str, rows: Rows) -> None:
        self._staged.append(self._table.stage(stream, rows))
