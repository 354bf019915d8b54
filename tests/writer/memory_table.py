"""The log's table in memory, for simulations: what a writer needs of it, and a power that can be lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millstream.log.history import At, StagedFile
from millstream.log.rows import Rows
from millstream.timestamp import Timestamp

Found = tuple[int, str, int, int, str, bytes, Timestamp]  # epoch, origin, major, minor, key, value, timestamp


@dataclass
class _Version:
    upto: int
    files: list[str]
    durable: bool = True


@dataclass
class MemoryTable:
    """Satisfies `HistoryTable`. `on_step` is called before each step and may raise: the process is killed there."""

    versions: list[_Version] = field(default_factory=lambda: [_Version(0, [])])
    files: dict[str, tuple[str, list[Found]]] = field(default_factory=dict)
    on_step: Callable[[str], None] = lambda what: None

    def position(self) -> At:
        self.on_step("sync")
        for version in self.versions:
            version.durable = True
        return At(len(self.versions) - 1, self.versions[-1].upto)

    def stage(self, stream: str, rows: Rows) -> StagedFile:
        self.on_step("stage")
        path = f"{len(self.files)}"
        self.files[path] = stream, found_in(rows)
        first, last = rows.epochs
        return StagedFile(path, stream, len(rows), len(rows), first, last, min(rows.timestamps), max(rows.timestamps))

    def commit(self, staged: Sequence[StagedFile], *, after: At, to: int) -> At | None:
        self.on_step("create")
        if self.versions[-1].upto != after.upto:
            return None
        self.versions.append(_Version(to, [file.path for file in staged], durable=False))
        made = At(len(self.versions) - 1, to)
        self.on_step("sync")
        for version in self.versions:
            version.durable = True
        self.on_step("say")
        return made

    def discard(self, staged: Sequence[StagedFile]) -> None:
        named = {path for version in self.versions for path in version.files}
        for file in staged:
            assert file.path not in named, "a file of the table was thrown away"

    def maintain(self) -> None:
        """A version comes that changes no record."""
        self.versions.append(_Version(self.versions[-1].upto, []))

    def lose_power(self) -> None:
        while not self.versions[-1].durable:
            self.versions.pop()

    def found(self, stream: str) -> list[Found]:
        """The records of a stream in order."""
        files = [self.files[path] for version in self.versions for path in version.files]
        return sorted(found for name, records in files for found in records if name == stream)


def found_in(rows: Rows) -> list[Found]:
    heads = [(s.epoch, s.origin, s.major) for s in rows.sources for _ in range(s.count)]
    rest = zip(rows.minors, rows.keys, rows.values, rows.timestamps, strict=True)
    return [(*head, *each) for head, each in zip(heads, rest, strict=True)]
