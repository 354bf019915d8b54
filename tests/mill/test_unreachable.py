"""What is out of reach of lanes: read later, with all behind it, while the rest of its epoch counts."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.graph import Graph, compile_topology
from millstream.core.ledger import Commit
from millstream.journal.leftovers import Leftovers
from millstream.journal.names import ByLane, prefix_of
from millstream.mill.actions import Fed, Moment, Warn
from millstream.mill.messages import Work
from millstream.mill.offered import AGAIN_AFTER, Assigned, Offered
from millstream.mill.watching import troubles
from tests.conformance.scenes import Obedient, at, inject
from tests.mill.desk import Desk
from tests.mill.parted import frame, given, house, lost, offer, piece, promise, read, speak


def two_injectors() -> Graph:
    topology = ms.Topology("desk")
    topology.compute("it", Obedient()).reads(inject(topology, name="events"), inject(topology, name="others"))
    return compile_topology(topology)


def test_what_is_out_of_reach_is_read_later_with_all_behind_it_and_the_rest_of_the_epoch_counts() -> None:
    desk = Desk(two_injectors())
    desk.join(0)
    offer(desk, *(piece("a", f"a{n}") for n in range(3)), *(piece("b", f"b{n}") for n in range(2)), piece("a", "other", injector="others"))
    assert given(desk) == ["a0", "other", "b0", "a1", "b1", "a2"]
    answers = {
        "a0": read("a", 1),
        "a1": lost(),
        "a2": read("a", 3, frame("lane0", offset=2)),
        "b0": read("b", 1, frame("lane0", offset=3)),
        "b1": read("b", 2),
        "other": read("a", 7, injector="others"),
    }
    desk.report(0, read=[answers[name] for name in given(desk)])
    commit = desk.commits[-1]
    assert commit.sources["events"].positions == {"a": 1, "b": 2}
    assert commit.sources["others"].positions == {"a": 7}
    assert (commit.sources["events"].pieces, commit.sources["others"].pieces) == (3, 1)
    assert [part.offset for each in commit.frames for part in each.parts] == [3]
    desk.report(0)
    desk.tick(AGAIN_AFTER)
    assert given(desk) == ["a1", "a2"]


def test_it_is_tried_again_after_a_second_warned_of_once_and_a_trouble_until_it_is_read() -> None:
    desk = house()
    offer(desk, piece("b", "b0"))

    def said() -> list[str]:
        return [warning.message for warning in desk.asked_for(Warn)]

    def shown() -> list[str]:
        return [trouble.message for trouble in troubles(desk.planner, desk.now)]

    why = "injector 'events' waits: its source cannot be reached by lane 0: no route"
    for attempt in range(3):
        assert given(desk) == ["b0"]
        desk.report(0, read=[lost()])
        assert (len(desk.heard(0, Work)), said(), shown()) == (1 + attempt, [why], [why])
        assert not desk.planner.idle
        desk.tick(0.1)
        assert desk.planner.next_tick(desk.now) == pytest.approx(AGAIN_AFTER - 0.1)
        desk.tick(0.8)
        assert len(desk.heard(0, Work)) == 1 + attempt
        desk.tick(0.1)
    desk.report(0, read=[read("b", 1)])
    assert (said(), shown(), desk.planner.idle) == ([why], [], True)
    offer(desk, piece("b", "b1"))
    desk.report(0, read=[lost("again")])
    assert len(said()) == 2


def test_a_trouble_lasts_though_other_partitions_are_read() -> None:
    offered = Offered(1, {}, at(0))
    a, b = Assigned(0, piece("a", "a0")), Assigned(0, piece("b", "b0"))
    for _ in range(2):
        kept, news = offered.settle([(a, lost()), (b, read("b", 1))], Moment(at(0), 0.0))
        assert (len(kept), list(offered.troubles)) == (1, ["events"])
    assert news == [], "it was said the first time"
    offered.settle([(a, read("a", 1))], Moment(at(0), 0.0))
    assert offered.troubles == {}


def test_what_is_out_of_reach_holds_the_promise_and_is_not_silent() -> None:
    desk = house()
    speak(desk, a=5, c=90)
    offer(desk, piece("a", "a0"), piece("b", "b0"))
    for _ in range(30):
        desk.report(0, read=[lost() for _ in given(desk)])
        desk.tick(AGAIN_AFTER)
    speak(desk, c=95)
    assert promise(desk) == at(5)
    desk.report(0, read=[read(name[0], 1, upto=91) for name in given(desk)])
    assert promise(desk) == at(91)


# Segments.


def test_what_a_lane_has_read_does_not_close_the_segment_of_the_thread_of_its_source() -> None:
    desk = house(free_every=0.0)
    desk.feed(open_segments=["values"])
    desk.report(0)
    desk.planner.on_logged(desk.number, desk.now)
    offer(desk, piece("a", "a0"))
    desk.report(0, read=[read("a", 1, frame("lane0"))])
    desk.report(0)
    desk.planner.on_logged(desk.number, desk.now)
    desk.tick(1.0)
    assert "values" in desk.planner.ledger.segments
    desk.act(desk.planner.on_fed(Fed("events", [], {}, finished=True), desk.now))
    desk.tick(1.0)
    assert "values" not in desk.planner.ledger.segments


@pytest.mark.parametrize("kept", [True, False])
def test_a_segment_that_a_lane_writes_to_is_no_orphan_though_no_commit_names_it(kept: bool) -> None:
    """What was read behind something that was out of reach, or some of that itself, lies in it."""
    desk = house(orphaned_after=0.0)
    segment = f"{prefix_of(ByLane(0))}-1"
    offer(desk, piece("a", "a0"))
    desk.report(0, read=[lost("no route", frame(segment))])
    if not kept:  # whoever wrote it is gone
        desk.lose(0)
        desk.join(0)
    desk.planner.on_leftovers(Leftovers({segment: at(0)}), desk.now)
    desk.tick(1.0)
    desk.report(0, read=[lost("no route")])
    freed = [name for commit in _with_free(desk) for name in commit.free.segments]  # type: ignore[union-attr]
    assert freed == ([] if kept else [segment])


def _with_free(desk: Desk) -> list[Commit]:
    return [commit for commit in desk.commits if commit.free is not None]
