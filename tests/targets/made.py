"""The folder of a run as it was left, with what it delivers beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.core.graph import Graph, compile_topology
from millstream.core.ledger import Commit
from millstream.log.folder import Folder, Pinned
from millstream.mill.beginning import plant_of
from millstream.spark.milling import RunJournal
from millstream.targets.belonging import Destination, keep_destination
from millstream.targets.delta import DeltaOutput
from millstream.targets.steps import Steps, find_steps
from millstream.targets.typed import Values
from millstream.timestamp import Timestamp
from tests.conformance.scenes import inject
from tests.log.made import local

TARGETS: dict[str, Any] = {"function": ms.function(lambda step, records: None), "console": ms.console()}


class Made:
    """A folder of a run: nine commits; the log has seven of them, and so have the deliveries, as commits say. They have eight by now."""

    def __init__(self, at: Path) -> None:
        self.at, self.folder = at, Folder(at / "mill")
        topology = ms.Topology("checked")
        stream = inject(topology)
        targets = {**TARGETS, "files": ms.to_files(str(at / "files")), "table": ms.delta(str(at / "table"))}
        for name, target in targets.items():
            topology.deliver(name, stream, target)
        self.graph: Graph = compile_topology(topology)
        self.journal = RunJournal(self.folder, self.graph, Pinned("checked", "id", str(self.folder.path), 4, 1))
        self.journal.commits.make_folders()
        plant = plant_of(self.graph.outline, buckets=4, lanes=1)
        for number in range(1, 10):
            said = {"logged": 7, "delivered": dict.fromkeys(targets, 7)} if number == 9 else {}
            commit = Commit(number, f"c{number}", f"c{number - 1}" if number > 1 else "", 1, Timestamp(0), **said)  # type: ignore[arg-type]
            commit.plant = plant if number == 1 else None
            assert self.journal.commits.create(commit)
        local(self.folder.log).grow(*range(1, 9))
        for name in targets:
            self.steps(name, 8 if name != "table" else 0)
        (at / "files").mkdir()
        self.table(8)
        for name in ("files", "table"):
            keep_destination(self.folder.delivery(name), Destination(str(at / name), 0))

    def values(self) -> Values:
        stream = self.graph.stream_of(self.graph.deliveries["table"].stream)
        return Values(stream.name, stream.value_type)

    def table(self, upto: int) -> None:
        """The delivered table, made anew."""
        path, steps = self.at / "table", find_steps(self.folder.delivery("table"))
        assert steps is not None
        shutil.rmtree(path, ignore_errors=True)
        output = DeltaOutput("table", str(path), self.values(), identity=steps.kept.identity, begins=0)
        output.position()
        output.commit(upto)

    def steps(self, name: str, position: int, *, open: int | None = None) -> None:
        for file in self.folder.delivery(name).glob("0*"):
            file.unlink()
        steps = Steps(self.folder.delivery(name), fence=1)
        steps.skip(position)
        if open is not None:
            steps.begin(position, open)
        steps.close()

    def anew(self, *deliveries: str) -> RunJournal:
        return RunJournal(self.folder, self.graph, self.journal.pinned, anew=deliveries)

    def files(self) -> dict[str, bytes]:
        return {str(file.relative_to(self.at)): file.read_bytes() for file in self.at.rglob("*") if file.is_file()}

    def folders(self) -> set[Path]:
        return {path for path in self.at.rglob("*") if path.is_dir()}
