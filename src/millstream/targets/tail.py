"""What an output still lacks: from the log as far as that has it, then from the journal."""

from __future__ import annotations

from itertools import islice

from millstream.core.ledger import Ledger
from millstream.journal.commits import Commits
from millstream.targets.delivery import Epoch, Tail


def read_tail(commits: Commits, ledger: Ledger, stream: str | None, *, after: int, since: int = 0, at_most: int) -> Tail:
    """What there is of a stream after an epoch, all of it or a beginning of `at_most` epochs; None means all streams.

    The log itself reads everything from the journal, which keeps it until then, and so does an output of a stream that is not
    kept, from the epoch `since` where it began. Of a kept stream the log has the history.
    """
    begin = after
    if stream is not None:
        begin = max(after, since if stream in ledger.plant.unkept else ledger.logged)
    upto, epochs = begin, list[Epoch]()
    for commit in islice(commits.span(begin + 1, ledger.number), at_most):
        upto = commit.number
        if places := commit.plain_parts(stream):
            epochs.append(Epoch(commit.number, places))
    return Tail(begin, upto, epochs)
