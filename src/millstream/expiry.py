"""State entries that carry a timestamp: merged into coarser ones as they grow old, and gone in the end."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Duration, Timestamp, floor

V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class Expiry(Generic[V]):
    """For a computation that keeps a `dict[ms.Timestamp, V]`: what becomes of its entries as the low watermark leaves them behind.

    `after` is how long they are kept. `roll_up={age: span}` merges those of one span into one, with `merge`, once the low
    watermark is past the span by `age`. A span goes as a whole, so ages count from its end. `merge` must not depend on the
    order, nor on what was merged before: sums, counts, minima and maxima do not.
    """

    after: Duration | None = None
    roll_up: Mapping[Duration, Duration] = field(default_factory=dict[Duration, Duration])
    merge: Callable[[V, V], V] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.roll_up, Mapping):
            raise TopologyError(f"Expiry: roll_up is {self.roll_up!r}; give {{age: span}}, such as {{ms.HOUR: ms.MINUTE}}")
        steps = list(self.roll_up.items())
        spans = [span for _, span in steps]
        if self.after is None and not steps:
            raise TopologyError("Expiry: nothing would expire; say after=, roll_up= or both")
        for span in (*([] if self.after is None else [self.after]), *self.roll_up, *spans):
            if type(span) is not int:  # type: ignore[comparison-overlap]
                raise TopologyError(f"Expiry: {span!r} is not a ms.Duration; write it as 5 * ms.MINUTE, or with ms.to_duration(...)")
        for span in (*([] if self.after is None else [self.after]), *self.roll_up, *spans):
            if span > arguments.LONGEST:
                raise TopologyError(f"Expiry: {int(span)} is more than a thousand years; leave it out to keep for ever")
        if any(int(age) < 0 for age in self.roll_up):
            raise TopologyError("Expiry: the ages of roll_up must not be negative")
        if any(int(span) <= 0 for span in (*spans, *([self.after] if self.after is not None else []))):
            raise TopologyError("Expiry: after and the spans of roll_up must be positive")
        if any(later <= earlier for earlier, later in itertools.pairwise(self.roll_up)):
            raise TopologyError("Expiry: the ages of roll_up grow; write the youngest first")
        if any(int(wide % narrow) or wide <= narrow for narrow, wide in itertools.pairwise(spans)):
            raise TopologyError("Expiry: each span of roll_up is made of whole ones of the span before it")
        if self.merge is not None and not callable(self.merge):
            raise TopologyError(f"Expiry: merge is {self.merge!r}; give a function that makes one value of two")
        if self.merge is not None:
            arguments.function("Expiry: merge", self.merge, "one value", "another")
        if steps and self.merge is None:
            raise TopologyError("Expiry: roll_up needs merge=, a function that makes one value of two")
        if steps and self.after is not None and self.after < steps[-1][0]:
            raise TopologyError("Expiry: what is gone cannot be rolled up; after is at least the last age of roll_up")

    def expire(self, entries: dict[Timestamp, V], low_watermark: Timestamp) -> Timestamp:
        """Merge and drop what is old enough; returns the low watermark at which there is more to do."""
        more = END_OF_TIME
        widest = max(self.roll_up.values(), key=int, default=None)
        for at in sorted(entries, key=int):
            if type(at) is not int:  # type: ignore[comparison-overlap]
                raise TypeError(f"{at!r} is not a ms.Timestamp")
            into = at
            for age, span in self.roll_up.items():
                start = floor(at, span)
                if low_watermark < start + span + age:
                    more = min(more, start + span + age, key=int)
                    break
                into = max(start, START_OF_TIME, key=int)
            end = at if widest is None else floor(at, widest) + widest
            if self.after is not None and end + self.after <= low_watermark:
                del entries[at]
                continue
            if self.after is not None:
                more = min(more, end + self.after, key=int)
            if into != at:
                assert self.merge is not None
                value = entries.pop(at)
                entries[into] = self.merge(entries[into], value) if into in entries else value
        return more


def check_expiry(where: str, expiry: Any, kept: Any) -> None:
    """Entries with a timestamp are what a dictionary by `ms.Timestamp` holds."""
    if expiry is None:
        return
    if not isinstance(expiry, Expiry):
        raise TopologyError(f"{where}: expiry is {expiry!r}; give a ms.Expiry(...)")
    if typing.get_origin(kept) is not dict or typing.get_args(kept)[0] is not Timestamp:
        raise TopologyError(f"{where}: it has an expiry, but keeps {kept}; entries that expire are a dict[ms.Timestamp, ...]")
