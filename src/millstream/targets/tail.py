"""Where that lies which an output still lacks: in the log as far as that has it, the rest in the journal."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from millstream.core.ledger import Commit, Ledger
from millstream.journal.commits import Commits
from millstream.targets.lacking import Epoch, Place, Tail


def read_tail(commits: Commits, ledger: Ledger, delivery: str | None, *, after: int, at_most: int) -> Tail:
    """What there is for a delivery after an epoch, or for the log (None): all of it, or a beginning of `at_most` epochs.

    The log reads all that it has in the journal, which keeps it until then. A delivery reads there what the log leaves out,
    from the epoch on in which the delivery came; all else it reads in the log, as far as that is complete.
    """
    if delivery is None:
        return _read(commits, after, ledger.number, at_most, lambda commit: _for_log(commit, ledger))
    stream, since = ledger.plant.deliveries[delivery], ledger.plant.since[delivery]
    begin, end = ledger.logged, ledger.number
    if (span := ledger.next_left_out(stream, max(after, since))) is not None:
        begin = min(begin, max(since, span.after))
        end = end if span.upto is None else span.upto  # after it the log may have more

    def places(commit: Commit) -> list[Place]:
        gone = commit.number <= since and ledger.leaves_out(stream, commit.number)
        return [] if gone else commit.plain_parts(stream)

    return _read(commits, max(after, begin), end, at_most, places)


def _for_log(commit: Commit, ledger: Ledger) -> list[Place]:
    return [place for place in commit.plain_parts() if not ledger.leaves_out(place[1].stream, commit.number)]


def _read(commits: Commits, after: int, end: int, at_most: int, places_of: Callable[[Commit], list[Place]]) -> Tail:
    upto, epochs = after, list[Epoch]()
    for commit in islice(commits.span(after + 1, end), at_most):
        upto = commit.number
        if places := places_of(commit):
            epochs.append(Epoch(commit.number, places))
    return Tail(after, upto, epochs)
