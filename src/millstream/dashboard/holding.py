"""What holds a low watermark back, in words: followed from a computation to whoever is behind it all."""

from __future__ import annotations

import msgspec

from millstream.core.ledger import Ledger, Minimum
from millstream.core.low_watermark import LowWatermark
from millstream.core.parts import injector_of
from millstream.dashboard.picture import COMPUTATION, INJECTOR
from millstream.mill.messages import KeptKey
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Timestamp, describe

SOMETHING = "a key"
_UNKNOWN = LowWatermark(START_OF_TIME, START_OF_TIME)


class Hold(msgspec.Struct, frozen=True, omit_defaults=True):
    """What holds a low watermark back, in words, and who that is: the id of a box of the picture, empty if nobody is known."""

    words: str
    by: str = ""
    holder: str = ""  # the computation of which a key does, if it is one; which key, only the run knows


def with_key(hold: Hold, kept: KeptKey) -> Hold:
    """The same, with the key that the run has told."""
    what = "a record that waits" if kept.waits else "a timer"
    words = hold.words.replace(f"{SOMETHING} of", f"key {kept.key!r} of").replace("a timer or a waiting record", what)
    return msgspec.structs.replace(hold, words=words)


def held_back(ledger: Ledger, computation: str) -> Hold | None:
    """One sentence; None if the computation is at the end of time."""
    at = ledger.low_watermarks.get(computation, _UNKNOWN).input
    if at == END_OF_TIME:
        return None
    cause = _cause(ledger, computation, set())
    if cause is None:
        return Hold(f"{describe(at)}: nothing that it reads has said how far it is")
    return Hold(f"{describe(at)}, because {cause.words}", cause.by, cause.holder)


def furthest_behind(ledger: Ledger) -> str:
    """The computation with the least low watermark of those that have event time; empty if all are at the end of time."""
    timed = [name for name in ledger.plant.computations if name not in ledger.plant.untimed]
    at = {name: ledger.low_watermarks.get(name, _UNKNOWN).input for name in timed}
    return min((name for name in timed if at[name] < END_OF_TIME), key=lambda name: at[name], default="")


def _cause(ledger: Ledger, name: str, seen: set[str]) -> Hold | None:
    """Whatever is furthest behind of all that a computation waits for, followed through those who wait themselves."""
    seen.add(name)
    at = ledger.low_watermarks.get(name, _UNKNOWN).input
    if (oldest := _oldest_waiting(ledger, name)) is not None and oldest <= at:
        return Hold(f"a record of that time waits for {name!r}", f"{COMPUTATION} {name}")
    streams = {read.stream for reader, read in ledger.readers.items() if reader.partition(" ← ")[0] == name}
    injectors = {s for s in streams if s in ledger.plant.injectors and s not in ledger.idle and s not in ledger.plant.timeless}
    producers = {s.rpartition(".")[0] for s in streams if s not in ledger.plant.injectors}
    bounds = {each: ledger.promises.get(each, START_OF_TIME) for each in sorted(injectors)}
    outputs = {each: ledger.low_watermarks.get(each, _UNKNOWN).output for each in sorted(producers - set(ledger.plant.untimed))}
    least = min([*bounds.values(), *outputs.values()], default=END_OF_TIME)
    if slowest := [each for each, bound in bounds.items() if bound == least]:
        return Hold(_injector(ledger, slowest[0], least), f"{INJECTOR} {slowest[0]}")
    behind = [each for each, bound in outputs.items() if bound == least]
    for each in behind:
        if Minimum(ledger.reports.get(each, {})).all.hold <= least < END_OF_TIME:
            return Hold(f"{SOMETHING} of {each!r} has a timer or a waiting record there", f"{COMPUTATION} {each}", each)
    return next(filter(None, (_cause(ledger, each, seen) for each in behind if each not in seen)), None)


def _injector(ledger: Ledger, name: str, promise: Timestamp) -> str:
    if promise == START_OF_TIME:
        return f"injector {name!r} has promised nothing yet"
    marks = ledger.sources[name].marks if name in ledger.sources else {}
    slowest = [partition for partition, mark in marks.items() if partition and mark.complete <= promise]
    if slowest:
        more = f" and {len(slowest) - 1} more" if len(slowest) > 1 else ""
        return f"partition {slowest[0]!r}{more} of injector {name!r} is there"
    return f"injector {name!r} promises no more"


def _oldest_waiting(ledger: Ledger, name: str) -> Timestamp | None:
    """Of the records that no epoch has taken and that this computation reads."""
    plain = {r.stream for reader, r in ledger.readers.items() if reader.partition(" ← ")[0] == name and not r.rekeyed}
    oldest = [
        part.oldest
        for parts in ledger.waiting.values()
        for _, part in parts.values()
        if (part.reader.partition(" ← ")[0] == name if part.reader else part.stream in plain)
        and injector_of(part.origin) not in ledger.plant.timeless
    ]
    return min(oldest, default=None)
