"""All arithmetic of low watermarks.

For every epoch, the input and output low watermarks of all computations are the greatest solution of

    input(X)  = min( promises of the injectors X reads,
                     oldest record for X that stays undelivered after this epoch,
                     output(P) for every producer P that X reads )       then never below the last input(X)
    output(P) = min( input(P), oldest record delivered to P in this epoch, P's earliest hold )

So nothing that reaches X after this epoch is below input(X): a record is late if it lies below the input low watermark
of the epoch before its own. "Greatest" makes cycles work: only injectors, pending work and holds keep one back. A low-watermark timer
always holds its own time or an earlier one, so the holds cover the timers. A record that waits in the order of event time holds its own,
so they cover what waits, too.

Only inputs are promises, and never move back. An output bounds what is on its way: a late record takes it back, and so does a hold
that is set before it, so that readers which have not come that far wait for what will be produced.

An injector that is *idle* is left out of the minimum. A computation *rests* if nothing that it reads, near or far, is active: its
own low watermark then stays, and its readers are kept back by what waits for it, what is delivered to it and what it holds,
and not by its low watermark. An input that has ended is no reason to move on either while another may speak again.

One that is *timeless* has no event time: it is left out always, and of a computation that reads others too it is as if it were not
there. One that reads nothing else rests until all of it has ended, and until then it keeps back none that has event time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from millstream.core.outline import OutlinedNode
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
    rests: bool = False  # nothing that it reads is active


class Known(NamedTuple):
    """What is known of all computations when an epoch is planned: by injector, or by computation where there is any."""

    promises: Mapping[str, Timestamp]
    undelivered: Mapping[str, Timestamp]
    delivered: Mapping[str, Timestamp]
    held: Mapping[str, Timestamp]
    idle: Collection[str] = ()  # injectors that are left out


class LowWatermark(msgspec.Struct, frozen=True, array_like=True):
    """The two low watermarks of a computation in an epoch."""

    input: Timestamp
    output: Timestamp


def input_of(known: LowWatermark | None) -> Timestamp:
    """The input low watermark of a computation, also of one that had no epoch yet."""
    return START_OF_TIME if known is None else known.input


class Solution(NamedTuple):
    """The low watermarks of computations, and up to where each lets its readers go."""

    low_watermarks: dict[str, LowWatermark]
    passed: dict[str, Timestamp]  # the output low watermark; of one that rests, what would be if its own did not stay


def solve(computations: Mapping[str, Bounds]) -> Solution:
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
    found = {}
    for name, known in computations.items():
        stays = known.last if known.rests else inputs[name]
        found[name] = LowWatermark(stays, min(stays, outputs[name]))
    return Solution(found, outputs)


class Solver:
    """Solves again and again, as epochs follow one another: only for what changed, and for what it reaches.

    Where neither a computation's own bounds nor those of anyone before it changed, its low watermarks stay. That its last
    input moved on to the solution changes nothing: the least bound is the same, and so is the greater of both.
    """

    def __init__(self, nodes: Mapping[str, OutlinedNode], timeless: Collection[str] = (), untimed: Collection[str] = ()) -> None:
        """`timeless` injectors have no event time, nor have the `untimed` computations, which read nothing else."""
        self._nodes, self._timeless, self._untimed = nodes, timeless, untimed
        self._fed_by: dict[str, list[str]] = {}  # by injector, who reads it
        self._behind: dict[str, list[str]] = {}  # by computation, who reads what it produces
        for name, node in nodes.items():
            for injector in node.injectors:
                self._fed_by.setdefault(injector, []).append(name)
            for producer in node.producers:
                self._behind.setdefault(producer, []).append(name)
        self._known: Known | None = None
        self.solution: dict[str, LowWatermark] = {}
        self._passed: dict[str, Timestamp] = {}
        self._rested: tuple[tuple[Collection[str], Collection[str]], Collection[str]] = ((), ()), ()
        self._ahead: Collection[str] = ()  # whose solution no commit had, when last looked

    def solve(self, known: Known, last: Mapping[str, LowWatermark]) -> dict[str, LowWatermark]:
        """What of the solution is not in `last`, the low watermarks of the newest commit.

        Since the call before, `last` may have taken in what that one returned, as a whole, and nothing else.
        """
        bounds = self._bounds(known, self._reached(known), last)
        solution = solve(bounds)
        self.solution.update(solution.low_watermarks)
        self._passed.update(solution.passed)
        self._known = known
        moved = {name: self.solution[name] for name in {**dict.fromkeys(self._ahead), **bounds}}
        moved = {name: lw for name, lw in moved.items() if last.get(name) != lw}
        self._ahead = moved.keys()
        return moved

    def _reached(self, known: Known) -> Collection[str]:
        """Those with another bound than before, and all behind them."""
        before = self._known
        if before is None:
            return self._nodes
        changed = [
            reader
            for injector, upto in known.promises.items()
            if before.promises.get(injector) != upto or (injector in before.idle) != (injector in known.idle)
            for reader in self._fed_by.get(injector, ())
        ]
        for now, then in ((known.undelivered, before.undelivered), (known.delivered, before.delivered), (known.held, before.held)):
            if now != then:
                changed += [name for name in {**now, **then} if now.get(name) != then.get(name)]
        return self._with_those_behind(changed)

    def _with_those_behind(self, changed: list[str]) -> Collection[str]:
        """These computations, and all that read what they produce, near or far."""
        reached = dict.fromkeys(changed)  # in an order of its own: that of hashes differs from process to process
        while changed:
            behind = [name for name in self._behind.get(changed.pop(), ()) if name not in reached]
            reached.update(dict.fromkeys(behind))
            changed += behind
        return reached

    def _all_behind(self, injectors: Collection[str]) -> Collection[str]:
        return self._with_those_behind([reader for injector in injectors for reader in self._fed_by.get(injector, ())])

    def _resting(self, known: Known) -> Collection[str]:
        """Computations whose own low watermark stays, for nothing that they read is active. Asked anew when an injector changes."""
        if not known.idle and not self._timeless:
            return ()
        standing = frozenset(known.idle), frozenset(injector for injector, upto in known.promises.items() if upto == END_OF_TIME)
        if standing != self._rested[0]:
            idle, ended = standing
            active = self._all_behind([of for of in known.promises if of not in idle and of not in ended and of not in self._timeless])
            may_speak = self._all_behind([of for of in idle if of not in ended])
            timeless = self._all_behind([of for of in self._timeless if of not in ended])
            resting = {name for name in (*may_speak, *timeless) if name not in active and (name in may_speak or name in self._untimed)}
            self._rested = standing, resting
        return self._rested[1]

    def _bounds(self, known: Known, reached: Collection[str], last: Mapping[str, LowWatermark]) -> dict[str, Bounds]:
        """Of those that are solved for; a producer that is not one of them is as good as a promise."""
        found = {}
        resting = self._resting(known)
        for name in reached:
            node = self._nodes[name]
            promised = [known.promises[of] for of in node.injectors if of not in known.idle and of not in self._timeless]
            bounding = [of for of in node.producers if not (of in self._untimed and of in resting) or name in self._untimed]
            promised += [self._passed[producer] for producer in bounding if producer not in reached]
            found[name] = Bounds(
                producers=tuple(producer for producer in bounding if producer in reached),
                promised=min(promised, default=END_OF_TIME),
                undelivered=known.undelivered.get(name, END_OF_TIME),
                delivered=known.delivered.get(name, END_OF_TIME),
                held=known.held.get(name, END_OF_TIME),
                last=input_of(last.get(name)),
                rests=name in resting,
            )
        return found


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """How far one partition of a source has come: its complete-up-to time, and when it last spoke."""

    complete: Timestamp
    heard: Timestamp


def promise(marks: Mapping[str, Mark], *, last: Timestamp, finished: bool, idle_after: Duration | None, now: Timestamp) -> Timestamp:
    """What an injector promises: the least mark of its active partitions.

    A partition silent for longer than `idle_after` is left out; if all are, the last promise stays, and the injector is idle.
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
