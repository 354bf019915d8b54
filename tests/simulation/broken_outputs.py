"""What log, tables, files and steps rest on (rules 15 to 17), each broken by a patch of what keeps it."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from millstream.core.ledger import Ledger, LeftOut
from millstream.mill import planner, retention
from millstream.targets import delta, files, steps
from millstream.targets.delivery import DeliveryMachine
from millstream.writer.log_output import LogOutput
from tests.simulation import deliveries
from tests.simulation.broken import Patch
from tests.writer.memory_table import MemoryTable

# Rule 15: streams that are not kept.


def free_what_a_delivery_lacks() -> list[Patch]:
    original = retention._is_free

    def is_free(segment: Any, ledger: Ledger, readers: Any) -> bool:
        return original(segment, ledger, {})

    return [(retention, "_is_free", is_free)]


def drop_commits_that_a_delivery_lacks() -> list[Patch]:
    original = retention.needed_from

    def needed_from(ledger: Ledger) -> int:
        deliveries, ledger.plant.deliveries = ledger.plant.deliveries, {}
        try:
            return original(ledger)
        finally:
            ledger.plant.deliveries = deliveries

    return [(planner, "needed_from", needed_from)]


def kept_is_what_the_code_says_now() -> list[Patch]:
    """Of what is behind, too."""
    return [
        (Ledger, "leaves_out", lambda self, stream, epoch: stream in self.plant.unkept),
        (Ledger, "next_left_out", lambda self, stream, after: LeftOut(0) if stream in self.plant.unkept else None),
    ]


def what_is_kept_again_was_always_kept() -> list[Patch]:
    """For deliveries: they read all of it in the log."""
    original = Ledger.next_left_out
    return [(Ledger, "next_left_out", lambda self, stream, after: original(self, stream, after) if stream in self.plant.unkept else None)]


def the_log_counts_before_its_sync() -> list[Patch]:
    def commit(self: MemoryTable, staged: Any, *, after: Any, to: int) -> Any:
        original = self.versions[-1]
        if original.upto != after.upto:
            return None
        self.versions.append(type(original)(to, [file.path for file in staged], durable=False))
        return type(after)(len(self.versions) - 1, to)

    return [(MemoryTable, "commit", commit)]


# Rule 16: tables.


def write_to_the_log_wherever_it_is() -> list[Patch]:
    original = LogOutput.commit

    def commit(self: LogOutput, to: int) -> int:
        self._at = self._table.position()
        return original(self, to)

    return [(LogOutput, "commit", commit)]


def write_to_a_table_wherever_it_is() -> list[Patch]:
    original = delta.DeltaOutput.commit

    def commit(self: delta.DeltaOutput, to: int) -> int:
        self._position = self._found(self._open())
        return original(self, to)

    return [(delta.DeltaOutput, "commit", commit)]


def every_writer_of_a_table_has_a_name_of_its_own() -> list[Patch]:
    """So that no two of them conflict; each goes on from where any of them was."""
    original, names = delta.DeltaOutput.__init__, count()

    def init(self: delta.DeltaOutput, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self._app = f"{self._app}/{next(names)}"

    def found(self: delta.DeltaOutput, table: Any) -> int:
        return max((version.upto for version in table._folder.versions[: table._at]), default=self._begins)

    return [(delta.DeltaOutput, "__init__", init), (delta.DeltaOutput, "_found", found)]


def a_table_counts_before_its_sync() -> list[Patch]:
    original = delta.DeltaOutput.commit

    def commit(self: delta.DeltaOutput, to: int) -> int:
        sync, delta._sync_versions = delta._sync_versions, lambda path, version: None
        try:
            return original(self, to)
        finally:
            delta._sync_versions = sync

    return [(delta.DeltaOutput, "commit", commit), (delta.DeltaOutput, "position", lambda self: self._found(self._open()))]


# Rule 17: steps.


def call_without_a_look() -> list[Patch]:
    return [(deliveries.Reading, "still_owner", lambda self: True)]


def rename_without_a_look() -> list[Patch]:
    return [(files.FilesOutput, "_check_owner", lambda self: None)]


def a_step_without_its_range() -> list[Patch]:
    original = DeliveryMachine._repeat

    def repeat(self: DeliveryMachine, step: Any) -> Any:
        return original(self, type(step)(step.number, step.after, max(step.upto, self._lacking.known)))

    return [(DeliveryMachine, "_repeat", repeat)]


def forget_the_open_step() -> list[Patch]:
    original = steps._read
    return [(steps, "_read", lambda path: msgspec.structs.replace(original(path), open=None))]
