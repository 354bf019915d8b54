"""Sources are looked at before a run changes anything."""

from __future__ import annotations

import logging
from pathlib import Path

from millstream.core.ledger import SourceProgress
from millstream.errors import LogError, MillstreamError, TopologyError, Unreachable
from millstream.injector import Injection
from millstream.sources.pieces import context_of

log = logging.getLogger("millstream")


def check_source(injection: Injection, progress: SourceProgress, folder: Path) -> None:
    """Refuse what could not be read. One that was read before and cannot be reached now is waited for once the run goes on."""
    name, source = injection.name, injection.source
    if progress.batch >= 0:
        raise LogError(
            f"injector {name!r} was read by a query of Spark's in this folder, as an older version did: it would be read again; "
            f"give it another name, or use that version"
        )
    try:
        source.check(context_of(injection, progress, folder=folder))
    except Unreachable as error:
        if not progress.positions:
            raise TopologyError(f"injector {name!r}: {source.describe()} cannot be reached: {error}") from error
        log.warning("injector %r: %s cannot be reached: %s", name, source.describe(), error)
    except MillstreamError:
        raise
    except Exception as error:
        raise TopologyError(f"injector {name!r}: {source.describe()} cannot be read: {type(error).__name__}: {error}") from error
