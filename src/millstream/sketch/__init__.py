"""Aggregates that are nearly right in little room: `sketch.distinct(lambda click: click.user)`. Needs `millstream[sketches]`."""

from millstream.sketch.membership import Members, membership
from millstream.sketch.sketches import distinct, frequent, quantile

__all__ = ["Members", "distinct", "frequent", "membership", "quantile"]
