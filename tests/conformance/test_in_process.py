"""The stage in this process goes through what it is there for: checkpoints, merged commits, redo, parts for the other lane."""

from __future__ import annotations

import millstream as ms
from millstream.core.ledger import Commit
from millstream.journal.commits import Commits
from millstream.mill.beginning import rows_to_redo
from tests.conformance.in_process import LANES, InProcessStage
from tests.conformance.scenes import Event, Obedient, Relay, at, inject, said


def commits_of(stage: InProcessStage) -> list[Commit]:
    return list(Commits(stage.disk).span(1, stage.ledger().number))


def test_lanes_checkpoint_join_again_and_redo_the_rest() -> None:
    topology = ms.Topology("scene")
    events, it, relay = inject(topology), Obedient(), Relay()
    topology.compute("it", it).reads(events)
    topology.compute("relay", relay).reads(it.said.by(lambda word: word[-1]))
    stage = InProcessStage(topology)
    for second in range(12):
        stage.send(events, *(Event(f"k{number}", second, "x") for number in range(6)))
    stage.advance(low_watermark=at(3))
    commits = commits_of(stage)
    assert stage.checkpoints > LANES
    assert set(stage.ledger().checkpoints) == set(range(LANES))
    assert Commits(stage.disk).newest_snapshot() > 0
    assert any(frame.lane != part.lane for commit in commits for frame in commit.frames if frame.lane >= 0 for part in frame.parts)
    before = said(stage, relay.passed)
    stage.send(events, Event("k0", 20, "y"))  # changes rows after the last checkpoint of a lane
    assert any(rows_to_redo(Commits(stage.disk), stage.ledger(), lanes=LANES).values())
    stage.crash()
    stage.send(events, *(Event(f"k{number}", 21, "z") for number in range(6)))
    assert [word for key, word in said(stage, it.said) if key == "k0"][-2:] == ["y 13", "z 14"]
    assert len(said(stage, relay.passed)) == len(before) + 7
