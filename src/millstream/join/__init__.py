"""Records of two streams that belong together: by time, with a row as it stands, with the version that was valid then."""

from millstream.join.as_of import AsOf, Direction
from millstream.join.interval import Join, Misses
from millstream.join.lookup import Lookup
from millstream.join.sides import Left, Pair, Right

__all__ = ["AsOf", "Direction", "Join", "Left", "Lookup", "Misses", "Pair", "Right"]
