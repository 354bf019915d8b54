"""What a run has to know before it begins: what its code has, and which changed rows its lanes may lack."""

from __future__ import annotations

from millstream.core.ledger import Ledger, Plant
from millstream.core.outline import Outline
from millstream.journal.commits import Commits
from millstream.mill.messages import Redo


def plant_of(outline: Outline, *, buckets: int, lanes: int) -> Plant:
    """What the first commit of a run says of its code."""
    return Plant(
        computations=list(outline.nodes),
        injectors=list(outline.injectors),
        deliveries=outline.deliveries,
        unkept=outline.unkept,
        buckets=buckets,
        lanes=lanes,
    )


def rows_to_redo(commits: Commits, ledger: Ledger, *, lanes: int) -> dict[int, list[Redo]]:
    """For each lane, the changed rows that no checkpoint has for sure."""
    found: dict[int, list[Redo]] = {lane: [] for lane in range(lanes)}
    after = {lane: number for lane in found if (number := ledger.redo_after(lane)) is not None}
    if after:
        for commit in commits.span(min(after.values()) + 1, ledger.number):
            for frame in commit.frames:
                if frame.rows is not None and frame.lane in after and commit.number > after[frame.lane]:
                    found[frame.lane].append(Redo(commit.number, frame.segment, frame.rows))
    return found
