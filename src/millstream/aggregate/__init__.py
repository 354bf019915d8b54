"""Many records as one value: `aggregate.sum(lambda order: order.price)`. What windows, rolling spans and groups are made with."""

from millstream.aggregate.factories import collect, combine, count, first, last, max, mean, min, rate, stddev, sum  # noqa: A004 (used as aggregate.sum)
from millstream.aggregate.protocol import Aggregate, EmptySpan, Reversible, Span

__all__ = [
    "Aggregate",
    "EmptySpan",
    "Reversible",
    "Span",
    "collect",
    "combine",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "rate",
    "stddev",
    "sum",
]
