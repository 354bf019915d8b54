"""One input, played in many ways: all at once, or bit by bit with the promises that the rest keeps, with crashes.

What a topology says of it in event time should not depend on the way: not on where epochs are cut, nor, unless it says so, on
the order of arrival.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

import millstream as ms
from millstream.testing import Driver


class Sent(NamedTuple):
    """A value on its way in."""

    stream: Any
    value: Any
    at: ms.Timestamp
    key: str | None = None  # where the injector cannot tell


def at_once(topology: ms.Topology, events: Sequence[Sent]) -> Driver:
    """All of it in one epoch."""
    driver = Driver(topology, ship=False)
    with driver.together():
        for sent in events:
            _send(driver, sent)
        driver.finish()
    return driver


def bit_by_bit(topology: ms.Topology, events: Sequence[Sent], chance: random.Random, *, in_order: bool) -> Driver:
    """The same in epochs of a few; in the order of event time, or in another. Now and then an epoch crashes."""
    driver = Driver(topology, ship=False)
    left = sorted(events, key=lambda sent: sent.at)
    while left:
        with driver.together():
            for _ in range(chance.randint(1, 3)):
                place = 0 if in_order else min(chance.randrange(len(left)), chance.randrange(len(left)))
                _send(driver, left.pop(place))
                if not left:
                    break
            if chance.random() < 0.5:
                driver.advance(low_watermark=min((sent.at for sent in left), default=ms.END_OF_TIME))
            if chance.random() < 0.3:
                driver.crash()
    driver.finish()
    return driver


def told(driver: Driver, output: ms.Output[Any]) -> list[str]:
    return sorted(f"{record.key} {int(record.timestamp)} {msgspec.to_builtins(record.value)}" for record in driver.read(output))


def _send(driver: Driver, sent: Sent) -> None:
    if sent.key is None:
        driver.send(sent.stream, sent.value)
    else:
        driver.put(sent.stream, sent.value, key=sent.key, timestamp=sent.at)
