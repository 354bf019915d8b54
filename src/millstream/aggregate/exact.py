"""Sums of floats without rounding on the way: the same whatever the order, and what was added can be taken out again.

A sum is a list of floats that do not overlap, whose exact sum it is (Shewchuk 1997, as in `math.fsum`). There are seldom more
than six of them; never more than 40.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from numbers import Real

MOST = 1e150  # beyond, a square overflows
_SPLITTER = 134217729.0  # 2**27 + 1


def finite(number: float) -> float:
    """A number as a float; refuses what would spoil a sum for good, and has no place in JSON; and text, though it may be of digits."""
    if number.__class__ is not float and not isinstance(number, Real | Decimal):
        raise TypeError(f"{number!r} is not a number; give one, such as float(...) makes of text")
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(f"{number!r} is not a finite number; leave it out, or give another in its place")
    return found


def check_finite(number: object) -> None:
    """Refuse a float or a decimal that is no finite number; all else is finite, or compares as it likes."""
    if isinstance(number, float | Decimal) and not (number.is_finite() if isinstance(number, Decimal) else math.isfinite(number)):
        raise ValueError(f"{number!r} is not a finite number; leave it out, or give another in its place")


def add(parts: list[float], number: float) -> None:
    """Add a finite number."""
    kept = 0
    for part in parts:
        if abs(number) < abs(part):
            number, part = part, number
        high = number + part
        low = part - (high - number)
        if low:
            parts[kept] = low
            kept += 1
        number = high
    if not math.isfinite(number):
        raise ValueError("the sum is beyond what a float can hold")
    if number:
        parts[kept:] = [number]
    else:
        del parts[kept:]


def merge(parts: list[float], others: list[float]) -> None:
    for other in others:
        add(parts, other)


def total(parts: list[float]) -> float:
    """The float that is nearest to the sum."""
    return math.fsum(parts)


def add_square(parts: list[float], number: float, *, sign: float = 1.0) -> None:
    """Add the square of a number, or take it out, without rounding."""
    if abs(number) > MOST:
        raise ValueError(f"{number!r} is too large for a standard deviation; the largest is {MOST}")
    split = _SPLITTER * number
    high = split - (split - number)
    low = number - high
    square = number * number
    rest = ((high * high - square) + 2.0 * high * low) + low * low
    add(parts, sign * square)
    if rest:
        add(parts, sign * rest)


def deviation(count: int, parts: list[float], squares: list[float]) -> float:
    """The standard deviation of a whole population, from the exact sums of its numbers and of their squares."""
    mean = sum(map(Fraction, parts), Fraction()) / count
    variance = sum(map(Fraction, squares), Fraction()) / count - mean * mean
    return math.sqrt(max(variance, Fraction()))
