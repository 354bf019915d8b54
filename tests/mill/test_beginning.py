"""What a run finds in its ledger before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from millstream.core.epoch import BucketReport, Summary
from millstream.core.graph import Graph, compile_topology
from millstream.core.ledger import Commit, Ledger
from millstream.core.row import Minima
from millstream.errors import TopologyError
from millstream.log.folder import Folder, Pinned
from millstream.mill.beginning import check_holds, check_order
from millstream.spark.milling import RunJournal
from tests.conformance.scenes import InOrder, Obedient, inject


def graph(*, cycle: bool) -> Graph:
    topology, it = ms.Topology("beginning"), Obedient()
    events = inject(topology)
    topology.compute("it", it).reads(*([events, it.late] if cycle else [events]))
    return compile_topology(topology)


def ledger(**minima: int) -> Ledger:
    found = Minima(**{clock: ms.Timestamp(at) for clock, at in minima.items()})
    return Ledger(reports={"it": {0: BucketReport(Minima(), 0, 0), 3: BucketReport(found, 1, 1)}})


def test_a_timer_that_would_wait_for_itself_now_is_refused_at_the_start() -> None:
    with pytest.raises(
        TopologyError, match=r"^computation 'it' is on a cycle now, .* at 1970-01-01T00:00:00.000005Z.* take it off the cycle"
    ):
        check_holds(graph(cycle=True), ledger(low_watermark=8, hold=5))


@pytest.mark.parametrize("minima", [{}, {"low_watermark": 8, "hold": 8}, {"low_watermark": 5, "hold": 8}, {"wall": 9, "hold": 5}])
def test_any_other_is_not(minima: dict[str, int]) -> None:
    check_holds(graph(cycle=True), ledger(**minima))


def test_nor_is_one_off_a_cycle() -> None:
    check_holds(graph(cycle=False), ledger(low_watermark=8, hold=5))


def test_the_start_of_a_run_looks_for_it(tmp_path: Path) -> None:
    folder, pinned = Folder(tmp_path), Pinned("beginning", "id", str(tmp_path), buckets=4, lanes=1)
    folder.open()
    journal = RunJournal(folder, graph(cycle=False), pinned)
    journal.check()
    claimed = journal.claim(ms.Timestamp(1))
    reports = {"it": BucketReport(Minima(ms.Timestamp(8), hold=ms.Timestamp(5)), 1, 1)}
    assert journal.commits.create(Commit(2, "2", claimed.id, 1, ms.Timestamp(2), summaries=[Summary(0, reports, {})]))
    journal.check()
    with pytest.raises(TopologyError, match=r"^computation 'it' is on a cycle now"):
        RunJournal(folder, graph(cycle=True), pinned).check()


def in_order(it: Obedient) -> Graph:
    topology = ms.Topology("beginning")
    topology.compute("it", it).reads(inject(topology))
    return compile_topology(topology)


def test_an_order_that_is_given_up_while_records_wait_is_refused_at_the_start(tmp_path: Path) -> None:
    waits = Ledger(reports={"it": {0: BucketReport(Minima(), 0, 0), 3: BucketReport(Minima(), 1, 1, waiting=1_200)}})
    with pytest.raises(
        TopologyError, match=r"^computation 'it' has no order = ms.Order.EVENT_TIME any more, and 1,200 of its records wait"
    ):
        check_order(in_order(Obedient()), waits)
    check_order(in_order(InOrder()), waits)
    check_order(in_order(Obedient()), ledger())
    folder, pinned = Folder(tmp_path), Pinned("beginning", "id", str(tmp_path), buckets=4, lanes=1)
    folder.open()
    journal = RunJournal(folder, in_order(InOrder()), pinned)
    claimed = journal.claim(ms.Timestamp(1))
    assert journal.commits.create(
        Commit(2, "2", claimed.id, 1, ms.Timestamp(2), summaries=[Summary(0, {"it": waits.reports["it"][3]}, {})])
    )
    journal.check()
    with pytest.raises(TopologyError, match=r"^computation 'it' has no order"):
        RunJournal(folder, in_order(Obedient()), pinned).check()
