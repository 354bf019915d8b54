"""Tables as a topology delivers them: what is refused while it is being built."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from tests.conformance.scenes import inject


class Table(ms.Computation[int]):
    changes: ms.Output[ms.Change[int]]
    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Any]) -> None: ...


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def topology(table: Table) -> ms.Topology:
    topology = ms.Topology("tables")
    topology.compute("table", table).reads(inject(topology))
    return topology


def test_only_changes_are_rows(topology: ms.Topology, table: Table) -> None:
    topology.deliver("rows", table.changes, ms.delta_rows("rows"))
    topology.deliver("history", table.changes, ms.delta("history"))
    with pytest.raises(
        ms.TopologyError,
        match=r"delivery 'counts': the target keeps the rows of a table, and the stream carries int; give it a stream of ms\.Change, "
        r"or deliver every record with ms\.delta",
    ):
        topology.deliver("counts", table.counts, ms.delta_rows("counts"))  # type: ignore[arg-type]
    assert list(topology.deliveries) == ["rows", "history"]


@pytest.mark.parametrize("other", [ms.delta("here/"), ms.delta_rows("./here"), ms.to_files("here")])
def test_rows_have_a_place_of_their_own(topology: ms.Topology, table: Table, other: Any) -> None:
    topology.deliver("rows", table.changes, ms.delta_rows("here"))
    with pytest.raises(ms.TopologyError, match="deliveries 'rows' and 'other' go to the same place, and one keeps rows there"):
        topology.deliver("other", table.changes, other)
    topology.deliver("elsewhere", table.changes, ms.delta_rows("there"))
