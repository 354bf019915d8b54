"""What a run may be told."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from millstream.errors import LogError
from millstream.log.folder import Pinned
from millstream.timestamp import DAY, Duration


class Until(enum.Enum):
    """When a run ends by itself."""

    DRAINED = "drained"


DRAINED = Until.DRAINED


@dataclass(frozen=True)
class Options:
    """What a run may be told; the defaults suit a laptop.

    `buckets` and `partitions` are fixed when a folder is first used; None takes what is fixed, at first 16 and the number of cores.
    """

    buckets: int | None = None
    partitions: int | None = None
    records_an_epoch: int = 250_000
    bytes_an_epoch: int = 128 << 20
    retention: Duration | None = 7 * DAY
    spark_words: bool = False  # Spark's own words on the terminal instead of in spark.log


def agree(pinned: Pinned, options: Options) -> None:
    """What is fixed cannot be asked for otherwise."""
    for name, fixed, asked in (("buckets", len(pinned.buckets), options.buckets), ("partitions", pinned.partitions, options.partitions)):
        if asked is not None and asked != fixed:
            raise LogError(
                f"{pinned.at} was begun with {fixed} {name}, and its state depends on it; leave out {name}={asked}, or take a new folder"
            )
