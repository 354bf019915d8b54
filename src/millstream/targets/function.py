"""A function of the user's as a target."""

from __future__ import annotations

from typing import Any

from millstream.delivery import FunctionTarget
from millstream.record import Record


class Function:
    """Calls `call(step, records)`: steps count 0, 1, 2…; after a kill one may come again with the same number and the same records."""

    durable = True  # the function may have told others of the number

    def __init__(self, target: FunctionTarget) -> None:
        self._call = target.call

    def call(self, k: int, records: list[Record[Any]]) -> None:
        self._call(k, records)
