"""All arithmetic of low watermarks.

For every epoch, the input and output low watermarks of all computations are the greatest solution of

    input(X)  = min( promises of the injectors X reads,
                     oldest record for X that stays undelivered after this epoch,
                     output(P) for every producer P that X reads )       then never below the last input(X)
    output(P) = min( input(P), oldest record delivered to P in this epoch, P's earliest hold )

So nothing that reaches X after this epoch is below input(X): a record is late if it lies below the input low watermark
of the epoch before its own. "Greatest" makes cycles work: only injectors, pending work and holds keep one back. A low-watermark timer
always holds its own time or an earlier one, so the holds cover the timers.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.timestamp import END_OF_TIME, MICROSECOND, START_OF_TIME, Duration, Timestamp


def advance(current: Timestamp, *bounds: Timestamp) -> Timestamp:
    """The least bound, but never behind `current`: a low watermark is a promise."""
    return max(current, min(bounds, default=END_OF_TIME))


class Bounds(msgspec.Struct, frozen=True):
    """What is known of one computation when an epoch is planned."""

    producers: tuple[str, ...]
    promised: Timestamp  # the least promise of the injectors it reads
    undelivered: Timestamp  # the oldest record for it that this epoch leaves waiting
    delivered: Timestamp  # the oldest record that this epoch brings to it
    held: Timestamp  # the earliest hold of its keys
    last: Timestamp = START_OF_TIME  # its input low watermark in the epoch before


class LowWatermark(msgspec.Struct, frozen=True, array_like=True):
    """The two low watermarks of a computation in an epoch."""

    input: Timestamp
    output: Timestamp


def solve(computations: Mapping[str, Bounds]) -> dict[str, LowWatermark]:
    """The greatest solution, found from above: all start at the end of time and are lowered until none changes."""
    outputs = dict.fromkeys(computations, END_OF_TIME)
    inputs = dict.fromkeys(computations, END_OF_TIME)
    changed = True
    while changed:
        changed = False
        for name, known in computations.items():
            inputs[name] = advance(known.last, known.promised, known.undelivered, *(outputs[producer] for producer in known.producers))
            lowered = min(inputs[name], known.delivered, known.held)
            if lowered < outputs[name]:
                outputs[name], changed = lowered, True
    return {name: LowWatermark(inputs[name], outputs[name]) for name in computations}


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """How far one partition of a source has come: its complete-up-to time, and when it last spoke."""

    complete: Timestamp
    heard: Timestamp


def promise(marks: Mapping[str, Mark], *, last: Timestamp, finished: bool, idle_after: Duration | None, now: Timestamp) -> Timestamp:
    """What an injector promises: the least mark of its active partitions.

    A partition silent for longer than `idle_after` is left out; if all are, the last promise stays.
    An injector that has committed nothing promises the start of time.
    """
    if finished:
        return END_OF_TIME
    active = (mark for mark in marks.values() if not is_idle(mark, idle_after, now))
    return max(last, min((mark.complete for mark in active), default=last))


def next_idle(marks: Mapping[str, Mark], *, idle_after: Duration | None, now: Timestamp) -> Timestamp:
    """When the first partition that is active now will be idle, if it stays silent."""
    if idle_after is None:
        return END_OF_TIME
    active = (mark.heard for mark in marks.values() if not is_idle(mark, idle_after, now))
    return min((heard + idle_after + MICROSECOND for heard in active), default=END_OF_TIME)


def is_idle(mark: Mark, idle_after: Duration | None, now: Timestamp) -> bool:
    return idle_after is not None and now - mark.heard > idle_after
