"""How likely each fault is, and how small everything is, so that what is rare happens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from millstream.core import pages, route
from millstream.journal import segments
from millstream.mill import watching
from millstream.targets import typed


@dataclass(frozen=True)
class Profile:
    """How likely each fault is: weights of events, and chances per step on the disk."""

    steps: int = 400
    swarm: bool = True  # each seed leaves some faults out and has more of others: a few that meet find more than all at once
    settings: tuple[tuple[str, float], ...] = ()  # of the planner, instead of drawn ones
    sizes: tuple[tuple[str, int], ...] = ()  # likewise
    kinds: tuple[str, ...] = ()  # of deliveries, of which there are some then
    unkept: bool | None = None  # whether there are streams that are not kept, instead of now and then
    in_order: bool = True  # whether some computations are in the order of event time
    lazy_notes: bool = False  # Spark reads all sources, and what it says of its notes is lost
    ranged: int = 50  # percent of the sources that Spark does not read: lanes read some of them, or all
    partitions: int | None = None  # of each of these, instead of a drawn number
    unreachable: float = 0.3  # that such a source is out of reach for a while
    kill_lane: float = 0.4
    hang: float = 0.03  # that an epoch takes long in a lane, or for ever
    kill_driver: float = 0.25
    kill_writer: float = 0.3
    power: float = 0.1
    give_up: float = 0.3  # Spark believes an attempt dead that lives
    cut: float = 0.3  # a connection
    lose_result: float = 0.1
    late_result: float = 0.3  # Spark takes what an attempt has written that it had given up
    fall_back: float = 0.15
    takeover: float = 0.1
    pause: float = 0.3
    disk_full: float = 0.1
    sync_error: float = 0.1
    lost_answer: float = 0.15
    stop: float = 0.25
    set_back: float = 0.1
    killed_at_step: float = 0.002
    killed_at: str = ""  # a step on the disk at which it is likelier
    power_at_step: float = 0.0004
    nested: float = 0.03  # that others have their turns in the middle of a step
    nested_at: str = ""  # a step on the disk at which it is likelier
    turns_nested: tuple[int, ...] = (1, 1, 3, 10, 30)  # so many of them
    reader: float = 0.5  # a reader from outside
    upkeep: float = 0.3  # of the log's table


USUAL = Profile()
CALM = replace(USUAL, swarm=False, **{name: 0.0 for name, of in Profile.__dataclass_fields__.items() if isinstance(of.default, float)})
CALM = replace(CALM, reader=0.1)


def drawn(profile: Profile, rng: random.Random) -> Profile:
    """The faults of one seed."""
    if not profile.swarm:
        return profile
    rates = {name: rate for name in Profile.__dataclass_fields__ if isinstance(rate := getattr(profile, name), float)}
    calm = rng.choice((0.15, 0.4, 1.0))  # most of what goes wrong goes wrong after much went right
    return replace(profile, **{name: rate * calm * rng.choice((0.0, 0.5, 1.0, 2.0)) for name, rate in rates.items()})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sizes:
    """Limits that are small here, so that what is rare happens."""

    buckets: int = 4
    lanes: int = 2
    records_per_part: int = 3
    bytes_per_segment: int = 2_000
    memory: int | None = None
    rows_per_page: int = 32
    pages_per_merge: int = 4  # pages are merged when one of so many would do
    keys: int = 4

    @classmethod
    def drawn(cls, rng: random.Random, profile: Profile) -> Sizes:
        found = replace(cls._any(rng), **dict(profile.sizes))
        return replace(found, buckets=max(found.buckets, found.lanes))

    @classmethod
    def _any(cls, rng: random.Random) -> Sizes:
        return cls(
            buckets=rng.choice((1, 3, 4, 8)),
            lanes=rng.choice((1, 2, 2, 3)),
            records_per_part=rng.choice((1, 2, 3, 65_536)),
            bytes_per_segment=rng.choice((200, 2_000, 64 << 20)),
            memory=rng.choice((None, None, 2_000, 20_000)),
            rows_per_page=rng.choice((1, 2, 32)),
            pages_per_merge=rng.choice((2, 4)),
            keys=rng.choice((4, 4, 4, 16)),
        )


@contextmanager
def tuned(sizes: Sizes) -> Iterator[None]:
    """Parts, segments, pages and files of the sizes of this world."""
    patches = (
        (route, "RECORDS_PER_PART", sizes.records_per_part),
        (segments, "BYTES_PER_SEGMENT", sizes.bytes_per_segment),
        (typed, "ROWS_PER_FILE", sizes.records_per_part),
        (watching, "LONGEST_AWAY", 60.0),
        (pages, "ROWS_PER_PAGE", sizes.rows_per_page),
        (pages, "ROWS_TO_MERGE", sizes.rows_per_page / sizes.pages_per_merge),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in patches]
    for module, name, value in patches:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
