"""The settings of a run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from millstream import arguments
from millstream.errors import LogError, TopologyError
from millstream.log.folder import Pinned
from millstream.timestamp import DAY, MINUTE, Duration


class Until(enum.Enum):
    """When a run ends by itself."""

    DRAINED = "drained"


DRAINED = Until.DRAINED
NO_LINGER = Duration(0)
MOST_BUCKETS = 1 << 16  # each costs a little in every commit; a record's id has room for some more


@dataclass(frozen=True)
class Options:
    """The settings of a run; the defaults suit a laptop.

    `buckets` and `lanes` are fixed when a folder is first used; None takes what is fixed, at first 16 and the number of cores.
    """

    buckets: int | None = None
    lanes: int | None = None
    max_records_per_epoch: int = 250_000
    max_bytes_per_epoch: int = 128 << 20
    linger: Duration = NO_LINGER  # between the beginnings of two epochs, at least: fewer and larger ones for some milliseconds
    checkpoint_every: Duration = 5 * MINUTE
    lane_memory: int = 512 << 20  # bytes of rows that a lane holds at most
    lane_timeout: Duration = 10 * MINUTE  # in one computation and key, until a lane is taken to hang
    channel_port: int = 0  # where the planner listens on a cluster; any free one if 0
    retention: Duration | None = 7 * DAY
    show_spark_log: bool = False  # what Spark logs on the terminal instead of in spark.log

    def __post_init__(self) -> None:
        for name in ("buckets", "lanes"):
            asked = getattr(self, name)
            if asked is not None and (type(asked) is not int or not 1 <= asked <= MOST_BUCKETS):
                raise TopologyError(
                    f"Options({name}={asked!r}): give a whole number, at least 1 and at most {MOST_BUCKETS}, or leave it out"
                )
        if self.buckets is not None and self.lanes is not None and self.buckets < self.lanes:
            raise TopologyError(
                f"Options(buckets={self.buckets}, lanes={self.lanes}): a lane carries a bucket at least; give more buckets, or fewer lanes"
            )
        for name in ("max_records_per_epoch", "max_bytes_per_epoch", "lane_memory"):
            arguments.number("Options", name, getattr(self, name), least=1)
        for name in ("checkpoint_every", "lane_timeout"):
            arguments.span("Options", name, getattr(self, name))
        arguments.span("Options", "linger", self.linger, least=0)
        arguments.number("Options", "channel_port", self.channel_port, least=0)
        arguments.flag("Options", "show_spark_log", self.show_spark_log)
        if self.channel_port > 65535:
            raise TopologyError(f"Options(channel_port={self.channel_port}): a port is at most 65535")
        if self.retention is not None:
            arguments.span("Options", "retention", self.retention, least=0)


def agree(pinned: Pinned, options: Options) -> None:
    """What is fixed cannot be asked for otherwise."""
    for name, fixed, asked in (("buckets", pinned.buckets, options.buckets), ("lanes", pinned.lanes, options.lanes)):
        if asked is not None and asked != fixed:
            raise LogError(
                f"{pinned.at} was begun with {fixed} {name}, and its state depends on it; leave out {name}={asked}, or take a new folder"
            )
