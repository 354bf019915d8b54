"""Where the writer writes to, before a run: what is there, and whether it is what the commits say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from millstream.delivery import Delivery
from millstream.errors import LogError
from millstream.format import Format
from millstream.targets.belonging import destination, reached
from millstream.targets.delta import application, check_schema, open_table
from millstream.targets.files import check_not_ahead, file_name, newest_step, prefix_of
from millstream.targets.row_values import RowValues
from millstream.targets.steps import FoundSteps, check_reach, ways_out
from millstream.targets.typed import Values


class DeliveredSoFar(NamedTuple):
    """How far a delivery is: what its target had before the commits were read, and what they say."""

    had: int | None
    delivered: int
    newest: int  # commit


class WrittenPlace(ABC):
    """The target of one delivery."""

    says_itself: ClassVar[bool]  # how far it is; else its steps in the folder of the run do

    def __init__(self, delivery: str, path: Path) -> None:
        self._delivery, self.path = delivery, path

    @abstractmethod
    def has(self, identity: str) -> int | None:
        """Of a table the epoch that it has, of files the newest step; None for nothing."""

    @abstractmethod
    def check(self, folder: Path, steps: FoundSteps | None, known: DeliveredSoFar) -> None:
        """Refuse what is from another copy than the commits, and what is gone."""

    def check_fits(self, stream: str, kind: Any) -> None:
        """Refuse what holds records of another type than this stream's, and a stream that it cannot hold."""
        return

    def files(self) -> Path | None:
        """A file as it will be written, for who reads files in that folder."""
        return None


class TablePlace(WrittenPlace):
    says_itself = True

    def __init__(self, delivery: str, path: Path, key: str | None) -> None:
        super().__init__(delivery, path)
        self._key = key

    def has(self, identity: str) -> int | None:
        table = open_table(self.path)
        return None if table is None else table.transaction_version(application(self._delivery, identity))

    def check(self, folder: Path, steps: FoundSteps | None, known: DeliveredSoFar) -> None:
        name, before, after = self._delivery, known.had, known.had
        if before is None or before < known.delivered:
            after = None if steps is None else self.has(steps.kept.identity)
        begins = destination(folder, self.path, delivered=known.delivered).begins
        if after is None and known.delivered > begins:
            raise LogError(
                f"{self.path} has nothing of what delivery {name!r} has delivered, up to epoch {known.delivered}: it was deleted, or "
                f"something else is in its place; {ways_out(name)}"
            )
        positions = [begins if found is None else found for found in (before, after)]
        check_reach(name, str(self.path), before=positions[0], after=positions[1], recorded=known.delivered, newest=known.newest)

    def check_fits(self, stream: str, kind: Any) -> None:
        values = values_of(stream, kind, self._key)
        if (table := open_table(self.path)) is not None:
            check_schema(self.path, table, values)


class FilesPlace(WrittenPlace):
    says_itself = False

    def __init__(self, delivery: str, path: Path, format: Format) -> None:
        super().__init__(delivery, path)
        self._format = format

    def has(self, identity: str) -> int | None:
        return newest_step(self._delivery, self.path, identity)

    def check(self, folder: Path, steps: FoundSteps | None, known: DeliveredSoFar) -> None:
        if steps is None:
            return
        name, kept = self._delivery, steps.kept
        if not self.path.exists() and kept.position > destination(folder, self.path, delivered=kept.position).begins:
            raise LogError(
                f"{self.path} is missing, and delivery {name!r} has delivered to it: {ways_out(name)}; or make an empty folder there, "
                f"if what was in it is no longer needed"
            )
        if known.had is not None:
            check_not_ahead(name, self.path, known.had, kept.begun)
        has = reached(name, self.path, kept.identity)
        if has is not None and has + 1 < kept.next:
            raise LogError(
                f"{self.path} has step {has} of delivery {name!r} as its last one, but {steps.path} says that it had {kept.next - 1}: "
                f"it is from an older copy, and has lost what lies between; {ways_out(name)}"
            )

    def files(self) -> Path | None:
        return self.path / file_name(prefix_of(self._delivery, "0" * 8), 0, 0, self._format)


def place_of(delivery: Delivery) -> WrittenPlace | None:
    """None of a target that is called in the driver."""
    target = delivery.written
    if target is None:
        return None
    path = Path(target.path).absolute()
    return TablePlace(delivery.name, path, target.key) if target.format is None else FilesPlace(delivery.name, path, target.format)


def values_of(stream: str, kind: Any, key: str | None) -> Values | RowValues:
    """How records become rows: one each, or, with what the column of the key is called, one for each key."""
    return Values(stream, kind) if key is None else RowValues(stream, kind, key)
