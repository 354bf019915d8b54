"""What must hold of a figure, told in one way by every benchmark: the figure, its bound, and whether it holds."""

from __future__ import annotations

import math


def at_most(what: str, figure: float, bound: float, unit: str = "times") -> bool:
    """Print it; whether it holds."""
    return _tell(what, f"{_shown(figure)} {unit} (at most {_shown(bound)})", figure <= bound)


def at_least(what: str, figure: float, bound: float, unit: str = "times") -> bool:
    """Print it; whether it holds."""
    return _tell(what, f"{_shown(figure)} {unit} (at least {_shown(bound)})", figure >= bound)


class Rounds:
    """Goals that are looked at in several rounds: each must hold in two of three, for a machine has other work at times."""

    def __init__(self) -> None:
        self._held: dict[str, list[bool]] = {}

    def add(self, what: str, holds: bool) -> None:
        """What came out in one round."""
        self._held.setdefault(what, []).append(holds)

    def tell(self) -> None:
        print("in two rounds of three", flush=True)
        for what, held in self._held.items():
            at_least(what, sum(held), math.ceil(2 * len(held) / 3), f"of {len(held)} rounds")


def _tell(what: str, figure: str, holds: bool) -> bool:
    print(f"    {what}: {figure}: {'holds' if holds else 'DOES NOT HOLD'}", flush=True)
    return holds


def _shown(figure: float) -> str:
    return f"{figure:,.3f}".rstrip("0").rstrip(".")
