"""How a run begins: what its code has, its first commit, and which changed rows its lanes may lack."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from millstream.core.graph import Graph
from millstream.core.ledger import Commit, Ledger, Plant, SourceChange, SourceProgress
from millstream.core.outline import Outline
from millstream.core.planning import readers_of
from millstream.errors import TopologyError
from millstream.journal.commits import Commits
from millstream.mill.actions import Moment
from millstream.mill.messages import Redo
from millstream.timestamp import END_OF_TIME, describe


def plant_of(outline: Outline, *, buckets: int, lanes: int) -> Plant:
    """What the first commit of a run says of its code."""
    return Plant(
        computations=list(outline.nodes),
        injectors=[name for name in outline.injectors if name not in outline.histories],
        deliveries=outline.deliveries,
        unkept=outline.unkept,
        timeless=outline.timeless,
        untimed=outline.untimed,
        buckets=buckets,
        lanes=lanes,
    )


def check_order(graph: Graph, ledger: Ledger) -> None:
    """Records that were put off until their time come with the order of event time, and with no other: nobody would look for them."""
    for name, node in graph.nodes.items():
        waiting = sum(report.waiting for report in ledger.reports.get(name, {}).values())
        if waiting and not node.in_event_time:
            raise TopologyError(
                f"computation {name!r} has no order = ms.Order.EVENT_TIME any more, and {waiting:,} of its records wait for their "
                f"time. Run the code as it was until none waits (`millstream status` says how many do), or give it another name"
            )


def check_holds(graph: Graph, ledger: Ledger) -> None:
    """A timer that was set while its computation was on no cycle may hold a time before its own: on one it would wait for itself.

    A hold that may be a wall-clock timer's is let be: that one fires by its own clock.
    """
    for name, node in graph.nodes.items():
        if not node.on_cycle:
            continue
        for report in ledger.reports.get(name, {}).values():
            kept = report.minima
            if kept.hold < kept.low_watermark and kept.wall == END_OF_TIME:
                raise TopologyError(
                    f"computation {name!r} is on a cycle now, and a timer kept from before holds the low watermark at "
                    f"{describe(kept.hold)}, before its own time: it would wait for itself. Run the code as it was until such timers "
                    f"have fired, or take it off the cycle"
                )


def check_since(graph: Graph, ledger: Ledger) -> None:
    """Who has worked before would get the history of a further stream late. One that has had it, and was away, goes on; one that was
    taken out before it had it has lost what waited for it, and so has one whose parts become others."""
    for read in (read for read in graph.inputs if read.from_oldest):
        name, stream = read.computation, read.stream.name
        known, source = ledger.readers.get(read.reader), ledger.sources.get(read.history, SourceProgress())
        if known is not None and read.history in ledger.readers and not source.finished and known.rekeyed != read.rekeyed:
            raise TopologyError(
                f"computation {name!r} has not got all of the history of {stream!r} yet, and by(...) was added or taken away: what waits "
                f"would be lost. Change it when the history is read (`millstream status` says so), or give the computation another name"
            )
        if known is not None:
            continue
        if name in ledger.worked and not source.finished:
            raise TopologyError(
                f"computation {name!r} has run before, so it cannot begin with the oldest record of {stream!r}: what that "
                f"stream had is older than its low watermark. Give it another name, or leave out since="
            )
        if name not in ledger.worked and source.positions:
            raise TopologyError(
                f"computation {name!r} was taken out of the code before it had the history of {stream!r}, and what waited for it is "
                f"gone. Give it another name, or leave out since="
            )


def without_history(outline: Outline, ledger: Ledger) -> dict[str, SourceChange]:
    """For the first commit of a run: the histories that there is nothing of. Their readers are known already, or the stream is new."""
    return {
        name: SourceChange(finished=True)
        for name, history in outline.histories.items()
        if name not in ledger.readers
        and not _is_finished(name, ledger)
        and (history.reader in ledger.readers or history.stream not in ledger.latest)
    }


def _is_finished(history: str, ledger: Ledger) -> bool:
    return history in ledger.sources and ledger.sources[history].finished


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


def first_commit(outline: Outline, ledger: Ledger, *, fence: int, plant: Plant, id_: str, at: Moment, anew: Collection[str] = ()) -> Commit:
    """What a run says before it does anything: it owns the folder now, and this is its code (rule 1). `anew` are deliveries that
    begin once more, as if they had never been there."""
    number = ledger.number + 1
    since = {name: number if name in anew else _begins(name, stream, ledger) for name, stream in plant.deliveries.items()}
    return Commit(
        number=number,
        id=id_,
        before=ledger.id,
        fence=fence,
        now=max(ledger.now, at.clock),
        idle=[] if ledger.idle else None,  # nobody has listened in this run
        readers=readers_of(outline, ledger.readers, since=number + 1),
        sources=without_history(outline, ledger),
        delivered={name: None for name in ledger.delivered if name not in plant.deliveries or name in anew},
        plant=msgspec.structs.replace(plant, since=since),
    )


def _begins(delivery: str, stream: str, ledger: Ledger) -> int:
    """Of what the log leaves out, a delivery gets what comes from now on if it is new: what was before may be gone."""
    known = ledger.plant
    return known.since.get(delivery, 0) if known.deliveries.get(delivery) == stream else ledger.number + 1
