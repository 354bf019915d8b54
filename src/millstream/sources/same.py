"""An injector goes on with the source that it has read so far: its position means nothing in another one."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.ledger import Ledger, SourceProgress
from millstream.errors import TopologyError
from millstream.injector import Injection


def sources_of(injections: Mapping[str, Injection], ledger: Ledger) -> dict[str, str]:
    """For the first commit of a run: what its injectors read, and what those read that are not in its code now."""
    return {**ledger.plant.sources, **{name: injection.source.identity() for name, injection in injections.items()}}


def check_same(injections: Mapping[str, Injection], ledger: Ledger) -> None:
    """Refuses another source under the name of an injector that has read something. One whose input has ended reads nothing more."""
    for name, injection in injections.items():
        progress = ledger.sources.get(name, SourceProgress())
        before, now = ledger.plant.sources.get(name), injection.source.identity()
        has_read = progress.batch >= 0 or bool(progress.positions)
        if before is None or before == now or progress.finished or not has_read:
            continue
        raise TopologyError(
            f"injector {name!r} has read {before} so far, and is now given {now}, where its position means nothing; "
            f"give it another name, and it begins at the beginning there, or give it back what it had: "
            f"a folder that was moved may be linked from where it was"
        )
