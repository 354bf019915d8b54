"""A topology on its way to processes that cannot import the module it was written in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from __future__ import annotations

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.spark.ship import pack




class Base(ms.Computation[int]):
    counts: ms.Output[int]

    def process_record(self, record: ms.Record[int]) -> None:
        self.state += record.value
        self.counts.produce(self.state, timestamp=record.timestamp)


class Derived(Base):
    doubles: ms.Output[int]

    def process_record(self, record: ms.Record[int]) -> None:
        super().process_record(record)
        self.doubles.produce(2 * self.state, timestamp=record.timestamp)


class Plain(Derived):
    pass


topology = ms.Topology("t")
options = {"key": str, "timestamp": lambda n: ms.Timestamp(n), "low_watermark": ms.BoundedDisorder(ms.SECOND)}
numbers = topology.inject("numbers", ms.values([], int), **options)
for name, it in {"base": Base(), "derived": Derived(), "plain": Plain()}.items():
    topology.compute(name, it).reads(numbers)


def packed():
    return pack(compile_topology(topology))
"""

READER = """
import sys
from millstream.spark.ship import unpack

graph = unpack(sys.stdin.read())
assert "written_by_a_user" not in sys.modules
for name, node in sorted(graph.nodes.items()):
    print(name, *sorted(type(node.computation)._outputs), node.computation.state_type().__name__)
"""


def test_computations_that_extend_one_another_travel_by_value(tmp_path: Path) -> None:
    (tmp_path / "written_by_a_user.py").write_text(PROGRAM)
    write = "import written_by_a_user; print(written_by_a_user.packed())"
    packed = subprocess.run([sys.executable, "-c", write], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    read = subprocess.run([sys.executable, "-c", READER], cwd=tmp_path.parent, input=packed, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    assert read.stdout.splitlines() == ["base counts int", "derived counts doubles int", "plain counts doubles int"]
